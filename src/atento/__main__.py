"""`python -m atento`: the command line."""

from atento.cli.start import main

main()

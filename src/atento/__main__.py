"""`python -m atento`: the command line."""

from atento_cli.start import main

main()

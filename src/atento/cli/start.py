"""The entry point of the `atento` script: from the first import on, Ctrl-C ends it at once and in silence."""

import signal


def main() -> None:
    """Run the command line; the exit status of Ctrl-C is 130. Training has an answer of its own."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # before the imports below, which take some tenths of a second
    from atento.cli.main import main as run

    run()

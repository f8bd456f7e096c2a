"""Entry point of the `atento` script: Ctrl-C ends it silently from the first import on."""

import signal


def main() -> None:
    """Run the command line. Ctrl-C gives exit status 130, except in training, which saves a checkpoint."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # before the imports below, which take tenths of a second
    from atento.base.start_up import without_collections

    with without_collections():
        from atento_cli.main import main as run
    run()


if __name__ == "__main__":  # `python -m atento_cli.start`, as torchrun and `atento train --nproc` start it
    main()

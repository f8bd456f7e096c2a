"""Entry point of a worker process of the service: its imports."""

from atento.base.start_up import without_collections


def main() -> None:
    """Import what a worker needs, and run it."""
    with without_collections():
        from atento_serve.engine.worker import main as work
    work()


if __name__ == "__main__":
    main()

"""The service: models over HTTP. Nothing here imports torch but the worker processes of `engine`."""

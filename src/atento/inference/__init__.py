"""What decoding and reading run a network by: its step functions, plain, fast and with CUDA graphs, and its readers."""

from atento.inference.choose import reader, step_function

__all__ = ["reader", "step_function"]

"""Networks as step functions for decoding: plain, fast, and with CUDA graphs."""

"""Step functions of networks, for decoding: plain, fast and with CUDA graphs; `choose.step_function` makes them all."""

"""Tasks: what ties records, objective, network, decoding and metric together."""

"""Changes to trained networks: transplanted weights, decomposed scores, ablated positions."""

"""Changes to trained networks: parts transplanted, weights taken apart, positions ablated."""

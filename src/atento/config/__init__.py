"""Every configuration dataclass, torch-free: what a recipe may say, and what a saved model says of itself."""

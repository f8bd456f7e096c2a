"""Training: the loop, updates, optimizers, losses, what a run keeps."""

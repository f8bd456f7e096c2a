"""Token ids on disk, for texts larger than memory."""

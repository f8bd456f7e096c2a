"""Word vectors: CBOW and skip-gram."""

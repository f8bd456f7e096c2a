"""Records to batches: what an update learns from, as a function of seed and number."""

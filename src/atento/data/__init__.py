"""Data: records from files, batches for objectives, token stores."""

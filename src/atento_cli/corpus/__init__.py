"""What is in a corpus: fetched, counted, and found twice."""

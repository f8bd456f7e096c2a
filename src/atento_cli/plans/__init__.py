"""What a run will cost, before its first step."""

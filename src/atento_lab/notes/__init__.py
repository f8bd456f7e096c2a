"""The lecture notes, row by row: what each says, checked against an independent value."""

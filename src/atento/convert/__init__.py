"""Other formats: older weight files in, other engines out."""

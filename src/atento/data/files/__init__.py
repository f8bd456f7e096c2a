"""Files to rows of values or lines of text, one file a format."""

"""Rows to records: columns by name, checked values, parts held out."""

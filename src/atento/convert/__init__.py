"""Conversion of model folders between layouts; older weight files are read on the way."""

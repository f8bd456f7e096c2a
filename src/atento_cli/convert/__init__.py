"""Conversion of models: between layouts (older weight files are read on the way), and to other inference engines."""

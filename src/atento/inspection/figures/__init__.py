"""Figures: drawings as SVG and PNG, each from what it shows."""

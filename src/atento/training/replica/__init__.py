"""Processes that train one network together; nothing outside of this folder knows how they share the work."""

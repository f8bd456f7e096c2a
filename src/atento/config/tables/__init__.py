"""The tables that the rest asks: tasks, objectives, verbs, heads, formats, names of others."""

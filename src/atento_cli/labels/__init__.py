"""Labels of a run: which are likely wrong, and which texts are worth one."""

"""Studio: a page on which models are looked at; its routes, its process, its screens."""

"""How the models of real text are made again: their pairs, and what is held out of them."""

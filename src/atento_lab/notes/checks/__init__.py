"""The checks of the rows of the lecture notes, by section, and the small networks and languages they use."""

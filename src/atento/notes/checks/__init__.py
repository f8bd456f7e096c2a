"""The checks, a file a section of the specification, and the small networks and languages they run on."""

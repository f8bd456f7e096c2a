"""The routes: each reads requests of one API, and writes its answers."""

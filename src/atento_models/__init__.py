"""Models of real Portuguese and English, which `atento.load` and every command take by name."""

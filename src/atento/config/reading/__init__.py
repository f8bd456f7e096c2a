"""From the text of a recipe to its dataclasses and back: YAML, schema, checks, explanations."""

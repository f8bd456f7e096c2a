"""Tokenizers of released models without `tokenizer.json`, built from their own files."""

"""Recurrent networks: cells, sequence to sequence, language models, ELMo."""

"""The position laboratory: small networks that differ only in their position scheme, and what they answer."""

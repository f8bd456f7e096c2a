"""The Transformer: one block, one stack, and the encoder, decoder and encoder-decoder made of it."""

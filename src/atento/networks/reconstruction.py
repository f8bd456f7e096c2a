"""The decoder of TSDAE: it writes a text from its vector alone, with the layers of the encoder that made the vector.

See Wang et al. 2021, 3; the weights are tied as in `DenoisingAutoEncoderLoss` of sentence-transformers.
"""

from typing import cast

from torch import Tensor, nn

from atento.attention.dropout import Randomness
from atento.attention.masks import causal
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.networks.layers import Block, make_block
from atento.networks.stack.stack import SingleStack
from atento.networks.vocabulary import Head, Transform, VocabularyHead


class VectorAttention(nn.Module):
    """The attention of one layer to the vector, with its residual connection."""

    def __init__(self, config: NetworkConfig, layer: int) -> None:
        super().__init__()
        block = make_block(config, kind="decoder", layer=layer, reads_source=True)
        self.attention, self.residual = block.cross_attention, block.cross_attention_residual

    def within(self, block: Block) -> Block:
        """The block of an encoder with this attention between its own sublayers."""
        assert self.residual is not None
        return Block(
            self_attention=block.self_attention,
            cross_attention=self.attention,
            feed_forward=block.feed_forward,
            residuals=[block.self_attention_residual, self.residual, block.feed_forward_residual],
        )


class Reconstruction(Head):
    """What the decoder has beside the layers of the encoder: attention to the vector in each of them, and a head over
    the vocabulary like that of a masked language model, whose matrix is the embedding.
    """

    kind = "reconstruction"

    def __init__(self, config: NetworkConfig, head: HeadConfig) -> None:
        super().__init__()
        count = 1 if config.shared_layers else config.n_layers
        self.layers = nn.ModuleList(VectorAttention(config, layer) for layer in range(count))
        transform = Transform(config, HeadConfig("masked-language-model"))
        sizes = (config.vocab_size, config.embedding_width)
        self.vocabulary = VocabularyHead(*sizes, tied=True, bias=True, transform=transform)

    def forward(
        self, encoder: SingleStack, vectors: Tensor, ids: Tensor, chosen: Tensor, random: Randomness | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Read texts from left to right, each beside its vector.

        Args:
            encoder: the network of this head.
            vectors: of the texts, (B,D).
            ids: (B,T), whose first token is that of any text; padding stands behind them.
            chosen: boolean (B,T), True for a token behind which another one is to be predicted.
            random: the random numbers of dropout in training.

        Returns:
            What each of these n tokens is predicted from, (n,E), the output matrix (V,E) and its bias (V,).
        """
        stack = encoder.stack
        layers = cast(list[VectorAttention], [*self.layers] * (stack.n_layers // len(self.layers)))
        x = encoder.inputs(encoder.embedding(ids), random=random)
        hidden = stack(
            x,
            mask=encoder.with_own_window(causal()),
            memory=vectors.unsqueeze(1).to(x.dtype),  # (B,1,D): a source of one position
            random=random,
            blocks=[layer.within(block) for layer, block in zip(layers, stack.layers, strict=True)],
        )
        output = self.vocabulary
        return output.read(hidden[chosen]), output.matrix(encoder.table), output.bias

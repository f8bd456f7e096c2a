"""ELMo: a language model in each direction out of projected LSTMs over characters, and the mix of all its layers.

See docs/notes.md#c14.

Stateless: every call begins at zero, so a sentence's vectors depend on that sentence alone. (The published programs
carry their state from batch to batch, so they give the same vectors on the first batch.)
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.dropout import Randomness
from atento.base.errors import RecipeError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import N_CHARACTERS, CharacterConfig, ELMoConfig
from atento.networks.heads import make_heads
from atento.networks.interface import Network, layer_count
from atento.networks.large_vocabulary import AdaptiveSoftmax, sampled_nats
from atento.networks.layers import TokenEmbedding
from atento.networks.output import Output
from atento.networks.rare_layers import LayerMix
from atento.networks.vocabulary import cross_entropy

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class Highway(nn.Module):
    """y = g · relu(x W + b) + (1 - g) · x, g = σ(x C + c): at first it passes x on (Srivastava et al. 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, width)
        self.transform = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., W) -> (..., W)."""
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.relu(self.transform(x)) + (1 - gate) * x  # g near 0 passes x on


class CharacterCNN(nn.Module):
    """Character ids -> word vectors, as in the published ELMo (Peters et al. 2018; Kim et al. 2016).

    See docs/notes.md#c14.

    The maximum is over all characters of a word and its padding, as in the training of the published weights.
    """

    def __init__(self, config: CharacterConfig, d_model: int) -> None:
        super().__init__()
        if not config.projection and config.n_filters != d_model:
            raise RecipeError(
                f"without `projection` the counts of `filters` must add up to `d_model`: got {config.n_filters} "
                f"and {d_model}"
            )
        self.config = config
        self.embedding = nn.Parameter(torch.empty(N_CHARACTERS, config.d_char))
        self.convolutions = nn.ModuleList(nn.Conv1d(config.d_char, count, width) for width, count in config.filters)
        self.highways = nn.ModuleList(Highway(config.n_filters) for _ in range(config.n_highway))
        self.projection = nn.Linear(config.n_filters, d_model) if config.projection else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Each matrix normal with deviation 1/√inputs, biases zero, highway gates nearly closed (-2), as published."""
        nn.init.uniform_(self.embedding, -1.0, 1.0)
        self.embedding[0].zero_()  # no word has no characters
        for name, parameter in self.named_parameters():
            if name.endswith("weight"):
                nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)  # 1/√ of the inputs of one output
            elif name.endswith("bias"):
                nn.init.constant_(parameter, -2.0 if "gate" in name else 0.0)  # -2: g = 0.12

    def forward(self, characters: Tensor) -> Tensor:
        """characters (B,L,C) -> (B,L,D), C = `max_characters`. Raises ValueError: another shape."""
        if characters.dim() != 3 or characters.shape[-1] != self.config.max_characters:
            raise ValueError(
                f"characters must be (B,L,{self.config.max_characters}), ids from `atento.text.characters`: "
                f"got {tuple(characters.shape)}"
            )
        x = F.embedding(characters.flatten(0, 1), self.embedding, padding_idx=0)  # (B,L,C) -> (N,C,E)
        x = x.transpose(1, 2)  # (N,E,C)
        maxima = [convolution(x).amax(dim=-1) for convolution in self.convolutions]  # each (N,count)
        x = _ACTIVATIONS[self.config.activation](torch.cat(maxima, dim=-1))  # (N,W)
        for highway in self.highways:
            x = highway(x)
        x = x if self.projection is None else self.projection(x)  # (N,D)
        return x.view(*characters.shape[:2], -1)  # (B,L,D)


class ProjectedLSTM(nn.Module):
    """One layer in one direction: an LSTM with a projected output (Sak et al. 2014), cell and output bounded.

    See docs/notes.md#c14.

    i, f, g, o = x W + b + h U;  c' = clip(σ(f) c + σ(i) tanh(g));  h' = clip(P (σ(o) tanh(c'))).
    """

    def __init__(
        self, d_model: int, d_cell: int, *, backward: bool, cell_clip: float | None, projection_clip: float | None
    ) -> None:
        super().__init__()
        self.input = nn.Linear(d_model, 4 * d_cell)
        self.recurrent = nn.Linear(d_model, 4 * d_cell, bias=False)
        self.projection = nn.Linear(d_cell, d_model, bias=False)
        self.d_cell, self.backward = d_cell, backward
        self.cell_clip, self.projection_clip = cell_clip, projection_clip

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Matrices Xavier-uniform, gate by gate; biases zero, but 1 for the forget gate, so that a cell first retains
        its state."""
        for gates in (self.input.weight, self.recurrent.weight):
            for gate in gates.chunk(4):
                nn.init.xavier_uniform_(gate)
        nn.init.xavier_uniform_(self.projection.weight)
        nn.init.zeros_(self.input.bias)
        self.input.bias[self.d_cell : 2 * self.d_cell].fill_(1.0)

    def forward(self, x: Tensor, token_mask: Tensor | None) -> Tensor:
        """x (B,L,D), token mask (B,L) or None -> h (B,L,D); padding does not change the state, and its h is 0."""
        length = x.shape[1]
        gates = self.input(x).unbind(1)  # L of (B,4C)
        hidden, cell = x.new_zeros(x.shape[0], x.shape[2]), x.new_zeros(x.shape[0], self.d_cell)  # h (B,D) and c (B,C)
        outputs = [hidden] * length  # filled by position, so that reading backward keeps the order
        for t in reversed(range(length)) if self.backward else range(length):
            new_hidden, new_cell = self.step(gates[t], hidden, cell)
            if token_mask is None:
                hidden, cell = new_hidden, new_cell
            else:
                is_real = token_mask[:, t, None]  # (B,1)
                hidden, cell = torch.where(is_real, new_hidden, hidden), torch.where(is_real, new_cell, cell)
            outputs[t] = hidden
        if not outputs:
            return x
        h = torch.stack(outputs, dim=1)  # (B,L,D)
        return h if token_mask is None else torch.where(token_mask.unsqueeze(-1), h, torch.zeros_like(h))

    def step(self, gates: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """One token: its x W + b (B,4C), h (B,D), c (B,C) -> the next h and c."""
        i, f, g, o = (gates + self.recurrent(hidden)).chunk(4, dim=-1)  # each (B,C)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)  # c' before it is clipped
        cell = cell if self.cell_clip is None else cell.clamp(-self.cell_clip, self.cell_clip)
        hidden = self.projection(torch.sigmoid(o) * torch.tanh(cell))  # (B,C) -> (B,D)
        if self.projection_clip is not None:
            hidden = hidden.clamp(-self.projection_clip, self.projection_clip)
        return hidden, cell


@dataclass(frozen=True)
class BidirectionalLoss:
    """The loss of a bidirectional language model: sums of nats, and the numbers of real targets.

    See docs/notes.md#e9.
    """

    forward: Tensor
    backward: Tensor
    forward_targets: int
    backward_targets: int

    @property
    def total(self) -> Tensor:
        """Both directions' nats, to divide by `targets`."""
        return self.forward + self.backward

    @property
    def targets(self) -> int:
        """Real targets of both directions."""
        return self.forward_targets + self.backward_targets

    @property
    def perplexities(self) -> tuple[float, float]:
        """exp of the mean nats, forward and backward."""
        forward, backward = float(self.forward.detach()), float(self.backward.detach())
        return math.exp(forward / max(1, self.forward_targets)), math.exp(backward / max(1, self.backward_targets))


class ELMo(Network):
    """Embeddings from a bidirectional language model (Peters et al. 2018; docs/notes.md#c14, #e9).

    `config.d_model` is the width K of one direction, so that hidden is 2K wide. The language model's softmax, over
    words, is shared by both directions; with `vocab_size` 0 there is none, and the network only gives vectors.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        elmo = config.elmo
        if elmo is None:
            raise RecipeError("`elmo` must say what an ELMo network is made of: got null")
        if elmo.characters is None and config.vocab_size < 1:
            raise RecipeError(f"`vocab_size` must be at least 1 without `elmo.characters`: got {config.vocab_size}")
        self.config = config
        by_id = elmo.characters is None
        self.embedding = TokenEmbedding(config.vocab_size, config.d_model, scale=False) if by_id else None
        self.heads = make_heads(config, 2 * config.d_model)  # before the layers: optimisers see this order
        self.characters = None if elmo.characters is None else CharacterCNN(elmo.characters, config.d_model)
        self.forward_layers = _direction(config, elmo, backward=False)
        self.backward_layers = _direction(config, elmo, backward=True)
        self.skip = elmo.skip
        self.mix = LayerMix(config.n_layers + 1, norm=elmo.mix_norm)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise every part as in its paper; word matrices normal with deviation 1/√D."""
        for part in self.modules():
            if isinstance(part, AdaptiveSoftmax | CharacterCNN | ProjectedLSTM | LayerMix):
                part.reset_parameters()
        for name, parameter in self.named_parameters():
            if name in ("embedding.weight", "heads.vocabulary.output.weight"):
                nn.init.normal_(parameter, std=self.config.d_model**-0.5)
            elif name == "heads.vocabulary.output.bias":
                nn.init.zeros_(parameter)

    def forward(
        self, ids: Tensor, *, token_mask: Tensor | None = None, random: Randomness | None = None, project: bool = False
    ) -> Output:
        """One pass over complete sentences.

        Args:
            ids: characters (B,L,C), C = 50 as published, from `atento.text.characters`; or word ids (B,L) for a
                network without characters. Begin and end of sentence count as words.
            token_mask: boolean (B,L), True = a real word; None: all are.
            random: the random numbers of dropout in training.
            project: no effect: the logits of each direction are those of `loss`.

        Returns:
            Output with hidden (B,L,2D), the mix of all layers; 0 at padding.
        """
        return Output(self.mix(self.layers(ids, token_mask=token_mask, random=random)))  # (N+1,B,L,2D) -> (B,L,2D)

    def layers(self, ids: Tensor, *, token_mask: Tensor | None = None, random: Randomness | None = None) -> Tensor:
        """All layers, forward and backward concatenated, (N+1,B,L,2D); the lowest is the word vector, twice."""
        both = self.directions(ids, token_mask=token_mask, random=random)
        return torch.stack([torch.cat(pair, dim=-1) for pair in both])

    def directions(
        self, ids: Tensor, *, token_mask: Tensor | None = None, random: Randomness | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """The forward and the backward states (B,L,D) of each layer, N+1 pairs; 0 at padding.

        The state at t depends on the words up to t, or from t on. In training, dropout is applied to every layer's
        input.
        """
        if self.embedding is not None and ids.dim() != 2:
            raise ValueError(f"word ids must be (B,L): got {tuple(ids.shape)}; this ELMo reads no characters")
        read = self.characters if self.embedding is None else self.embedding
        assert read is not None
        x = read(ids)  # (B,L,D)
        if token_mask is not None:
            if token_mask.shape != x.shape[:2] or token_mask.dtype != torch.bool:
                raise ValueError(
                    f"`token_mask` must be boolean {tuple(x.shape[:2])}: got {token_mask.dtype} "
                    f"{tuple(token_mask.shape)}"
                )
            x = torch.where(token_mask.unsqueeze(-1), x, torch.zeros_like(x))  # padding reads as zeros
        both = [(x, x)]
        ahead, behind = x, x
        for number, layers in enumerate(zip(self.forward_layers, self.backward_layers)):
            ahead, behind = self.dropped(ahead, random), self.dropped(behind, random)
            outputs = layers[0](ahead, token_mask), layers[1](behind, token_mask)  # each reads its own direction alone
            carried = self.skip and number > 0  # a residual connection from the second layer on
            ahead, behind = (outputs[0] + ahead, outputs[1] + behind) if carried else outputs
            both.append((ahead, behind))
        return both

    def features(self, ids: Tensor, *, token_mask: Tensor | None = None, layer: int = -1) -> Tensor:
        """As `Network.features`, (B,L,2D): forward and backward concatenated; ids may be characters (B,L,C)."""
        return self.layers(ids, token_mask=token_mask)[layer_count(layer, self.config.n_layers)]

    @property
    def table(self) -> TokenEmbedding | None:
        """The embedding of words; None if words are read from their characters."""
        return self.embedding

    def loss(
        self,
        ids: Tensor,
        words: Tensor,
        *,
        token_mask: Tensor | None = None,
        sampled: Tensor | None = None,
        random: Randomness | None = None,
    ) -> BidirectionalLoss:
        """-Σ log p(w_t+1 | w_1..t) - Σ log p(w_t-1 | w_t..L), as two sums (docs/notes.md#e9).

        Args:
            ids: as for `forward`, with begin and end of sentence.
            words: (B,L), the same words by id in the output's vocabulary.
            token_mask: boolean (B,L); a pair of neighbours counts where both are real.
            sampled: (S,), words drawn for the sampled softmax; None: the sum over all words.
            random: the random numbers of dropout in training.
        """
        ahead, behind = self.directions(ids, token_mask=token_mask, random=random)[-1]
        pairs = torch.ones_like(words, dtype=torch.bool) if token_mask is None else token_mask  # (B,L)
        pairs = pairs[:, 1:] & pairs[:, :-1]  # (B,L-1)
        count = int(pairs.sum())
        forward = self._nats(ahead[:, :-1][pairs], words[:, 1:][pairs], sampled, random)  # word t + 1 from state t
        backward = self._nats(behind[:, 1:][pairs], words[:, :-1][pairs], sampled, random)  # word t - 1 from state t
        return BidirectionalLoss(forward, backward, count, count)

    def _nats(self, states: Tensor, targets: Tensor, sampled: Tensor | None, random: Randomness | None) -> Tensor:
        """states (N,D), targets (N,) -> the sum of -log p, in float32 at least."""
        states, head = self.dropped(states, random), self.heads["vocabulary"]
        if isinstance(head, AdaptiveSoftmax):
            return head.nats(states, targets)
        if sampled is not None:
            return sampled_nats(states, targets, self.projection, self.vocabulary_head.bias, sampled)
        return cross_entropy(states, self.projection, targets, bias=self.vocabulary_head.bias)[0]


def _direction(config: NetworkConfig, elmo: ELMoConfig, *, backward: bool) -> nn.ModuleList:
    """The stack of LSTMs of one direction."""
    clips = {"cell_clip": elmo.cell_clip, "projection_clip": elmo.projection_clip}
    layers = (ProjectedLSTM(config.d_model, elmo.d_cell, backward=backward, **clips) for _ in range(config.n_layers))
    return nn.ModuleList(layers)

"""The notes' listings by name (K1, K2, K4, K5) and the rows on sampling: call shapes, values, every message."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atento.attention.masks import causal, padding
from atento.base.errors import UsageError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import OutputConfig
from atento.decoding import filters
from atento.decoding.filters import shaped
from atento.networks import EncoderDecoder
from atento.notes import (
    RougeScorer,
    attention,
    beam_search,
    corpus_bleu,
    greedy_decoding,
    self_attention,
    sentence_bleu,
)
from atento.notes.listing_sampling import random_sampling_with_temperature
from atento_lab.notes.checks import sampling as rows
from atento_lab.notes.checks.toys import ToyLanguageModel
from atento_lab.notes.finding import Finding
from failing import fails


def test_names_are_the_listings_and_attention_is_the_same_call_k1_k2() -> None:
    """A check module of the same name must not hide a listing."""
    import atento.notes

    assert atento.notes.attention is attention and atento.notes.self_attention is self_attention
    q, k, v = torch.randn(4, 6), torch.randn(7, 6), torch.randn(7, 3)
    context, weights = attention(q, k, v)
    torch.testing.assert_close(context, weights @ v)
    assert context.shape == (4, 3) and weights.shape == (4, 7)
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    output, weights = self_attention(x, x, x)
    assert output.dtype == weights.dtype == torch.float64
    output.sum().backward()
    assert x.grad is not None and (x.grad != 0).any()
    x = torch.randn(1, 3, 4)
    fails(TypeError, "a mask must be boolean", self_attention, x, x, x, mask=torch.zeros(3, 3))


def test_self_attention_takes_any_leading_sizes_and_masks_k1() -> None:
    for lead in ((), (3,), (2, 5)):
        query, key, value = torch.randn(*lead, 4, 6), torch.randn(*lead, 7, 6), torch.randn(*lead, 7, 3)
        output, weights = self_attention(query, key, value)
        expected = torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(6), dim=-1)
        torch.testing.assert_close(weights, expected)
        torch.testing.assert_close(output, expected @ value)
    # A Mask, a (T,S) matrix and a (B,1,S) padding mask; a row that sees nothing gives 0
    x = torch.randn(2, 3, 4)
    _, by_mask = self_attention(x, x, x, mask=causal())
    _, by_matrix = self_attention(x, x, x, torch.ones(3, 3).tril().bool())
    torch.testing.assert_close(by_mask, by_matrix)
    assert (by_mask.triu(1) == 0).all() and (by_mask.tril() > 0).sum() == 2 * 6
    real = torch.tensor([[True, True, False], [False, False, False]])
    output, weights = self_attention(x, x, x, mask=real[:, None, :])
    assert (weights[0, :, 2] == 0).all() and (weights[0, :, :2] > 0).all()
    assert (output[1] == 0).all() and (weights[1] == 0).all()
    torch.testing.assert_close(output, self_attention(x, x, x, mask=padding(real))[0])


class Counting:
    """A language model over 0 (EOS) to 9 that counts down from its last token: 3 -> 2 -> 1 -> EOS."""

    eos_token = 0

    def __init__(self, dim: int = 3) -> None:
        self.dim = dim

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        scores = torch.nn.functional.one_hot((ids - 1).clamp(min=0), 10).float() * 5  # (B,L,V)
        return scores if self.dim == 3 else scores[:, -1]


def test_greedy_decoding_reads_the_last_position_beam_search_normalises_scores_and_both_refuse_k4() -> None:
    """One sequence gives one list, as in the notes; a batch a list of them, each as long as it needs; EOS not kept."""
    for dim in (2, 3):
        model = Counting(dim)
        assert greedy_decoding(model, torch.tensor([[9, 4]]), 10) == [3, 2, 1]
        assert greedy_decoding(model, torch.tensor([9, 4]), 10) == [3, 2, 1]
        assert greedy_decoding(model, torch.tensor([[9, 4], [2, 6], [5, 1]]), 10) == [[3, 2, 1], [5, 4, 3, 2, 1], []]
        assert greedy_decoding(model, torch.tensor([[9, 4]]), 2) == [3, 2]
    # Spec error 39: with raw scores "a c" or "a" would win (1 + 5 against 1.5 + 2); by probability "b" does
    assert beam_search(TwoSteps(), torch.tensor([7, 8]), beam_width=3, max_len=4, length_penalty=0.0) == [3]
    assert beam_search(TwoSteps(), torch.tensor([[7, 8], [5, 6]]), 3, 4) == [[3], [3]]
    # The limit counts EOS; nothing is written after the end
    assert beam_search(TwoSteps(), torch.tensor([7]), beam_width=1, max_len=1) == [3]
    assert beam_search(TwoSteps(), torch.tensor([7])) == [3]
    nothing, cube = torch.zeros(1, 0, dtype=torch.long), torch.tensor([[[1]]])
    shapes = r"`input_seq` must be ids of shape \(L,\), \(1,L\) or \(B,L\): got "
    for search, arguments, said in (
        (greedy_decoding, (lambda ids: ids, torch.tensor([[1]]), 3), "attribute `eos_token`, an id: function does not"),
        (greedy_decoding, (Counting(), nothing, 3), shapes + r"\(1, 0\)"),
        (greedy_decoding, (Counting(), cube, 3), shapes + r"\(1, 1, 1\)"),
        (beam_search, (Counting(), torch.tensor([1])), "attribute `sos_token`, an id: Counting does not"),
        (beam_search, (TwoSteps(), cube), r"`src` must be ids of shape \(S,\) or \(B,S\): got \(1, 1, 1\)"),
    ):
        fails(UsageError, said, search, *arguments)


AFTER = {
    1: [-9.0, -9.0, 1.0, 1.5, -9.0],  # b is likelier than a
    2: [5.0, -9.0, 5.0, 5.0, 5.0],  # after a anything goes, p(EOS) = 1/4
    3: [2.0, -9.0, -9.0, -9.0, 0.0],  # after b EOS is likely, p = .88
    4: [9.0, -9.0, -9.0, -9.0, -9.0],
}


class TwoSteps:
    """A sequence-to-sequence toy in the notes' call shape. Tokens: 0 EOS, 1 SOS, 2 a, 3 b, 4 c.

    Its decoder hands out unnormalised scores: after "a" all are large, which a sum of raw scores takes for likely.
    """

    sos_token, eos_token = 1, 0

    def encoder(self, src):
        return torch.zeros(len(src), src.shape[1], 1), torch.zeros(1, len(src), 2), None

    def decoder(self, token, hidden, cell, encoder_outputs):
        assert token.shape == (len(encoder_outputs), 1) and hidden.shape[1] == len(token)
        return torch.tensor([AFTER[int(t)] for t in token[:, 0]]).unsqueeze(1), hidden, cell


def test_beam_search_moves_the_state_with_its_beams():
    """A decoder whose state is all it has written: with a beam, every row must carry its own."""

    class Remembering:
        sos_token, eos_token = 1, 0

        def encoder(self, src):
            return torch.zeros(len(src), 1, 1), src[:, :1].float(), torch.zeros(1, len(src), 1)

        def decoder(self, token, hidden, cell, encoder_outputs):
            assert hidden.shape == (len(token), 1) and cell.shape == (1, len(token), 1)
            cell = cell * 10 + token.float().T.unsqueeze(-1)  # the tokens read, as digits
            generator = torch.Generator()
            rows = []
            for source, digits in zip(hidden[:, 0].tolist(), cell[0, :, 0].tolist()):
                generator.manual_seed(int(source) * 100_003 + int(digits))
                rows.append(torch.randn(6, generator=generator))
            return torch.stack(rows), hidden, cell

    model, sources = Remembering(), torch.tensor([[3], [5], [8], [13]])

    def score(source, output):
        hidden, cell, total, token = torch.tensor([[float(source)]]), torch.zeros(1, 1, 1), 0.0, 1
        for following in (*output, 0):
            scores, hidden, cell = model.decoder(torch.tensor([[token]]), hidden, cell, torch.zeros(1, 1, 1))
            total, token = total + float(scores[0].log_softmax(0)[following]), following
        return total

    outputs = [(), *((a,) for a in range(1, 6)), *((a, b) for a in range(1, 6) for b in range(1, 6))]
    best = [list(max(outputs, key=lambda o: score(int(s), o))) for s in sources[:, 0]]
    assert beam_search(model, sources, beam_width=60, max_len=3, length_penalty=0.0) == best
    assert len({tuple(one) for one in best}) > 1


def test_searches_take_a_network_of_the_library():
    """A source in, ids out, as its own `generate` gives them."""
    from atento.decoding import Beam, Greedy, generate

    torch.manual_seed(3)
    sizes = {"vocab_size": 13, "d_model": 8, "d_ff": 16, "n_heads": 2, "n_layers": 1}
    network = EncoderDecoder(NetworkConfig(**sizes, output=OutputConfig(tied=False))).eval()
    source = torch.randint(4, 13, (3, 5))
    greedy = [one[0].ids for one in generate(network, source, Greedy(), max_new_tokens=6)]
    assert greedy_decoding(network, source, 6) == greedy
    best = [one[0].ids for one in generate(network, source, Beam(2), max_new_tokens=6)]
    assert beam_search(network, source, beam_width=2, max_len=6) == best
    assert beam_search(network, source[1], 2, 6) == best[1]


REFERENCES = [[["this", "is", "a", "test"], ["this", "is", "a", "trial"]], [["another", "test", "sentence"]]]
CANDIDATES = [["this", "is", "a", "test"], ["another", "test", "sentence"]]


def test_bleu_and_rouge_of_the_notes_pairs_by_hand_and_their_messages_k5() -> None:
    """Spec section 3, to the last digit."""
    assert sentence_bleu(REFERENCES[0], CANDIDATES[0]) == 1.0
    assert sentence_bleu(REFERENCES[1], CANDIDATES[1]) == pytest.approx(1.2213386697554703e-77, rel=1e-12)
    assert corpus_bleu(REFERENCES, CANDIDATES) == pytest.approx(0.8408964152537145, rel=1e-14)
    # p1 = 2/3 of three words, p2 = 1/2; two words fewer than the reference
    value = sentence_bleu([["a", "b", "c", "d", "e"]], ["a", "b", "x"], weights=(0.5, 0.5))
    assert value == pytest.approx(math.exp(1 - 5 / 3) * math.sqrt(2 / 3 * 1 / 2))
    assert sentence_bleu([["a"]], ["b"]) == 0.0 and sentence_bleu([["a"]], []) == 0.0
    assert corpus_bleu([], []) == 0.0
    for bleu, references, hypothesis, said in (
        (sentence_bleu, ["this is a test"], ["this"], "sentence 1 must be tokenised"),
        (sentence_bleu, [["this"]], "this", "sentence 1 must be tokenised"),
        (corpus_bleu, [[["a"]], []], [["a"], ["b"]], "sentence 2 needs at least one reference: got none"),
        (corpus_bleu, [[["a"]], [["b"]]], [["a"]], "each hypothesis needs its list of references: got 1 and 2"),
    ):
        fails(UsageError, said, bleu, references, hypothesis)
    # Spec section 3 and error 3; a score is read by name, as theirs is
    scorer = RougeScorer(["rouge1", "rouge2"])
    second = scorer.score("another test sentence", "a different test sentence")
    assert list(second) == ["rouge1", "rouge2"]
    assert second["rouge1"] == pytest.approx((0.5, 2 / 3, 4 / 7)) and second["rouge2"].fmeasure == pytest.approx(0.4)
    assert RougeScorer(["rouge1"]).score("é", "é")["rouge1"].recall == 1.0
    fails(UsageError, "unknown ROUGE measure 'rouge3'", RougeScorer, ["rouge3"])
    fails(UsageError, "`targets` must hold at least one reference: got none", scorer.score_multi, [], "a")


words = st.lists(st.sampled_from("abcde"), min_size=0, max_size=9)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=40)
@given(st.lists(st.tuples(st.lists(words, min_size=1, max_size=3), words), min_size=1, max_size=5), st.booleans())
def test_bleu_equals_nltk(pairs, two_orders):
    """Ragged references, empty sentences, other weights (I1, K5)."""
    nltk = pytest.importorskip("nltk.translate.bleu_score")
    references, hypotheses = [list(r) for r, _ in pairs], [h for _, h in pairs]
    weights = (0.7, 0.3) if two_orders else (0.25, 0.25, 0.25, 0.25)
    theirs = nltk.corpus_bleu(references, hypotheses, weights=weights)
    assert corpus_bleu(references, hypotheses, weights) == pytest.approx(theirs, rel=1e-12, abs=1e-300)
    one = nltk.sentence_bleu(references[0], hypotheses[0], weights=weights)
    assert sentence_bleu(references[0], hypotheses[0], weights) == pytest.approx(one, rel=1e-12, abs=1e-300)


@pytest.mark.parity
@settings(max_examples=40)
@given(st.lists(st.sampled_from(["running", "runs", "cat", "cats", "the"]), max_size=8), st.booleans(), st.data())
def test_rouge_scorer_equals_rouge_score(words, stemmed, data):
    """The same call on the package that the notes use, with a stemmer and without, of one reference and of several."""
    theirs = pytest.importorskip("rouge_score.rouge_scorer")
    pytest.importorskip("nltk")
    other = st.lists(st.sampled_from(["running", "runs", "cat", "cats", "the"]), max_size=8).map(" ".join)
    targets, prediction = data.draw(st.lists(other, min_size=1, max_size=3)), " ".join(words)
    kinds = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    ours, reference = RougeScorer(kinds, use_stemmer=stemmed), theirs.RougeScorer(kinds, use_stemmer=stemmed)
    for name, one in reference.score(targets[0], prediction).items():
        assert ours.score(targets[0], prediction)[name] == pytest.approx(tuple(one), abs=1e-12)
    for name, one in reference.score_multi(targets, prediction).items():
        assert ours.score_multi(targets, prediction)[name].fmeasure == pytest.approx(one.fmeasure, abs=1e-12)


PROMPTS = torch.tensor([[1, 2, 3], [4, 5, 6], [3, 3, 1]])


@pytest.fixture
def model() -> ToyLanguageModel:
    torch.manual_seed(1)
    return ToyLanguageModel()


def test_k4_the_notes_call_shapes_temperatures_and_messages(model: ToyLanguageModel) -> None:
    """(L,) and (1,L) give one list, (B,L) one a row; at most `max_length` tokens, EOS not among them."""
    one = random_sampling_with_temperature(model, PROMPTS[0], 6, temperature=0.7, seed=3)
    assert one == random_sampling_with_temperature(model, PROMPTS[:1], 6, 0.7, seed=3)
    many = random_sampling_with_temperature(model, PROMPTS, 6, seed=3)
    assert len(many) == 3 and all(isinstance(ids, list) and len(ids) <= 6 and 0 not in ids for ids in many)
    assert random_sampling_with_temperature(model, PROMPTS, 6, 0.0) == greedy_decoding(model, PROMPTS, 6)

    def different(temperature: float) -> int:
        drawn = random_sampling_with_temperature(model, PROMPTS[:1].expand(200, -1), 3, temperature, seed=1)
        return len({tuple(ids) for ids in drawn if isinstance(ids, list)})

    assert different(0.0) == 1 < different(3.0) < different(30.0)
    with pytest.raises(UsageError, match="the model must have the attribute `eos_token`, an id: function does not"):
        random_sampling_with_temperature(lambda ids: ids, PROMPTS, 3)
    with pytest.raises(UsageError, match=r"`input_seq` must be ids of shape \(L,\), \(1,L\) or \(B,L\)"):
        random_sampling_with_temperature(model, PROMPTS[None], 3)
    with pytest.raises(UsageError, match="`temperature` must be finite and not negative: got -1"):
        random_sampling_with_temperature(model, PROMPTS, 3, -1)


CHECKS = [rows.ancestral_sampling, rows.temperatures, rows.top_k_sampling, rows.nucleus_sampling, rows.sampling_listing]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_h2_h3_h4_h5_rows_pass_for_any_seed(check: Callable[[], Finding], seed: int) -> None:
    torch.manual_seed(seed)
    finding = check()
    assert finding.passed, finding


@pytest.mark.parametrize("check", [rows.ancestral_sampling, rows.nucleus_sampling, rows.sampling_listing])
def test_h2_rows_fail_when_sampling_is_wrong(check: Callable[[], Finding], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another temperature than was asked for: the checks see it."""
    monkeypatch.setattr(filters, "shaped", lambda scores, strategy: shaped(0.6 * scores, strategy))
    torch.manual_seed(1)
    assert not check().passed


def test_j6_the_figure_is_drawn_from_a_trained_network() -> None:
    finding = rows.what_k_keeps()
    assert finding.passed, finding
    assert finding.figure.startswith("<svg") and "flat: top-k" in finding.drawing
    flat, peaked = finding.value["flat: mass of the best 5"], finding.value["peaked: mass of the best 5"]
    assert flat < 0.3 < 0.9 < peaked

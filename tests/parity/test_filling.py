"""Filling masks (G2): against transformers' pipeline, an exhaustive search, and T5's own generation; the command."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from typer.testing import CliRunner

import atento
from atento.base.errors import CapabilityError, UsageError
from atento.decoding import Beam, generate
from atento.model import Model
from atento.networks import Decoder, Encoder, EncoderDecoder, presets
from atento.tasks.mask_filling import fill_each
from atento.text import Tokenizer
from atento.text.specials import sentinels
from atento_cli.main import application
from failing import fails
from fine_tuning import write_bert

WORDS = ["o", "gato", "está", "no", "tapete", "dorme", "##ndo", "casa", "."]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked BERT of random weights in the Hugging Face layout."""
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 16}
    return write_bert(tmp_path_factory.mktemp("bert"), "MaskedLM", WORDS, **sizes, initializer_range=0.5)


def test_g2_each_mask_by_itself_is_that_of_transformers(bert: Path) -> None:
    """Of one text with two masks, and of one with one: tokens, probabilities and whole sequences, no special tokens."""
    model, texts = atento.load(bert), ["o [MASK] [MASK] .", "O gato está no [MASK]."]
    stock = transformers.pipeline("fill-mask", model=str(bert))(texts, top_k=len(WORDS) + 5)
    found = fill_each(model, texts, top=len(WORDS))
    assert [len(of_masks) for of_masks in found] == [2, 1]
    alone = [[model.fill(texts[1], top=len(WORDS))]]
    for masks, theirs in zip(found + alone, (stock[0], [stock[1]], [stock[1]])):
        for candidates, entries in zip(masks, theirs, strict=True):
            expected = [entry for entry in entries if not entry["token_str"].startswith("[")]
            assert [one.token for one in candidates] == [entry["token_str"] for entry in expected]
            assert [one.probability for one in candidates] == pytest.approx([e["score"] for e in expected], rel=1e-4)
            ours = [one.text.replace(" ", "") for one in candidates]  # theirs cleans no spaces
            assert ours == [entry["sequence"].replace(" ", "") for entry in expected]
    assert "o gato está no tapete." in [candidate.text for candidate in alone[0][0]]
    fails(UsageError, "`top` must be an integer of at least 1: got 0", fill_each, model, ["o [MASK] ."], top=0)
    [only] = fill_each(model, ["o [MASK] [MASK] ."], top=5, targets=["gato"])
    assert [[one.token for one in candidates] for candidates in only] == [["gato"], ["gato"]]


def test_g2_several_masks_are_filled_as_by_an_exhaustive_search(bert: Path) -> None:
    """Every pair of tokens by the chain rule: p(first) p(second | first)."""
    model = atento.load(bert, precision="float64")
    assert isinstance(model.network, Encoder) and model.tokenizer is not None
    candidates = model.fill("o [MASK] [MASK] .", top=len(WORDS) ** 2)
    first = len(model.tokenizer.specials.ids)
    ids = model.tokenizer.with_specials(model.tokenizer.encode_with_mask("o [MASK] [MASK] ."))[0]
    scores = {}
    for one, two in itertools.product(range(len(WORDS)), repeat=2):
        row = list(ids)
        total = 0.0
        for position, token in ((2, one + first), (3, two + first)):
            with torch.no_grad():
                logits = model.network(torch.tensor([row])).logits
            assert logits is not None
            total += float(logits[0, position].log_softmax(-1)[token])
            row[position] = token
        scores[row[2], row[3]] = total
    order = sorted(scores, key=lambda pair: -scores[pair])
    expected = [float(torch.tensor(scores[pair], dtype=torch.float64).exp()) for pair in order]
    assert [candidate.probability for candidate in candidates] == pytest.approx(expected, rel=1e-9)
    assert candidates[0].token == " ".join(model.tokenizer.decode([token]).strip() for token in order[0])
    (once,) = model.fill("o [MASK] [MASK] .", iterations=1)
    assert "[MASK]" not in once.text


def test_g2_a_text_does_not_depend_on_the_others(bert: Path) -> None:
    model = atento.load(bert)
    texts = ["o [MASK] .", "o gato está no [MASK] [MASK] .", "[MASK]"]
    for alone, together in zip([model.fill(text, top=3) for text in texts], model.fill(texts, top=3)):
        assert [candidate.text for candidate in alone] == [candidate.text for candidate in together]
        expected = [candidate.probability for candidate in together]
        assert [candidate.probability for candidate in alone] == pytest.approx(expected, rel=1e-5)


def test_g2_a_t5_writes_the_span_of_each_sentinel() -> None:
    """The candidates are the outputs of a beam over the ids; their texts are restored by hand."""
    tokenizer = Tokenizer.from_vocabulary("word", ["o", "gato", "está", "no", "tapete"], extra_specials=sentinels(4))
    torch.manual_seed(1)
    special = {role: getattr(tokenizer, f"{role}_id") for role in ("pad", "bos", "eos", "unk", "mask")}
    sizes: dict[str, Any] = {"d_model": 16, "d_ff": 24, "n_heads": 2, "n_layers": 1, "n_decoder_layers": 1}
    sizes |= {"attention": {"d_head": 8}, "ids": special | {"start": tokenizer.pad_id}}
    network = EncoderDecoder(presets.t5_small(vocab_size=tokenizer.vocab_size, **sizes)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(4)
    model = Model(network, tokenizer, {"task": "span-corruption", "name": "tiny"}, None)
    candidates = model.fill("o <extra_id_0> está no <extra_id_1>", top=3)
    source = torch.tensor([[*tokenizer.encode_with_mask("o <extra_id_0> está no <extra_id_1>"), tokenizer.eos_id]])
    limit = 2 * (source.shape[1] - 1) + 16  # EOS is not counted
    hypotheses = generate(network, source, Beam(width=4, n_best=3, length_penalty=0.0), max_new_tokens=limit)[0]
    expected = [math.exp(hypothesis.log_prob) for hypothesis in hypotheses]
    assert [candidate.probability for candidate in candidates] == pytest.approx(expected, rel=1e-4)
    spans: dict[int, list[int]] = {}
    current: list[int] = []
    for token in hypotheses[0].ids:
        if token in tokenizer.specials.ids.values() and tokenizer.tokens([token])[0].startswith("<extra_id_"):
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    filled = [part for token in source[0, :-1].tolist() for part in spans.get(token, [] if 5 <= token < 9 else [token])]
    assert candidates[0].text == tokenizer.decode(filled)


def test_g2_what_cannot_be_filled_is_refused(bert: Path) -> None:
    model = atento.load(bert)
    fails(UsageError, r"text 1 has no \[MASK\] to fill: 'o gato'", model.fill, ["o [MASK]", "o gato"])
    said = "text 0 has 22 tokens, and the model reads at most 16"
    fails(UsageError, said, model.fill, "[MASK]" + " gato" * 19)
    fails(UsageError, "must be integers of at least 1: got 0", model.fill, "[MASK]", top=0)
    assert "[CLS]" not in [candidate.token for candidate in model.fill("[MASK] [CLS]", top=9)]
    decoder = Decoder(presets.gpt2(vocab_size=300, d_model=8, d_ff=8, n_heads=2, n_layers=1))
    writer = Model(decoder, Tokenizer.from_vocabulary("byte", []), {"task": "language-modeling"}, None)
    said = "filling masks takes a masked model, a T5 or a BART; this one can generate"
    fails(CapabilityError, said, writer.fill, "<mask>")


def test_g2_the_command_answers_line_by_line(bert: Path) -> None:
    def run(*flags: str) -> list[str]:
        done = CliRunner().invoke(application(), ["fill", str(bert), "-", *flags], input="o [MASK] .\n\nno [MASK]\n")
        assert done.exit_code == 0, done.output
        return done.stdout.splitlines()

    first, last = atento.load(bert).fill(["o [MASK] .", "no [MASK]"], top=2)
    assert run() == [first[0].text, "", last[0].text]
    tokens = [part.rsplit(" ", 1)[0] for part in run("--top", "2")[0].split("\t")]
    assert tokens == [candidate.token for candidate in first]
    records = [json.loads(line) for line in run("--json")]
    assert records[1] == {"text": "", "candidates": []} and len(records[0]["candidates"]) == 5
    probability = pytest.approx(last[0].probability)
    assert records[2]["candidates"][0] == {"token": last[0].token, "probability": probability, "text": last[0].text}

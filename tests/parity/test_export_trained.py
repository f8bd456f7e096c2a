"""Models trained here, in the Hugging Face layout: stock entry points on text give what we give; so does our reload."""

import json
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import atento
from atento.base.errors import AtentoWarning, CapabilityError
from atento.config.reading.loading import load_recipe
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import network_to_dict
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches.special_tokens import template_for
from atento.model import Model
from atento.networks import build_network
from atento.runs.model_config import model_config
from atento.runs.prepare import network_for, read_data
from atento.text import Tokenizer, train_tokenizer
from atento_world import write
from failing import fails
from folders import ids_of
from released_folders import randomised as randomised_matrices

pytestmark = pytest.mark.filterwarnings("ignore:.*text was cut.*")

MASKED, CAUSAL, PAIRS = "masked-language-modeling", "language-modeling", "translation"
SMALL = {"d_model": 16, "d_ff": 24, "n_heads": 2, "n_layers": 2, "max_len": 48}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (MASKED, {}) for name in ("bert-tiny", "roberta-base", "xlm-roberta-base")},
    "gpt1": (CAUSAL, {"d_ff": 64}),
    "gpt2": (CAUSAL, {}),
    "llama2-7b": (CAUSAL, {"attention": {"n_kv_heads": 1}}),
    **{name: (PAIRS, {"attention": {"d_head": 8}}) for name in ("t5-small", "t5-11-small", "mt5-small")},
    **{name: (PAIRS, {}) for name in ("bart-base", "marian")},
}
OF = {task: [name for name, (one, _) in FAMILIES.items() if one == task] for task in (MASKED, CAUSAL, PAIRS)}
TEXTS = ["o gato pulou alto", "  a menina  viu\to cão ", "ação, coração e avó!", "não <x> 12.5% 日本", "", "   ", "é"]
LEARNED = [text for pair in write("train", 80) for text in (pair.source, pair.target)]


@cache
def tokenizer(kind: str = "bpe") -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind=kind, vocab_size=420), LEARNED)  # type: ignore[arg-type]


_SEEDS: dict[tuple[str, str], int] = {}  # of the networks that `telling` found


def made(name: str, folder: Path, kind: str = "bpe", **decoding: Any) -> Model:
    """The model of a run with that preset, its weights random."""
    task, more = FAMILIES[name]
    recipe = {"task": task, "network": {"preset": name, **SMALL, **more}}
    recipe |= {"data": {"train": {"world": "train", "count": 10}}}
    loaded = load_recipe(recipe | {"decoding": {"beam": 3, "max_new_tokens": 12, **decoding}}).recipe
    config = network_for(loaded, tokenizer(kind), read_data(loaded, folder, lambda line: None).train)
    about = model_config(loaded, network_to_dict(config), template_for(task, tokenizer(kind)))
    known = (name, kind) in _SEEDS or kind != "bpe" or task == MASKED
    for seed in range(_SEEDS.get((name, kind), 0), 40):
        model = Model(randomised(build_network(config).eval(), tokenizer(kind), seed), tokenizer(kind), about, None)
        if known or telling(model):
            _SEEDS[name, kind] = seed
            return model
    raise AssertionError("no random network of forty writes different outputs, some of which end")


@torch.no_grad()
def randomised(network: Any, tokens: Tokenizer, seed: int) -> Any:
    """Large random matrices; special tokens and broken letters are not written, and outputs end here and there."""
    torch.manual_seed(seed)
    randomised_matrices(network)
    hidden = [tokens.token_id(f"<0x{i:02X}>") or 0 for i in range(256)]
    for key, table in network.named_parameters():
        if key in ("embedding.weight", "target_embedding.weight", "heads.vocabulary.output.weight"):
            table[[0, 1, 2, 4, *hidden]] = 0.0
            table[tokens.eos_id] *= 2.0
    return network


def telling(model: Model) -> bool:
    """Whether its outputs differ from text to text, and some end before they must."""
    write = model.translations if model.config["task"] == PAIRS else model.generations
    found = [one[0].hypothesis for one in write(LEARNED[:8], beam=1, max_new_tokens=9)]
    return len({tuple(one.ids) for one in found}) > 4 and any(one.finished and one.ids for one in found)


Saved = tuple[Model, Path]


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("export")
    model = made(request.param, folder)
    return model, model.save(folder / "out", layout="huggingface")


def stock(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


def refused(model: Model, out: Path, message: str) -> None:
    fails(CapabilityError, message, model.save, out, layout="huggingface")


def rows(model: Model, texts: list[str]) -> list[list[int]]:
    """The texts as the model reads them, by hand."""
    task, tokens = model.config["task"], model.tokenizer
    assert tokens is not None
    before = [] if task == PAIRS else [tokens.bos_id]
    after = [] if task == CAUSAL else [tokens.eos_id]
    return [[*before, *tokens.encode(text), *after] for text in texts]


def test_w3_auto_tokenizer_gives_our_ids_and_our_reload_what_the_run_gave(saved: Saved) -> None:
    model, folder = saved
    peer, texts = stock(folder), [*TEXTS, *LEARNED[:40]]
    ids = rows(model, texts)
    assert peer(texts)["input_ids"] == ids
    assert peer(texts, add_special_tokens=False)["input_ids"] == [model.tokenizer.encode(t) for t in texts]  # type: ignore[union-attr]
    assert peer.batch_decode(ids, skip_special_tokens=True) == [model.tokenizer.decode(row) for row in ids]  # type: ignore[union-attr]
    again = atento.load(folder)
    assert again.tokenizer is not None and model.tokenizer is not None
    assert [ids_of(again, text) for text in texts] == ids
    first, second = (model.tokenizer.encode(text) for text in ("o gato", "a gata"))
    given = peer("o gato", "a gata", return_token_type_ids=True)
    segments = given["token_type_ids"] if "token_type_ids" in peer.model_input_names else [0] * len(given["input_ids"])
    assert (given["input_ids"], segments) == again.tokenizer.with_specials(first, second)
    for text in ("<mask> </s>", "<s>o <unk> gato<pad>"):  # the contract holds after a reload
        assert again.tokenizer.encode(text) == model.tokenizer.encode(text)
        assert not {0, 2, 3, 4} & set(again.tokenizer.encode(text))
    assert (again.config["task"], again.config["name"]) == (model.config["task"], model.config["name"])
    assert again.decoding == model.decoding
    np.testing.assert_allclose(again.embed(TEXTS), model.embed(TEXTS), atol=1e-6)
    if model.config["task"] == PAIRS:
        assert again.translate(TEXTS) == model.translate(TEXTS)
    if model.config["task"] == CAUSAL:
        assert again.generate(TEXTS) == model.generate(TEXTS)
    assert again.attend("o gato", *["a gata"] * (model.config["task"] == PAIRS)).tokens


@pytest.mark.parametrize("name", OF[MASKED])
def test_w3_fill_mask_and_masked_logits(name: str, tmp_path: Path) -> None:
    model = made(name, tmp_path)
    folder = model.save(tmp_path / "out", layout="huggingface")
    network = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    fill = transformers.pipeline("fill-mask", model=network, tokenizer=stock(folder), top_k=5)
    for text in ("o gato <mask> alto", "  a <mask>  viu o cão.", "<mask>", "ação e <mask>!"):
        ids = torch.tensor([[2, *model.tokenizer.encode_with_mask(text), 3]])  # type: ignore[union-attr]
        with torch.no_grad():
            logits = model.network(ids).logits[0]  # type: ignore[operator]
            theirs = network(**stock(folder)(text, return_tensors="pt")).logits[0]
        torch.testing.assert_close(theirs, logits, atol=1e-4, rtol=1e-4)
        best = torch.softmax(logits[ids[0].tolist().index(4)], -1).topk(5)
        found = fill(text)
        assert [one["token"] for one in found] == best.indices.tolist()
        assert [one["score"] for one in found] == pytest.approx(best.values.tolist(), rel=1e-3)


@pytest.mark.parametrize("name", OF[PAIRS])
def test_w3_generate_writes_our_translations(name: str, tmp_path: Path) -> None:
    """Greedy as asked for, and the model's own beam where `generate` is told nothing; one text and a batch."""
    model = made(name, tmp_path)
    folder = model.save(tmp_path / "out", layout="huggingface")
    peer, network = stock(folder), transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    texts = [text for text in [*TEXTS, *LEARNED[:8]] if text.strip()]  # a blank text is blank here, by contract
    greedy = {"num_beams": 1, "do_sample": False, "max_new_tokens": 9}
    given = [peer(text, return_tensors="pt") for text in texts]
    one = [peer.decode(network.generate(**inputs, **greedy)[0], skip_special_tokens=True) for inputs in given]
    assert one == model.translate(texts, beam=1, max_new_tokens=9) and len(set(one)) > 4
    found = network.generate(**peer(texts, return_tensors="pt", padding=True))
    whole = [i for i, row in enumerate(found) if 3 in row[1:]]  # of outputs that are cut theirs prefers other ones
    wanted = model.translate(texts)
    assert [peer.decode(found[i], skip_special_tokens=True) for i in whole] == [wanted[i] for i in whole] and whole


@pytest.mark.parametrize("name", OF[CAUSAL])
def test_w3_generate_and_text_generation_go_on_as_we_do(name: str, tmp_path: Path) -> None:
    model = made(name, tmp_path)
    folder = model.save(tmp_path / "out", layout="huggingface")
    peer, network = stock(folder), transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    texts = [*TEXTS, *LEARNED[:6]]
    greedy = {"num_beams": 1, "do_sample": False, "max_new_tokens": 9}
    wanted = [one[0].hypothesis.ids for one in model.generations(texts, beam=1, max_new_tokens=9)]
    batch = peer(texts, return_tensors="pt", padding=True)  # on the left, as the exported settings say
    for given in ([peer(text, return_tensors="pt") for text in texts], [batch]):
        found = [row[one["input_ids"].shape[1] :] for one in given for row in network.generate(**one, **greedy)]
        assert [row[:end].tolist() for row, end in zip(found, [[*row.tolist(), 3].index(3) for row in found])] == wanted
    texts = [text for text in texts if text.strip()]
    pipe = transformers.pipeline("text-generation", model=network, tokenizer=peer)
    shown = [one[0]["generated_text"].strip() for one in pipe(texts, return_full_text=False, **greedy)]
    assert shown == [text.strip() for text in model.generate(texts, beam=1, max_new_tokens=9)] and len(set(shown)) > 4


@pytest.mark.parametrize("name", OF[CAUSAL])
def test_stock_generate_ends_where_ours_does_if_nobody_says_where(name: str, tmp_path: Path) -> None:
    """A language model trained here goes on by 128 tokens at most; the export once said as many as it has positions."""
    model = made(name, tmp_path, beam=1, max_new_tokens=None)
    folder = model.save(tmp_path / "out", layout="huggingface")
    settings = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    places = None if name.startswith("llama") else model.network.config.max_len  # learned positions come to an end
    assert settings["max_new_tokens"] == min(128, places or 128) and "max_length" not in settings


@pytest.mark.parametrize("name", OF[PAIRS])
def test_a_decoder_as_deep_as_the_encoder_is_exported_however_it_is_said(name: str, tmp_path: Path) -> None:
    model = made(name, tmp_path)
    depth = model.network.config.n_layers
    model.network.config = replace(model.network.config, n_decoder_layers=depth)
    peer = transformers.AutoModelForSeq2SeqLM.from_pretrained(model.save(tmp_path / "out", layout="huggingface"))
    assert getattr(peer.config, "decoder_layers", getattr(peer.config, "num_decoder_layers", None)) == depth


@pytest.mark.parametrize("name", OF[MASKED])
def test_w3_sentence_transformers_encodes_as_we_embed(name: str, tmp_path: Path) -> None:
    """The mean over a masked model's last layer; with the model's own pooling, as the exported files say."""
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed (extra dev)")
    model = made(name, tmp_path)
    texts = [*TEXTS, " ".join(LEARNED[:20])]  # the last is longer than the network
    plain = model.save(tmp_path / "plain", layout="huggingface")
    model.config["embedding"] = {"pooling": "max", "normalize": True, "max_len": 20}
    pooled = model.save(tmp_path / "pooled", layout="huggingface")
    with warnings.catch_warnings(action="ignore"):
        for folder, options in ((plain, {"pooling": "mean", "normalize": False, "max_len": None}), (pooled, {})):
            found = library.SentenceTransformer(str(folder), device="cpu").encode(texts)
            np.testing.assert_allclose(found, model.embed(texts, **options), atol=1e-5)
            np.testing.assert_allclose(atento.load(folder).embed(texts), model.embed(texts, **options), atol=1e-6)
    assert atento.load(pooled).config["embedding"] == model.config["embedding"]


@pytest.mark.parametrize("kind", ["unigram", "character", "byte", "wordpiece", "word"])
def test_w3_every_kind_of_tokenizer_or_a_refusal(kind: str, tmp_path: Path) -> None:
    """Where decoding cannot be said, a model that writes is refused; one that reads is not."""
    reader = made("bert-tiny", tmp_path, kind)
    folder = reader.save(tmp_path / "reader", layout="huggingface")
    assert stock(folder)([*TEXTS, *LEARNED[:40]])["input_ids"] == rows(reader, [*TEXTS, *LEARNED[:40]])
    writer = made("gpt2", tmp_path, kind)
    if kind in ("word", "wordpiece"):
        refused(writer, tmp_path / "writer", f"cannot express where a {kind} tokenizer puts spaces")
        assert not (tmp_path / "writer").exists()
        return
    peer = stock(writer.save(tmp_path / "writer", layout="huggingface"))
    ids = rows(writer, [*TEXTS, *LEARNED[:40]])
    unk = writer.tokenizer.unk_id  # type: ignore[union-attr]
    ids = [[i for i in row if i != unk] for row in ids]  # theirs is hidden with the other special tokens, ours is seen
    assert peer.batch_decode(ids, skip_special_tokens=True) == [writer.tokenizer.decode(row) for row in ids]  # type: ignore[union-attr]


def test_w3_what_the_layout_cannot_say_is_refused(tmp_path: Path) -> None:
    """Word vectors, for their network and not their tokenizer; another layer; prompts read in both directions."""
    recipe = {"task": "cbow", "data": {"train": {"world": "train", "count": 20}}, "training": {"steps": 2}}
    model = atento.load(atento.train(recipe, out=tmp_path / "run", threads=1).folder)
    refused(model, tmp_path / "out", "only networks of a released family")
    model = made("bert-tiny", tmp_path)
    model.config["embedding"] = {"layer": 0}
    refused(model, tmp_path / "out", "pools the last layer only: got layer 0")
    model = made("gpt2", tmp_path)  # theirs would read a prompt causally; one that was trained both ways does so too
    model.config |= {"task": "prefix-language-modeling", "objectives": ["prefix"]}
    refused(model, tmp_path / "out", "no decoder that reads a prompt in both directions")
    model.config["objectives"] = ["prefix", "causal"]
    model.save(tmp_path / "out", layout="huggingface")


NOT_FOLLOWED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("gpt2", {"repetition_penalty": 1.5}, ["count_prompt"]),  # theirs counts a prompt
    ("gpt2", {"repetition_penalty": 1.5, "count_prompt": True}, []),
    ("bart-base", {"no_repeat_ngrams": 2}, []),
    ("bart-base", {"no_repeat_ngrams": 2, "count_prompt": True}, ["count_prompt"]),
    ("gpt2", {"presence_penalty": 1.0, "min_new_tokens": 2}, ["presence_penalty"]),
    ("bart-base", {"banned_words": ["gato"], "prefix": "O"}, ["banned_words", "prefix"]),
    ("bart-base", {"n_best": 2, "until": "sure", "length_penalty": 0.5}, ["n_best"]),
    ("bart-base", {"groups": 3, "diversity": 0.5}, ["groups", "diversity"]),
    ("gpt2", {"beam": 1, "sample": True, "top_k": 3, "top_p": 0.9, "seed": 7}, []),
    ("gpt2", {"beam": 1, "exact": True}, ["exact"]),
    ("gpt2", {"mbr": "bleu", "candidates": 4}, ["mbr"]),
]


@pytest.mark.parametrize(("name", "decoding", "lost"), NOT_FOLLOWED)
def test_options_of_decoding_that_generate_does_not_follow_are_said(
    name: str, decoding: Any, lost: Any, tmp_path: Path
) -> None:
    model = made(name, tmp_path)
    model.config["decoding"] = {"beam": 3, "max_new_tokens": 12, **decoding}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        folder = model.save(tmp_path / "out", layout="huggingface")
    found = [str(one.message) for one in said if "does not follow" in str(one.message)]
    assert bool(found) == bool(lost) and len(found) < 2
    assert not found or [name for name in model.decoding.__dict__ if f"decoding.{name}" in found[0]] == lost
    transformers.GenerationConfig.from_pretrained(folder).validate(strict=True)


def test_a_temperature_of_zero_is_greedy_search_in_their_settings(tmp_path: Path) -> None:
    """Their `generate` refuses it."""
    model = made("gpt2", tmp_path)
    model.config["decoding"] = {"beam": 1, "temperature": 0.0, "max_new_tokens": 9}
    folder = model.save(tmp_path / "out", layout="huggingface")
    peer, network = stock(folder), transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    inputs = peer(LEARNED[0], return_tensors="pt")
    written = peer.decode(network.generate(**inputs)[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert written.strip() == model.generate(LEARNED[0]).strip()


def test_an_encoder_with_a_head_of_span_boundaries_is_exported_without_it(tmp_path: Path) -> None:
    """Only training reads it; published SpanBERT has none either."""
    model = made("bert-tiny", tmp_path)
    config = replace(model.network.config, heads=(*model.network.config.heads, HeadConfig("span-boundary")))
    weights = model.network.state_dict()
    model.network = build_network(config).eval()
    model.network.load_state_dict(weights, strict=False)
    folder = model.save(tmp_path / "out", layout="huggingface")
    network = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    ids = torch.tensor(rows(model, TEXTS[:1]))
    with torch.no_grad():
        torch.testing.assert_close(network(ids).logits, model.network(ids).logits, atol=1e-4, rtol=1e-4)  # type: ignore[operator]


def test_long_texts_are_cut_in_transformers_where_they_are_here(tmp_path: Path) -> None:
    """And what has no place there is said: windows, and the temperature of the probabilities."""
    model, folder = fine_tuned("bert-tiny", tmp_path, "classification", {"labels": "tense"}, max_len=12)
    peer = transformers.pipeline("text-classification", model=str(folder), truncation=True)
    text = " ".join(LEARNED[:6])
    with pytest.warns(UserWarning, match="cut to 12 tokens"):
        ours = model.classify(text)
    (theirs,) = peer([text])
    assert (ours.name, ours.probability) == (theirs["label"], pytest.approx(theirs["score"], abs=1e-5))
    model.config |= {"long_texts": {"windows": "mean"}, "confidence": {"temperature": 2.0}}
    with pytest.warns(AtentoWarning, match="does not follow long_texts, confidence.temperature of this model"):
        model.save(tmp_path / "again", layout="huggingface")


def fine_tuned(
    name: str, folder: Path, task: str, source: dict[str, str], network: dict[str, Any] | None = None, **data: Any
) -> tuple[Model, Path]:
    """A model trained by a few updates from that one, on those labels; its folder in the Hugging Face layout."""
    init = made(name, folder).save(folder / "init", layout="huggingface")
    training = {"steps": 4, "batch_tokens": 32, "learning_rate": 1e-2, "validate_every": 4, "checkpoint_every": 4}
    given = {"task": task, "init": str(init), "training": training | {"precision": "float32"}, "network": network or {}}
    given["data"] = {key: {"world": "train", "count": 60, **source} for key in ("train", "valid")} | data
    model = atento.load(atento.train(given, out=folder / "run", threads=1).folder)
    return model, model.save(folder / "out", layout="huggingface")


def read_again(model: Model, ids: torch.Tensor) -> torch.Tensor:
    """What the head reads of the decoder, which reads the text again."""
    target = torch.cat([torch.tensor([[model.network.config.start_id]]), ids[:, :-1]], dim=1)
    (head,) = model.network.config.heads
    return model.network.read(head.name, model.network(ids, target, project=False))  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("name", ["t5-small", "mt5-small"])
def test_g2_w3_a_tagger_made_of_t5_is_its_encoder_in_their_class(name: str, tmp_path: Path) -> None:
    """The decoder, which tags nothing, is left out; the tags are theirs on our ids, and those of our reload."""
    model, folder = fine_tuned(name, tmp_path, "tagging", {"labels": "pos", "text": "pt"}, max_len=40)
    (head,) = model.network.config.heads
    peer = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
    assert type(peer).__name__ == {"t5": "T5", "mt5": "MT5"}[name.split("-")[0]] + "ForTokenClassification"
    texts = sorted(LEARNED, key=len)[:20]  # whole in one window
    again = atento.load(folder)
    assert again.network.config.architecture == "encoder"
    said = [[(word.start, word.label) for text in one.tag(texts) for word in text] for one in (again, model)]
    assert said[0] == said[1] and len({label for _, label in said[0]}) > 1
    for ids in rows(again, texts):
        with torch.no_grad():
            wanted = peer(input_ids=torch.tensor([ids])).logits
            out = model.network(torch.tensor([ids]), project=False)  # type: ignore[operator]
            found = model.network.read(head.name, out)
        torch.testing.assert_close(found, wanted, atol=2e-4, rtol=2e-4)


def test_g3_w3_bart_answers_by_its_decoder_as_their_class(tmp_path: Path) -> None:
    """A new head for answers stands where BART's class has it; answers are those of our reload, scores theirs."""
    source = {"labels": "answers", "text": "pt"}
    model, folder = fine_tuned("bart-base", tmp_path, "question-answering", source, max_len=48, stride=16)
    (head,) = model.network.config.heads
    assert head.side == "both"
    peer = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    assert type(peer).__name__ == "BartForQuestionAnswering"
    questions, contexts = ["Quem?"] * 12, sorted(LEARNED, key=len)[:12]
    again = atento.load(folder)
    said = [[(answer.start, answer.text) for answer in one.answer(questions, contexts)] for one in (again, model)]
    assert said[0] == said[1] and len(set(said[0])) > 1
    kept = ("max_len", "answering", "columns", "pairs", "prefixes", "objectives")
    assert {key: again.config.get(key) for key in kept} == {key: model.config.get(key) for key in kept}
    assert again.config["answering"]["stride"] == 16 and again.network.config.ids == model.network.config.ids
    ids = torch.tensor([stock(folder)(questions[0], contexts[0])["input_ids"]])
    with torch.no_grad():
        wanted, found = peer(input_ids=ids), read_again(model, ids)
    torch.testing.assert_close(found, torch.stack([wanted.start_logits, wanted.end_logits], -1), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_g1_w3_t5_classifies_by_its_decoder_as_their_class_where_a_recipe_says_so(kind: str, tmp_path: Path) -> None:
    source = {"labels": {"classification": "tense", "regression": "similarity"}[kind], "text": "pt"}
    names = {"labels": ["future", "past", "present"]} if kind == "classification" else {}
    network: dict[str, Any] = {"architecture": "encoder-decoder"}
    network |= {"heads": [{"kind": kind, **names, "pooling": "last", "hidden": True, "side": "both"}]}
    model, folder = fine_tuned("t5-small", tmp_path, kind, source, network, max_len=64)
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert type(peer).__name__ == "T5ForSequenceClassification"
    for ids in rows(atento.load(folder), LEARNED[:8]):
        with torch.no_grad():
            wanted, found = peer(input_ids=torch.tensor([ids])).logits, read_again(model, torch.tensor([ids]))
        torch.testing.assert_close(found, wanted, atol=2e-4, rtol=2e-4)

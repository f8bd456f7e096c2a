"""Released translators beside `transformers`: languages, a vocabulary a side (K2), targets of training."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import atento
from atento.base.errors import CapabilityError, ModelError, RecipeError, TokenizerError, UsageError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import InputConfig
from atento.models.transplant import extended
from atento_cli.convert.engines import convert_for
from atento_world import write
from failing import fails
from fine_tuning import batches_of
from folders import edited, ids_of
from released_folders import _SEQ2SEQ, TEXTS, TOKENIZERS, _scored, _spm, randomised, write_released
from translator_folders import LIMIT, SOME, TRANSLATORS, expected, greedy, write_translator

OPTIONS: dict[str, Any] = {"greedy": True, "max_new_tokens": LIMIT}
Both = Callable[[str], tuple[Any, Any, Path]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """name -> their tokenizer and network of random weights, and the folder of both."""

    @cache
    def make(name: str) -> tuple[Any, Any, Path]:
        folder = tmp_path_factory.mktemp(name)
        return *write_translator(name, folder), folder

    return make


@pytest.mark.parametrize("name", TRANSLATORS)
def test_outputs_are_those_of_transformers(name: str, both: Both) -> None:
    tokenizer, network, folder = both(name)
    source, target, first = (getattr(TRANSLATORS[name], key) for key in ("source", "target", "first"))
    model = atento.load(folder)
    found = model.translate(SOME, source_language=source, target_language=target, **OPTIONS)
    assert [line.strip() for line in found] == expected(name, tokenizer, network, source, target, SOME)
    assert "".join(model.stream(SOME[0], source_language=source, target_language=target, **OPTIONS)) == found[0]
    # whatever was saved with the model says the same
    default = model.translate(SOME, target_language=target.replace("_", "-").upper(), **OPTIONS)
    assert default == model.translate(SOME, source_language=first, target_language=target, **OPTIONS) != found
    if TRANSLATORS[name].starts:
        fails(CapabilityError, "with ro_RO: got 'de_DE'", model.translate, SOME, target_language=source, **OPTIONS)
    else:
        assert found != model.translate(SOME, source_language=target, target_language=source, **OPTIONS)


@pytest.mark.parametrize("layout", ["atento", "huggingface"])
@pytest.mark.parametrize("name", ["m2m_100", "mbart"])
def test_a_saved_translator_with_sentencepiece_files_alone(name: str, layout: str, both: Both, tmp_path: Path) -> None:
    """Read again from either layout, and by transformers."""
    model, languages = atento.load(both(name)[2]), {"target_language": TRANSLATORS[name].target}
    saved = model.save(tmp_path / "saved", layout=layout)
    assert not (saved / "tokenizer.json").exists() or name == "mbart"
    assert atento.load(saved).translate(SOME, **languages, **OPTIONS) == model.translate(SOME, **languages, **OPTIONS)
    if layout == "huggingface":
        peer = hf.AutoTokenizer.from_pretrained(saved)
        for text in SOME:
            assert peer(text)["input_ids"] == ids_of(model, text)
        hf.AutoModelForSeq2SeqLM.from_pretrained(saved)


def test_wrong_languages_are_refused(both: Both, tmp_path: Path) -> None:
    model = atento.load(both("nllb")[2])
    said = "`target_language`: the model has no language 'por_Latin'.*por_Latn"
    fails(UsageError, said, model.translate, "a", target_language="por_Latin")
    fails(UsageError, "the model has no language 'en'", model.translate, "a", source_language="en")
    plain = atento.load(write_released("bart", tmp_path / "bart"))
    said = "`source_language`: this model is not multilingual: its tok"
    fails(CapabilityError, said, plain.translate, "a", source_language="eng_Latn")
    # in the settings of a folder with SentencePiece files alone, of both ways to read them
    for name in ("m2m_100", "mbart"):
        folder = tmp_path / name
        shutil.copytree(both(name)[2], folder)
        (folder / "tokenizer_config.json").write_text('{"src_lang": "xx"}', encoding="utf-8")
        fails(TokenizerError, rf"{folder}: `src_lang` must be .*: got 'xx", atento.load, folder)


def test_marian_reads_the_target_language_before_the_source(tmp_path: Path) -> None:
    folder = write_released("marian", tmp_path / "marian")
    vocabulary = json.loads((folder / "vocab.json").read_text())
    last = next(piece for piece, number in vocabulary.items() if number == len(vocabulary) - 2)
    vocabulary = {">>por<<" if piece == last else piece: number for piece, number in vocabulary.items()}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False))
    model = atento.load(folder)
    peer, network = hf.MarianTokenizer.from_pretrained(folder), hf.MarianMTModel.from_pretrained(folder).eval()
    wanted = greedy(peer, network, [f">>por<< {text}" for text in SOME])
    found = model.translate(SOME, target_language="por", **OPTIONS)
    assert [line.replace("<unk>", "").split() for line in found] == [line.split() for line in wanted]  # theirs drops it
    fails(CapabilityError, "told the target language only", model.translate, "a", source_language="por")


def write_pair(folder: Path) -> tuple[Any, Any]:
    """A folder with `vocab.json`, a longer `target_vocab.json`, and their tokenizer and network."""
    folder.mkdir()
    sizes = {}
    for side, table, few in (("source", "vocab.json", 9), ("target", "target_vocab.json", 0)):
        model = _spm(folder, side)
        pieces = [piece for piece, _ in _scored(model)]
        known = dict.fromkeys(["</s>", "<unk>", "<pad>", *pieces[: len(pieces) - few]])
        vocabulary = {piece: i for i, piece in enumerate(known)}
        (folder / table).write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
        model.rename(folder / f"{side}.spm")
        sizes[side] = len(vocabulary)
    settings = {"separate_vocabs": True, "tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "pt"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    ids = {"eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 2, "decoder_start_token_id": 2}
    made = {"vocab_size": sizes["source"], "decoder_vocab_size": sizes["target"], "scale_embedding": True}
    config = hf.MarianConfig(**made, share_encoder_decoder_embeddings=False, **_SEQ2SEQ, **ids)
    torch.manual_seed(0)
    network = randomised(hf.MarianMTModel(config).eval(), but="embed_positions")
    network.save_pretrained(folder)
    return hf.MarianTokenizer.from_pretrained(folder), network


def test_k2_two_vocabularies_translate_as_transformers_and_are_saved(tmp_path: Path) -> None:
    """Here, from our own layout and from theirs again; a tokenizer that is longer than its side is refused."""
    tokenizer, network = write_pair(tmp_path / "theirs")
    model = atento.load(tmp_path / "theirs", device="cpu")
    config = model.network.config
    assert config.target_vocab_size == config.vocab_size + 9
    assert model.load_report is not None and not model.load_report.unread
    wanted = greedy(tokenizer, network, SOME)
    assert model.translate(SOME, **OPTIONS) == wanted and len(set(wanted)) > 1
    for layout in ("atento", "huggingface"):
        again = atento.load(model.save(tmp_path / layout, layout=layout), device="cpu")
        assert again.translate(SOME, **OPTIONS) == wanted
    peer = hf.MarianMTModel.from_pretrained(tmp_path / "huggingface").eval()
    assert greedy(hf.MarianTokenizer.from_pretrained(tmp_path / "huggingface"), peer, SOME) == wanted
    fails(CapabilityError, "a network with two vocabularies", extended, model.network, 600)
    count = len(edited(tmp_path / "theirs" / "target_vocab.json", more=config.target_vocab_size))
    fails(TokenizerError, f"{count} pieces and .* {count - 1}", atento.load, tmp_path / "theirs")


@pytest.mark.parametrize("init", [True, False])
def test_k2_two_vocabularies_are_trained(init: bool, tmp_path: Path) -> None:
    """From the model, and anew with its tokenizer: targets have ids above the vocabulary of the sources."""
    write_pair(tmp_path / "theirs")
    (tmp_path / "d.tsv").write_text("".join(f"{text}\t{text}\n" for text in TEXTS[:40]), encoding="utf-8")
    tiny = {"n_layers": 1, "d_model": 16, "d_ff": 16, "n_heads": 2, "embedding": {"shared": False}}
    data = {"train": {"file": str(tmp_path / "d.tsv"), "source": 0, "target": 1}}
    recipe: dict[str, Any] = {"task": "translation", "data": data, "training": {"steps": 2, "learning_rate": 1e-3}}
    theirs = str(tmp_path / "theirs")
    recipe |= {"init": theirs} if init else {"tokenizer": theirs, "network": tiny}
    model = atento.load(atento.train(recipe, out=tmp_path / "run").folder, device="cpu")
    assert model.network.config.target_vocab_size == model.network.config.vocab_size + 9
    assert len(model.translate(SOME, **OPTIONS)) == len(SOME)
    if not init:
        recipe["network"]["embedding"]["target_vocab_size"] = 7
        said = r"`network\.embedding\.target_vocab_size` must be .* tokenizer's: got 7"
        fails(RecipeError, said, atento.train, recipe, out=tmp_path / "other")


@pytest.mark.parametrize("engine", ["ctranslate2", "onnx"])
def test_k2_two_vocabularies_in_other_engines(engine: str, tmp_path: Path) -> None:
    write_pair(tmp_path / "theirs")
    converted = convert_for(tmp_path / "theirs", tmp_path / "out", engine)
    assert converted.comparison is not None and converted.comparison.max_difference < 5e-4


def test_a_second_size_needs_a_second_table() -> None:
    fails(RecipeError, r"`embedding\.shared` false: got 9 and true", InputConfig, target_vocab_size=9)
    said = r"`embedding\.target_vocab_size` belongs to an encoder-decoder"
    table = InputConfig(shared=False, target_vocab_size=8)
    fails(RecipeError, said, NetworkConfig, architecture="decoder", vocab_size=9, embedding=table)


def test_an_id_above_the_written_vocabulary_is_refused(tmp_path: Path) -> None:
    write_pair(tmp_path / "theirs")
    folder = atento.load(tmp_path / "theirs").save(tmp_path / "ours")
    (folder / "MANIFEST.json").unlink()
    data = json.loads((folder / "config.json").read_text())
    data["network"]["ids"]["start"] = data["network"]["embedding"]["target_vocab_size"]
    (folder / "config.json").write_text(json.dumps(data))
    fails(ModelError, r"network\.ids\.start must be below network\.vocab_size", atento.load, folder)


PAIRS = [(pair.source, pair.target) for pair in write("train", 6)]


def folder_of(name: str, folder: Path) -> Path:
    """A released folder; one of languages names none, as those that are not told them."""
    if name == "pegasus":
        peer = TOKENIZERS["pegasus"]()
        peer.save_pretrained(folder)
        ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
        torch.manual_seed(0)
        config = hf.PegasusConfig(vocab_size=len(peer), **_SEQ2SEQ, **ids)  # <unk_2> ... are tokens too
        hf.PegasusForConditionalGeneration(config).save_pretrained(folder)
    elif name in ("m2m_100", "mbart50"):
        write_translator(name, folder)
    else:
        write_released(name.partition(",")[0], folder)
    if "forced" in name:
        edited(folder / "generation_config.json", forced_bos_token_id=0)
    return folder


def their_labels(peer: Any, name: str, target: str) -> list[int]:
    if name == "m2m_100":
        peer.tgt_lang = "pt"
    labels: list[int] = peer(text_target=target)["input_ids"]
    return labels[1:] if name in ("m2m_100", "mbart50") else labels  # theirs have a language that nobody named


def recipe_of(folder: Path, place: Path, **init: Any) -> Path:
    (place / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), encoding="utf-8")
    file = {"file": str(place / "pairs.tsv"), "source": 0, "target": 1}
    training = {"steps": 1, "learning_rate": 1e-12, "precision": "float32", "warmup": 0, "baseline": False}
    content = {"task": "text-to-text", "data": {"train": file, "valid": file}, "init": {"model": str(folder), **init}}
    content |= {"training": training | {"validate_every": 1, "checkpoint_every": 1}, "metrics": ["exact-match"]}
    content |= {"decoding": {"beam": 1, "max_new_tokens": 7}}
    (place / "r.yaml").write_text(json.dumps(content, indent=1), encoding="utf-8")
    return place / "r.yaml"


@pytest.mark.parametrize("name", ["bart", "bart, forced", "t5", "marian", "pegasus", "m2m_100", "mbart50"])
def test_targets_are_the_labels_of_transformers(name: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path / "released")
    batches, network, _ = batches_of(recipe_of(folder, tmp_path))
    peer = hf.AutoTokenizer.from_pretrained(folder)
    found, read = set(), set()
    for batch in batches.in_order(1000):
        for labels, ids in zip(batch.labels["vocabulary"].tolist(), batch.inputs["target_ids"].tolist()):
            kept = [label for label in labels if label >= 0]
            found.add(tuple(kept))
            read.add(tuple(ids[: len(kept)]))
    wanted = [their_labels(peer, name, target) for _, target in PAIRS]
    assert found == set(map(tuple, wanted)) and read == {(network.start_id, *labels[:-1]) for labels in wanted}


@pytest.mark.parametrize("name", ["bart", "bart, forced", "t5"])
def test_one_rule_in_training_and_use(name: str, tmp_path: Path) -> None:
    """The loss of validation is that of their labels; so is the perplexity of the model and of its export."""
    folder = folder_of(name, tmp_path / "released")
    theirs, peer = hf.AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), hf.AutoTokenizer.from_pretrained(folder)
    total, count = 0.0, 0
    for source, target in PAIRS:
        given = peer(source, text_target=target, return_tensors="pt")
        size = given["labels"].shape[1]
        with torch.no_grad():
            total += float(theirs(**given).loss) * size
        count += size
    trained = atento.train(recipe_of(folder, tmp_path), out=tmp_path / "run", threads=1)
    rows = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    assert next(row["nll"] for row in rows if row["event"] == "valid") == pytest.approx(total / count, abs=1e-4)
    model = atento.load(trained.folder, device="cpu")
    scores = model.score([source for source, _ in PAIRS], [target for _, target in PAIRS])
    first = 1 if name.startswith("bart") else 0  # the token that every output begins with is given, not scored
    assert sum(len(score.ids) for score in scores) == count - first * len(PAIRS)
    out = model.save(tmp_path / "out", layout="huggingface")
    assert json.loads((out / "generation_config.json").read_text()).get("forced_bos_token_id") == (0 if first else None)

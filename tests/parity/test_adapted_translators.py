"""Released translators adapted: own pairs in their languages, new languages, and back to transformers."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import atento
from atento.base.errors import RecipeError
from atento.config.reading.loading import load_recipe
from atento.config.reading.recipe_layers import shipped, shipped_text
from atento.models.transplant import is_by_token
from atento.runs.prepare import read_data, tokenizer_and_network
from atento.storage.vectors import read_vectors
from atento.text.glossary import Glossary, Term
from atento.text.new_languages import in_languages
from atento.text.tokenizer import Tokenizer
from atento_world import write
from fine_tuning import batches_of
from folders import edited, ids_of
from published_translators import write_published
from released_folders import write_released
from translator_folders import write_translator

PAIRS = [(pair.source, pair.target) for pair in write("train", 12)]
TEXTS = [source for source, _ in PAIRS[:4]]
# layout -> the languages of the pairs, a new language, and its token
LANGUAGES = {
    "nllb": ("eng_Latn", "por_Latn", "tyv_Cyrl", "tyv_Cyrl"),
    "m2m_100": ("en", "pt", "tyv", "__tyv__"),
    "mbart50": ("en_XX", "pt_XX", "tyv_RU", "tyv_RU"),
    "mbart": ("en_XX", "ro_RO", "tyv_RU", "tyv_RU"),
    "marian of languages": (None, "por", "glg", ">>glg<<"),
}
SHIPPED = {"nllb": "nllb", "m2m100": "m2m_100", "mbart50": "mbart50", "marian": "marian of languages"}  # adapt-NAME
SHORT = ("steps=1", "warmup=0", "validate_every=1", "checkpoint_every=1", "precision=float32", "baseline=false")
Recipe = Callable[..., Path]


def _second(name: str) -> str:
    return name.replace("tyv", "kjh").replace("glg", "oci")


def _token_of(name: str, language: str) -> str:
    return {"m2m_100": f"__{language}__", "marian of languages": f">>{language}<<"}.get(name, language)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs, and a released folder of each layout."""
    place = tmp_path_factory.mktemp("released")
    (place / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), encoding="utf-8")
    for name in LANGUAGES:
        _ = write_translator(name, place / name) if name == "mbart" else write_published(name, place / name)
    write_released("marian", place / "one-pair")
    return place


@pytest.fixture
def recipe(place: Path, tmp_path: Path) -> Recipe:
    """Write a recipe: (model, keys of `init`, keys of `data`)."""

    def write(model: str | Path, init: dict[str, Any], **data: Any) -> Path:
        train = {"file": str(place / "pairs.tsv"), "source": 0, "target": 1}
        kept = {key: value for key, value in data.items() if value is not None}
        content = {"task": "translation", "data": {"train": train} | kept, "init": {"model": str(place / model)} | init}
        content["training"] = {"steps": 1, "learning_rate": 1e-9, "precision": "float32", "batch_tokens": 100}
        content["decoding"] = {"beam": 1, "max_new_tokens": 7}
        (tmp_path / "r.yaml").write_text(json.dumps(content, indent=1), encoding="utf-8")
        return tmp_path / "r.yaml"

    return write


@pytest.mark.parametrize("name", LANGUAGES)
def test_an_update_reads_the_ids_of_transformers(name: str, place: Path, recipe: Recipe) -> None:
    source, target, _, _ = LANGUAGES[name]
    lines, path = list[str](), recipe(name, {}, source_language=source, target_language=target)
    batches, network, _ = batches_of(path, report=lines.append)
    peer = hf.AutoTokenizer.from_pretrained(place / name)
    if source is not None:
        peer.src_lang, peer.tgt_lang = source, target
    before = "" if source is not None else f">>{target}<< "
    expected = set()
    for text, translated in PAIRS:
        labels = peer(text_target=translated)["input_ids"]
        labels = labels[:-1] if name == "mbart" else labels  # theirs also learns what stands behind EOS
        expected.add((tuple(peer(before + text)["input_ids"]), (network.start_id, *labels[:-1]), tuple(labels)))
    found = set()
    for batch in batches.in_order(1000):
        for row, labels in enumerate(batch.labels["vocabulary"]):
            lengths = {side: int(batch.lengths[side][row]) for side in ("source_ids", "target_ids")}
            ids = [tuple(batch.inputs[side][row, :n].tolist()) for side, n in lengths.items()]
            found.add((*ids, tuple(labels[: lengths["target_ids"]].tolist())))
    assert found == expected and not lines


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_new_language_begins_as_its_neighbour_and_goes_to_transformers(
    name: str, place: Path, recipe: Recipe, tmp_path: Path
) -> None:
    """Its rows are copies, the others stay; a run resumes, is trained again, and is read by transformers."""
    source, like, new, token = LANGUAGES[name]
    path = recipe(name, {"new_languages": {new: like, _second(new): like}}, source_language=source, target_language=new)
    atento.train(path, out=tmp_path / "run")
    atento.train(path, {"training.steps": 2}, out=tmp_path / "run")
    before, model = atento.load(place / name, device="cpu"), atento.load(tmp_path / "run", device="cpu")
    assert before.tokenizer is not None and model.tokenizer is not None
    ids = model.tokenizer.specials.ids
    known = _token_of(name, like)
    rows = max(before.network.config.vocab_size, before.tokenizer.vocab_size + 2)
    assert model.network.config.vocab_size == rows and ids[token] == before.tokenizer.vocab_size
    for key, table in model.network.state_dict().items():
        if is_by_token(key):
            torch.testing.assert_close(table[ids[token]], table[ids[known]], rtol=0, atol=1e-6)
            old = before.network.state_dict()[key][: ids[token]]
            torch.testing.assert_close(table[: ids[token]], old, rtol=0, atol=1e-6)
    texts, told = model.translate(TEXTS), {} if name == "mbart" else {"target_language": like}
    assert texts == model.translate(TEXTS, target_language=new)
    assert texts == before.translate(TEXTS, greedy=True, max_new_tokens=7, **told)
    assert ids[token] not in model.tokenizer.encode(f"{token} a")  # a text never makes it
    folder = model.save(tmp_path / "hf", layout="huggingface")
    peer, network = hf.AutoTokenizer.from_pretrained(folder), hf.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    assert peer.convert_tokens_to_ids(token) == ids[token]
    assert isinstance(peer, type(hf.AutoTokenizer.from_pretrained(place / name)))
    for text, written in zip(TEXTS, texts, strict=True):
        read = peer(text if source is not None else f"{token} {text}", return_tensors="pt")
        assert read["input_ids"][0].tolist() == ids_of(model, text)
        theirs = network.generate(**read, num_beams=1, max_new_tokens=7)
        assert peer.decode(theirs[0], skip_special_tokens=True).strip() == written.strip()
    again = atento.load(folder, device="cpu")
    assert again.translate(TEXTS, greedy=True, max_new_tokens=7) == texts
    assert again.load_report is not None and not again.load_report.unread
    # trained again without the keys: the same languages, nothing added
    atento.train(recipe(tmp_path / "run", {"train": "lora"}), out=tmp_path / "again")
    third = atento.load(tmp_path / "again", device="cpu")
    assert third.tokenizer is not None and third.tokenizer.specials.ids == ids
    assert third.network.config.vocab_size == rows and third.translate(TEXTS) == texts


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_and_the_keys_that_its_head_names(name: str, place: Path, tmp_path: Path) -> None:
    """On a folder of its layout: it trains, and each line of its head is read, with the languages of that model."""
    assert {f"adapt-{one}" for one in SHIPPED} == {one for one in shipped() if one.startswith("adapt-")}
    text = shipped_text(f"adapt-{name}")
    assert f"# Train:    atento train adapt-{name} data.folder=pairs\n" in text
    lines = dict(re.findall(r"^#   (\w.*?)  +(\S.*)$", text, flags=re.M))
    assert {"other languages", "a new language", "little memory"} <= set(lines)
    few = "".join((place / "pairs.tsv").read_text("utf-8").splitlines(keepends=True)[:4])
    for split in ("train", "valid"):
        (tmp_path / f"{split}.tsv").write_text(few, encoding="utf-8")
    given = [f"data.folder={tmp_path}", *(f"training.{key}" for key in SHORT), "decoding.max_new_tokens=4"]
    for line in lines.values():
        released = place / ("one-pair" if "init=Helsinki-NLP/opus-mt-en-de" in line else SHIPPED[name])
        words = [f"init={released}", *(word for word in shlex.split(line) if not word.startswith("init=")), *given]
        loaded, said = load_recipe(f"adapt-{name}", words, environment={}), list[str]()
        tokenizer, _ = tokenizer_and_network(loaded, read_data(loaded.recipe, loaded.folder, print).train, said.append)
        told = loaded.recipe.data.target_language
        assert not said and (told is None or _token_of(SHIPPED[name], told) in tokenizer.specials.ids)
    words = [f"init={place / SHIPPED[name]}", *given, "decoding.beam=1"]
    trained = atento.train(f"adapt-{name}", words, out=tmp_path / "run", threads=1)
    model, target = atento.load(trained.folder, device="cpu"), LANGUAGES[SHIPPED[name]][1]
    assert any(model.translate(TEXTS)) and model.translate(TEXTS) == model.translate(TEXTS, target_language=target)


@pytest.mark.parametrize("name", ["nllb", "m2m_100", "mbart50", "mbart"])
def test_a_tokenizer_that_transformers_saved_again_takes_a_language(name: str, place: Path, tmp_path: Path) -> None:
    """Its settings list the tokens in other keys; a language that its user added there is one."""
    new, token = LANGUAGES[name][2:]
    peer = hf.AutoTokenizer.from_pretrained(place / name)
    own = _token_of(name, _second(new))
    peer.add_tokens([own], special_tokens=True)
    peer.save_pretrained(tmp_path / "theirs")
    tokenizer = Tokenizer.load(tmp_path / "theirs")
    assert tokenizer.token_id(own) == peer.convert_tokens_to_ids(own) and own in tokenizer.specials.ids
    in_languages(tokenizer, {new: _second(new)}, None).save(tmp_path / "ours")
    again = hf.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert again.convert_tokens_to_ids([own, token]) == [tokenizer.token_id(own), tokenizer.vocab_size]
    assert again.decode([tokenizer.vocab_size, 5], skip_special_tokens=True) == peer.decode([5])


@pytest.mark.parametrize("name", ["nllb", "m2m_100", "mbart50", "mbart"])
def test_sources_in_a_new_language(name: str, place: Path, recipe: Recipe, tmp_path: Path) -> None:
    """Read in it by default, from both layouts, also where the class of transformers takes no other default."""
    source, target, new, token = LANGUAGES[name]
    init = {"new_languages": {new: source}}
    atento.train(recipe(name, init, source_language=new, target_language=target), out=tmp_path / "run")
    model = atento.load(tmp_path / "run", device="cpu")
    folder = model.save(tmp_path / "hf", layout="huggingface")
    peer, again = hf.AutoTokenizer.from_pretrained(folder), atento.load(folder, device="cpu")
    assert model.tokenizer is not None and again.tokenizer is not None
    ids = model.tokenizer.with_specials([5])[0]
    assert model.tokenizer.specials.ids[token] in ids and again.tokenizer.with_specials([5])[0] == ids
    if name in ("m2m_100", "mbart50"):
        peer.lang_code_to_token = {new: token}
        peer.lang_token_to_id = {token: model.tokenizer.specials.ids[token]}
        peer.src_lang = new
    assert peer(TEXTS[0])["input_ids"] == ids_of(model, TEXTS[0])


WRONG: list[tuple[str, dict[str, str], dict[str, str], str]] = [  # model, new languages, data, what is said
    ("nllb", {"tyv_Cyrl": "por_Latin"}, {}, "has no language 'por_Latin'; did you mean 'por_Latn'"),
    ("m2m_100", {"pt": "es"}, {}, "`init.new_languages`: the model has the language 'pt' already"),
    ("nllb", {"tyv": "por_Latn"}, {}, "name it as the model names its languages, such as 'por_Latn'"),
    ("mbart50", {"tyv_Cyrl": "pt_XX"}, {}, "'tyv_Cyrl' would be read as text"),
    ("marian of languages", {"a b": "por"}, {}, "'a b' would be read as text"),
    ("one-pair", {"glg": "por"}, {}, "the model has no tokens of languages: one of a single pair learns another by"),
    ("one-pair", {}, {"target_language": "glg"}, "`data.target_language`: this model is not multilingual"),
    ("nllb", {}, {"source_language": "por"}, "`data.source_language`: the model has no language 'por'"),
    ("mbart50", {}, {"target_language": "por_Latn"}, "`data.target_language`: the model has no language 'por_Latn'"),
    ("marian of languages", {}, {"source_language": "eng"}, "source_language`: this model is told the target language"),
]


@pytest.mark.parametrize(("model", "new", "data", "said"), WRONG)
def test_wrong_languages_are_named_with_file_and_line(
    model: str, new: dict[str, str], data: dict[str, Any], said: str, recipe: Recipe, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=r"r\.yaml:\d+:\d+: .*" + re.escape(said)) as error:
        atento.train(recipe(model, {"new_languages": new} if new else {}, **data), out=tmp_path / "run")
    assert "\n" not in str(error.value)


def test_what_new_languages_need_is_said(place: Path, recipe: Recipe, tmp_path: Path) -> None:
    """Adapters leave their vectors as they begin; targets without a language are warned of."""
    atento.train(recipe("nllb", {"train": "lora", "new_languages": {"tyv_Cyrl": "por_Latn"}}), out=tmp_path / "run")
    log = next((tmp_path / "run").glob("*.log")).read_text(encoding="utf-8")
    assert "warning: `init.train` lora leaves the vectors of new languages as they begin" in log
    assert "languages, and `data.target_language` names none of them" in log


def test_the_frame_of_nllb_is_that_of_its_settings(place: Path, tmp_path: Path) -> None:
    """Whatever `tokenizer.json` says, as in transformers: the source language is in front, or behind by a setting."""
    for name, settings in (("now", {}), ("then", {"legacy_behaviour": True}), ("from", {"src_lang": "por_Latn"})):
        folder = write_published("nllb", tmp_path / name)
        edited(folder / "tokenizer_config.json", **settings)
        ours, peer = Tokenizer.load(folder), hf.AutoTokenizer.from_pretrained(folder)
        assert ours.with_specials(ours.encode("o gato"))[0] == peer("o gato")["input_ids"]


@pytest.mark.parametrize("name", ["nllb", "mbart50"])
def test_a_given_output_is_read_behind_its_language(name: str, place: Path, recipe: Recipe, tmp_path: Path) -> None:
    """In scores, attention and explanations, as the model was trained and writes."""
    source, target = LANGUAGES[name][:2]
    atento.train(recipe(name, {}, source_language=source, target_language=target), out=tmp_path / "run")
    model = atento.load(tmp_path / "run", device="cpu")
    assert model.tokenizer is not None
    token = _token_of(name, target)
    folder = model.save(tmp_path / "hf", layout="huggingface")
    peer, network = hf.AutoTokenizer.from_pretrained(folder), hf.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    peer.tgt_lang = target
    read = peer(PAIRS[0][0], text_target=PAIRS[0][1], return_tensors="pt")
    with torch.no_grad():
        theirs = network(**read).logits.log_softmax(-1)[0].gather(1, read["labels"][0][:, None])[1:, 0].tolist()
    scores = model.score(*PAIRS[0])
    assert scores.log_probs == pytest.approx(theirs, abs=1e-4) and token not in scores.tokens
    record = model.attend(*PAIRS[0])
    assert record.tokens[1] == record.output_tokens[0] == token
    explained = model.explain(PAIRS[0][0], target=PAIRS[0][1], method="gradient-input")
    given = model.explain(PAIRS[0][0], target=PAIRS[0][1], method="gradient-input", target_language=target)
    assert explained.total == pytest.approx(given.total, abs=1e-6)


@pytest.mark.parametrize("name", LANGUAGES)
def test_terms_are_kept_behind_the_language(name: str, place: Path) -> None:
    """Whole words, several of them, and what must not change; every output still begins with the target language."""
    source, target, _, _ = LANGUAGES[name]
    model, told = atento.load(place / name, device="cpu"), {"source_language": source, "target_language": target}
    named: dict[str, Any] = {key: value for key, value in told.items() if value is not None}
    terms = {"cat": "gata branca", "sleeps": "dorme muito"}
    (row,) = model.translations(["The cat sleeps here."], max_new_tokens=40, glossary=terms, **named)
    glossary = Glossary([Term(source, (form,)) for source, form in terms.items()])
    assert glossary.report("cat sleeps", row[0].text) == {"cat": True, "sleeps": True}
    assert model.tokenizer is not None
    begins = name in ("nllb", "m2m_100", "mbart50")
    first = model.tokenizer.specials.ids[_token_of(name, target)] if begins else None
    assert first is None or row[0].hypothesis.ids[0] == first
    text, options = "See %1$s and <b>the cat</b>.", {"max_new_tokens": 24, "glossary": {"cat": "gata"}, "protect": True}
    whole = model.translate(text, **options, **named)
    assert re.search(r"\bgata\b", whole) and all(part in whole for part in ("%1$s", "<b>", "</b>"))
    # a required word that is over has no further letters
    search: dict[str, Any] = {"max_new_tokens": 9, "beam": 4, **named}
    free, over = (model.translate("a", required_words=[word], **search) for word in ("gat", "gat "))
    assert "gat" in free and re.search(r"\bgat\b", over)


def test_a_term_in_capitals_that_the_vocabulary_lacks_is_written_without(place: Path) -> None:
    """And where the beginning of an output cannot be written again, the output stays as it is."""
    model = atento.load(place / "mbart", device="cpu")
    assert model.tokenizer is not None and model.tokenizer.unk_id in model.tokenizer.encode("Gata")
    texts = ["The cat sleeps here.", "the cat.", "A cat and a dog."]
    for text, written in zip(texts, model.translate(texts, max_new_tokens=12, glossary={"cat": "gata"}), strict=True):
        assert re.search(r"\bgata\b", written), text


@pytest.mark.parametrize("name", ["nllb", "marian of languages"])
def test_a_multilingual_teacher_writes_in_the_languages_of_the_recipe(name: str, place: Path, tmp_path: Path) -> None:
    """The targets of a student with a vocabulary of its own are its outputs; without languages it is refused."""
    given: dict[str, Any] = {"task": "translation", "data": {"train": {"memory": "train"}}}
    given |= {"tokenizer": {"kind": "character"}, "network": {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1}}
    given["training"] = {"steps": 1, "batch_tokens": 100, "precision": "float32", "baseline": False}
    given["teacher"] = {"model": str(place / name), "cache": str(tmp_path / "kept")}
    with pytest.raises(RecipeError, match=r"it is multilingual: .*`data.target_language` must be given"):
        atento.train(given, data={"train": PAIRS[:3]}, out=tmp_path / "run")
    source, target, _, _ = LANGUAGES[name]
    languages: Any = {"target_language": target} | ({} if source is None else {"source_language": source})
    given["data"] |= languages
    assert not load_recipe(given, memory=["train"]).warnings
    atento.train(given, data={"train": PAIRS[:3]}, out=tmp_path / "run", threads=1)
    (file,) = (tmp_path / "kept").iterdir()
    texts = {text for value in read_vectors(file).values() for text in json.loads(value.tobytes())}
    assert texts == set(atento.load(place / name).translate([source for source, _ in PAIRS[:3]], **languages))

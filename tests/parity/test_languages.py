"""Languages of multilingual translators: the outputs of transformers with `src_lang` and a forced first token."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers as hf

import atento
from atento.base.errors import CapabilityError, TokenizerError, UsageError
from failing import fails
from folders import ids_of
from released_folders import write_released
from translator_folders import LIMIT, SOME, TRANSLATORS, expected, write_translator

OPTIONS: dict[str, Any] = {"greedy": True, "max_new_tokens": LIMIT}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Any, Path]]:
    """name -> their tokenizer and network of random weights, and the folder of both."""

    @cache
    def make(name: str) -> tuple[Any, Any, Path]:
        folder = tmp_path_factory.mktemp(name)
        return *write_translator(name, folder), folder

    return make


@pytest.mark.parametrize("name", TRANSLATORS)
def test_outputs_are_those_of_transformers(name: str, both: Callable[[str], tuple[Any, Any, Path]]) -> None:
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
def test_a_saved_translator_with_sentencepiece_files_alone(
    name: str, layout: str, both: Callable[[str], tuple[Any, Any, Path]], tmp_path: Path
) -> None:
    """Read again from either layout, and by transformers."""
    folder = both(name)[2]
    model, languages = atento.load(folder), {"target_language": TRANSLATORS[name].target}
    saved = model.save(tmp_path / "saved", layout=layout)
    assert not (saved / "tokenizer.json").exists() or name == "mbart"
    assert atento.load(saved).translate(SOME, **languages, **OPTIONS) == model.translate(SOME, **languages, **OPTIONS)
    if layout == "huggingface":
        peer = hf.AutoTokenizer.from_pretrained(saved)
        for text in SOME:
            assert peer(text)["input_ids"] == ids_of(model, text)
        hf.AutoModelForSeq2SeqLM.from_pretrained(saved)


def test_wrong_languages_are_refused(both: Callable[[str], tuple[Any, Any, Path]], tmp_path: Path) -> None:
    model = atento.load(both("nllb")[2])
    said = "`target_language`: the model has no language 'por_Latin'.*por_Latn"
    fails(UsageError, said, model.translate, "a", target_language="por_Latin")
    fails(UsageError, "the model has no language 'en'", model.translate, "a", source_language="en")
    plain = atento.load(write_released("bart", tmp_path / "bart"))
    said = "`source_language`: this model is not multilingual: its tok"
    fails(CapabilityError, said, plain.translate, "a", source_language="eng_Latn")


def test_a_source_language_not_in_the_tokenizer(both: Callable[[str], tuple[Any, Any, Path]], tmp_path: Path) -> None:
    """In the settings of a folder with SentencePiece files alone, of both ways to read them."""
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
    wanted = []
    for text in SOME:
        ids = network.generate(**peer(f">>por<< {text}", return_tensors="pt"), num_beams=1, max_new_tokens=LIMIT)
        wanted.append(peer.decode(ids[0], skip_special_tokens=True))
    found = model.translate(SOME, target_language="por", greedy=True, max_new_tokens=LIMIT)
    unknown = "<unk>"  # theirs drops it
    assert [line.replace(unknown, "").split() for line in found] == [line.split() for line in wanted]
    fails(CapabilityError, "told the target language only", model.translate, "a", source_language="por")

"""Languages of multilingual translators: the outputs of transformers with `src_lang` and a forced first token."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.errors import CapabilityError, UsageError
from released_folders import _SEQ2SEQ, TEXTS, _byte_level, write_released
from test_tokenizer_families import FAIRSEQ, unigram

hf = pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")
pytestmark = pytest.mark.parity
SOME = [*TEXTS[:5], "o gato"]
LIMIT = 9
CASES: dict[str, tuple[Callable[[], Any], Any, Any, str, str]] = {
    "nllb": (
        lambda: hf.NllbTokenizer(**_byte_level(FAIRSEQ), src_lang="eng_Latn", tgt_lang="fra_Latn"),
        hf.M2M100Config,
        hf.M2M100ForConditionalGeneration,
        "por_Latn",
        "deu_Latn",
    ),
    "mbart50": (
        lambda: hf.MBart50Tokenizer(vocab=unigram(["<unk>", "<s>", "</s>"]), src_lang="en_XX", tgt_lang="ro_RO"),
        hf.MBartConfig,
        hf.MBartForConditionalGeneration,
        "pt_XX",
        "de_DE",
    ),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Any, Path]]:
    """name -> their tokenizer and network of random weights, and the folder of both."""
    made: dict[str, tuple[Any, Any, Path]] = {}

    def make(name: str) -> tuple[Any, Any, Path]:
        if name not in made:
            tokenizer, config, cls = (part() if n == 0 else part for n, part in enumerate(CASES[name][:3]))
            folder = tmp_path_factory.mktemp(name)
            tokenizer.save_pretrained(folder)
            torch.manual_seed(0)
            ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
            network = cls(config(vocab_size=len(tokenizer), **_SEQ2SEQ, **ids)).eval()
            with torch.no_grad():
                for parameter in network.parameters():
                    if parameter.dim() > 1:
                        parameter.normal_(std=0.5)
            network.save_pretrained(folder)
            made[name] = tokenizer, network, folder
        return made[name]

    return make


def expected(tokenizer: Any, network: Any, source: str, target: str) -> list[str]:
    """What transformers writes, each text by itself."""
    tokenizer.src_lang = source
    lines = []
    for text in SOME:
        ids = network.generate(
            **tokenizer(text, return_tensors="pt"),
            forced_bos_token_id=tokenizer.convert_tokens_to_ids(target),
            num_beams=1,
            do_sample=False,
            max_new_tokens=LIMIT,
        )
        lines.append(tokenizer.decode(ids[0], skip_special_tokens=True).strip())
    return lines


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_transformers(name: str, both: Callable[[str], tuple[Any, Any, Path]]) -> None:
    tokenizer, network, folder = both(name)
    source, target = CASES[name][3:]
    model = atento.load(folder)
    options: dict[str, Any] = {"greedy": True, "max_new_tokens": LIMIT}
    found = model.translate(SOME, source_language=source, target_language=target, **options)
    assert [line.strip() for line in found] == expected(tokenizer, network, source, target)
    assert found != model.translate(SOME, source_language=target, target_language=source, **options)
    stream = "".join(model.stream(SOME[0], source_language=source, target_language=target, **options))
    assert stream == found[0]
    # whatever was saved with the model says the same
    default = model.translate(SOME, target_language=target, **options)
    first = "eng_Latn" if name == "nllb" else "en_XX"
    assert default == model.translate(SOME, source_language=first, target_language=target, **options)


def test_wrong_languages_are_refused(both: Callable[[str], tuple[Any, Any, Path]], tmp_path: Path) -> None:
    model = atento.load(both("nllb")[2])
    with pytest.raises(UsageError, match=r"`target_language`: the model has no language 'por_Latin'.*por_Latn"):
        model.translate("a", target_language="por_Latin")
    with pytest.raises(UsageError, match="`source_language`: the model has no language 'en'"):
        model.translate("a", source_language="en")
    plain = atento.load(write_released("bart", tmp_path / "bart"))
    with pytest.raises(CapabilityError, match=r"`source_language`: this model is not multilingual: its tok"):
        plain.translate("a", source_language="eng_Latn")


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
    with pytest.raises(CapabilityError, match="this model is told the target language only"):
        model.translate("a", source_language="por")

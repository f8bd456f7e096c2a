"""Released models beside transformers: without an option (`generation_config.json`), exported, and read again."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import atento
from atento.base.errors import CapabilityError, ModelError
from atento.config import presets
from atento.config.sections.network import network_to_dict
from atento.decoding import Greedy, generate
from atento.model import Model
from atento.networks import build_network
from failing import fails
from folders import edited, ids_of
from released_folders import RELEASED, TEXTS, write_released

PLAIN = [*TEXTS[:12], "  a menina  viu o cão ", "ação, coração e avó!", "não <x> 12.5%", "", " ", "é"]
GREEDY = {"num_beams": 1, "do_sample": False, "max_new_tokens": 8}
Both = tuple[str, Path, Model, Path]


@pytest.fixture(scope="module", params=RELEASED)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """The name, their folder, our model of it, and the folder we write."""
    place = tmp_path_factory.mktemp("released")
    folder = write_released(request.param, place / "theirs")
    model = atento.load(folder)
    return request.param, folder, model, model.save(place / "ours", layout="huggingface")


def stock(folder: Path) -> Any:
    return hf.AutoTokenizer.from_pretrained(folder)


def test_w3_the_same_ids_from_their_folder_ours_and_us_and_our_reload_is_the_same_model(both: Both) -> None:
    name, folder, model, out = both
    ids = [ids_of(model, text) for text in PLAIN]
    assert stock(out)(PLAIN)["input_ids"] == ids
    theirs = [i for i, text in enumerate(PLAIN) if name != "llama" or not text.startswith(" ")]  # there it loses one
    assert stock(folder)([PLAIN[i] for i in theirs])["input_ids"] == [ids[i] for i in theirs]
    again = atento.load(out)
    assert [ids_of(again, text) for text in PLAIN] == ids
    assert again.network.config == model.network.config and again.config["task"] == model.config["task"]
    np.testing.assert_array_equal(again.embed(PLAIN), model.embed(PLAIN))


def test_w3_stock_entry_points_on_our_folder(both: Both) -> None:
    name, folder, model, out = both
    peer, texts = stock(out), [text for text in PLAIN if text.strip()]
    if name in ("bert", "roberta"):
        fills = [hf.pipeline("fill-mask", model=str(place), top_k=3) for place in (folder, out)]
        for text in (f"o {peer.mask_token} alto", f"{peer.mask_token}!"):
            assert fills[0](text) == fills[1](text)
        network = hf.AutoModel.from_pretrained(out).eval()
        with torch.no_grad():
            hidden = [network(**peer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in PLAIN]
        np.testing.assert_allclose(model.embed(PLAIN), torch.stack(hidden).numpy(), atol=1e-5)
        return
    seq2seq = name in ("t5", "bart", "marian")
    kind = hf.AutoModelForSeq2SeqLM if seq2seq else hf.AutoModelForCausalLM
    network = kind.from_pretrained(out).eval()
    write = {"bart": model.summarize, "t5": model.translate, "marian": model.translate}.get(name, model.generate)
    found = []
    for text in texts:
        given = peer(text, return_tensors="pt")
        start = 0 if seq2seq else given["input_ids"].shape[1]
        found.append(peer.decode(network.generate(**given, **GREEDY)[0, start:], skip_special_tokens=True).strip())
    ours = write(texts, beam=1, max_new_tokens=8)
    assert found == [text.replace("<unk>", "").strip() for text in ours]  # theirs hides the unknown
    assert len(set(found)) > 1


def test_the_card_and_the_licence_are_kept(both: Both, tmp_path: Path) -> None:
    """What was done is added, once, by the version that did it."""
    _, folder, model, out = both
    card = (out / "README.md").read_text(encoding="utf-8")
    assert card.startswith((folder / "README.md").read_text(encoding="utf-8").rstrip())
    assert (out / "LICENSE").read_bytes() == (folder / "LICENSE").read_bytes()
    assert f"written by Atento {atento.__version__}" in card and "None" not in card
    twice = atento.load(model.save(tmp_path / "one")).save(tmp_path / "two", layout="huggingface")
    assert (twice / "README.md").read_text(encoding="utf-8") == card and (twice / "LICENSE").exists()


def gpt2_with_the_tokenizer_of(folder: Path, **about: str) -> tuple[Any, Model]:
    """That tokenizer, and a network of random weights whose special tokens are all EOS."""
    tokens: Any = atento.load(folder).tokenizer
    ids = dict.fromkeys(("pad", "bos", "eos", "unk", "start"), tokens.eos_id)
    config = presets.gpt2(vocab_size=tokens.vocab_size, d_model=16, d_ff=24, n_heads=2, n_layers=1, max_len=32, ids=ids)
    torch.manual_seed(0)
    settings: Any = {"task": "language-modeling", "name": "x", "network": network_to_dict(config)}
    return tokens, Model(build_network(config).eval(), tokens, settings | about, None)


def test_w3_another_template_is_written_into_tokenizer_json(tmp_path: Path) -> None:
    """GPT-2's tokenizer adds nothing; a model that was trained behind BOS is read behind BOS everywhere."""
    tokens, model = gpt2_with_the_tokenizer_of(write_released("gpt2", tmp_path / "theirs"), template="bos")
    peer = stock(model.save(tmp_path / "ours", layout="huggingface"))
    assert peer(PLAIN)["input_ids"] == [[tokens.bos_id, *tokens.encode(text)] for text in PLAIN]
    assert peer.padding_side == "left" and peer.model_max_length == 32
    assert len({one.generate("o gato", max_new_tokens=4) for one in (atento.load(tmp_path / "ours"), model)}) == 1


def test_w3_a_tokenizer_that_the_layout_cannot_say_is_refused(tmp_path: Path) -> None:
    _, model = gpt2_with_the_tokenizer_of(write_released("marian", tmp_path / "theirs"))
    said = r"Marian's tokenizer is read beside a network of Marian only: .*gpt2"
    fails(CapabilityError, said, model.save, tmp_path / "out", layout="huggingface")
    assert not (tmp_path / "out").exists()


def test_decoding_keys_of_older_folders_are_kept(tmp_path: Path) -> None:
    """Before `generation_config.json` they stood in `config.json`; a folder that has the file keeps it as it is."""
    folder = write_released("bart", tmp_path / "theirs")
    (folder / "generation_config.json").unlink()
    edited(folder / "config.json", no_repeat_ngram_size=3, num_beams=4)
    out = atento.load(folder).save(tmp_path / "ours", layout="huggingface")
    said = hf.GenerationConfig.from_pretrained(out)
    assert (said.no_repeat_ngram_size, said.num_beams, said.decoder_start_token_id) == (3, 4, 2)
    edited(folder / "generation_config.json", num_beams=7, eos_token_id=2)
    out = atento.load(folder).save(tmp_path / "again", layout="huggingface")
    assert hf.GenerationConfig.from_pretrained(out).num_beams == 7


WRITERS = ("gpt2", "llama", "t5", "bart", "marian")
SOURCE = ("t5", "bart", "marian")
SHORT, ENDS = {"max_new_tokens": 12}, {"no_repeat_ngram_size": 1, "eos_token_id": "ends"}
# name -> settings; the ids stand for tokens that the plain model writes
SETTINGS: dict[str, dict[str, Any]] = {
    "several ends": SHORT | ENDS | {"num_beams": 1},
    "several ends, beam": SHORT | ENDS | {"num_beams": 3, "length_penalty": 0.5},
    "beam ends early": SHORT | {"num_beams": 3, "early_stopping": True, "length_penalty": 2.0},
    "beam ends never": SHORT | {"num_beams": 3, "early_stopping": "never", "no_repeat_ngram_size": 2},
    "length": {"num_beams": 2, "max_length": 11, "min_length": 5},
    "new tokens": {"num_beams": 1, "max_new_tokens": 9, "min_new_tokens": 6},
    "penalties": SHORT | {"num_beams": 1, "repetition_penalty": 1.7, "no_repeat_ngram_size": 3},
    "suppressed": SHORT | {"num_beams": 2, "suppress_tokens": "written", "begin_suppress_tokens": [40, 41, 42]},
    "bad words": SHORT | {"num_beams": 2, "bad_words_ids": "words", "renormalize_logits": True},
    "forced": SHORT | {"num_beams": 3, "forced_bos_token_id": 33, "forced_eos_token_id": 34, "length_penalty": 0.3},
    "forced, suppressed": SHORT | {"num_beams": 1, "forced_bos_token_id": 33, "begin_suppress_tokens": "written"},
    "not sampled": SHORT | {"num_beams": 1, "do_sample": False, "temperature": 0.2, "top_k": 3},
}


@dataclass
class Writer:
    """A released folder, the network and tokenizer of transformers, and what it writes without settings."""

    name: str
    folder: Path
    network: Any
    tokenizer: Any
    ids: dict[str, Any] = field(default_factory=dict)
    rows: list[list[int]] = field(default_factory=list)

    def settle(self, settings: dict[str, Any]) -> None:
        """Write the settings, with ids that the plain network writes in place of the words for them."""
        written = [token for row in self.rows for token in row]
        often, eos = max(set(written), key=written.count), self.ids["eos_token_id"]
        firsts = {first for row in self.rows for first in row[:2]}
        late = [token for row in self.rows for token in row[3:] if token not in firsts]
        values = {
            "ends": [eos, *dict.fromkeys([max(set(late), key=late.count), late[-1]])],
            "written": [token for token in dict.fromkeys(written) if token != eos][:3],
            "words": [[often], written[:2], [eos]],
        }
        self.write({k: values.get(value, value) if isinstance(value, str) else value for k, value in settings.items()})

    def write(self, data: dict[str, Any]) -> None:
        (self.folder / "generation_config.json").write_text(json.dumps(self.ids | data))

    def theirs(self, **options: Any) -> list[list[int]]:
        """What `generate` writes for the texts, without the start, the prompt, EOS and padding."""
        self.network.generation_config = settings = hf.GenerationConfig.from_pretrained(self.folder)
        ends = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
        rows = []
        for text in TEXTS[:4]:
            inputs = self.tokenizer(text, return_tensors="pt")
            given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
            output = self.network.generate(**given, **options)[0]
            ids = output[1 if self.name in SOURCE else inputs["input_ids"].shape[1] :].tolist()
            stops = [at for at, token in enumerate(ids) if token in ends]
            rows.append(ids[: stops[0]] if stops else ids)
        return rows


def ours(name: str, model: atento.Model, **options: Any) -> list[list[int]]:
    write = {"bart": model.summaries, "marian": model.translations}.get(name, model.generations)
    return [row[0].hypothesis.ids for row in write(TEXTS[:4], **options)]


@pytest.fixture(scope="module", params=WRITERS)
def writer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Writer:
    folder = write_released(request.param, tmp_path_factory.mktemp("writer") / request.param)
    kind = hf.AutoModelForSeq2SeqLM if request.param in SOURCE else hf.AutoModelForCausalLM
    found = Writer(request.param, folder, kind.from_pretrained(folder).eval(), hf.AutoTokenizer.from_pretrained(folder))
    config = json.loads((folder / "config.json").read_text())
    names = ("eos_token_id", "pad_token_id", "bos_token_id", "decoder_start_token_id")
    found.ids = {key: config.get(key) for key in names}
    found.write({"max_new_tokens": 8, "no_repeat_ngram_size": 1})
    found.rows = found.theirs()
    return found


@pytest.mark.covering
@pytest.mark.parametrize("case", SETTINGS)
def test_outputs_are_those_of_generate(case: str, writer: Writer) -> None:
    writer.settle(SETTINGS[case])
    model = atento.load(writer.folder)
    if case == "length" and writer.name not in SOURCE:  # it counts the prompt, which no default can say
        assert "generation_config.json: max_length" in str(model.load_report)
        return
    expected, found = writer.theirs(), ours(writer.name, model)
    if case == "several ends, beam":  # of outputs at the limit, ours prefers those that ended
        ended = [row for row, output in enumerate(expected) if len(output) < SHORT["max_new_tokens"]]
        expected, found = [expected[row] for row in ended], [found[row] for row in ended]
    assert found == expected and any(expected)


@pytest.mark.filterwarnings("ignore:the exact search stopped early")
def test_every_route_ends_at_each_of_several_ids(writer: Writer) -> None:
    """Plain and fast steps, streams, beams, drafts, samples, exact search, and `generate` on ids."""
    writer.settle(SETTINGS["several ends"])
    model = atento.load(writer.folder)
    ends = json.loads((writer.folder / "generation_config.json").read_text())["eos_token_id"]
    assert set(model.network.config.eos_ids) == set(ends)
    limit: Any = {"max_new_tokens": 12, "no_repeat_ngrams": 1}
    expected = ours(writer.name, model, greedy=True, **limit)
    assert any(len(row) < 12 for row in expected)
    assert ours(writer.name, model, greedy=True, draft="ngrams", **limit) == expected
    assert ours(writer.name, model, temperature=0.0, **limit) == expected
    for options in ({"beam": 3}, {"sample": True, "seed": 3}, {"exact": True, "exact_limit": 5}):
        assert not set(ends) & {token for row in ours(writer.name, model, **options, **limit) for token in row}
    model.tokenizer.target.decode(expected[0])  # type: ignore[union-attr]
    if writer.name == "llama":
        assert "".join(model.stream(TEXTS[0], **limit)) == model.generate(TEXTS[0], **limit)
    network, ids = model.network, torch.tensor([[5, 6, 7]])
    found = [generate(one, ids, Greedy(), max_new_tokens=60)[0][0].ids for one in (network, model.step_function())]
    assert found[0] == found[1] and not set(ends) & set(found[0])
    assert any(set(ends) & set(row) for row in ours(writer.name, model, greedy=True, ignore_eos=True, **limit))


def test_options_replace_the_folders_search_and_keep_its_rules(writer: Writer) -> None:
    suppressed = writer.rows[0][:2]
    search = {"num_beams": 3, "min_new_tokens": 5, "max_new_tokens": 9, "no_repeat_ngram_size": 2}
    writer.write(search | {"suppress_tokens": suppressed, "encoder_repetition_penalty": 1.2})
    model = atento.load(writer.folder)
    report = str(model.load_report)
    assert "beam 3" in report and "no_repeat_ngrams 2" in report
    assert "generation_config.json: encoder_repetition_penalty" in report
    assert "suppress_tokens" not in report
    writer.write({"suppress_tokens": suppressed})
    expected = writer.theirs(num_beams=1, max_new_tokens=4)
    found = ours(writer.name, model, greedy=True, max_new_tokens=4, no_repeat_ngrams=0, count_prompt=False)
    assert found == expected
    assert not set(suppressed) & {token for row in found for token in row}


def test_it_samples_where_the_folder_does_and_without_settings_has_the_beam_of_the_docs(writer: Writer) -> None:
    writer.write({"do_sample": True, "temperature": 0.7, "top_p": 0.8, "max_new_tokens": 5})
    decoding = atento.load(writer.folder).decoding
    assert (decoding.samples, decoding.temperature, decoding.top_p, decoding.top_k) == (True, 0.7, 0.8, 50)
    (writer.folder / "generation_config.json").unlink()
    assert atento.load(writer.folder).decoding.beam == (4 if writer.name in SOURCE else 1)


def test_a_setting_that_cannot_be_is_named_once_with_its_file(writer: Writer) -> None:
    """A text for the width of the beam ended in an error of Python's own, and others named the file twice."""
    for beam, said in (("4", "decoding.beam must be an integer: got '4'"), (0, "`decoding.beam` must be at least 1")):
        writer.write({"num_beams": beam})
        fails(ModelError, rf"^{writer.folder}/\w+.json: {re.escape(said)}", atento.load, writer.folder)


def test_old_folders_have_the_settings_in_their_configuration(writer: Writer) -> None:
    config = writer.folder / "config.json"
    before = config.read_text()
    keys = {"num_beams": 2, "no_repeat_ngram_size": 2, "max_new_tokens": 7, "suppress_tokens": writer.rows[0][:1]}
    writer.write(keys | {"forced_eos_token_id": json.loads(before).get("forced_eos_token_id")})
    expected = writer.theirs()
    (writer.folder / "generation_config.json").unlink()
    config.write_text(json.dumps(json.loads(before) | keys))
    try:
        assert ours(writer.name, atento.load(writer.folder)) == expected
    finally:
        config.write_text(before)


@pytest.mark.covering
@pytest.mark.parametrize("case", ["forced", "several ends, beam", "bad words", "length"])
def test_an_export_keeps_the_settings(case: str, writer: Writer, tmp_path: Path) -> None:
    writer.settle(SETTINGS[case])
    model = atento.load(writer.folder)
    before = hf.GenerationConfig.from_pretrained(writer.folder).to_dict()
    out = model.save(tmp_path / "out", layout="huggingface")
    after = hf.GenerationConfig.from_pretrained(out).to_dict()
    assert {key: after[key] for key in SETTINGS[case]} == {key: before[key] for key in SETTINGS[case]}
    for other in (atento.load(out), atento.load(model.save(tmp_path / "atento"))):
        assert other.decoding == model.decoding
        assert other.network.config.writing == model.network.config.writing
        assert other.network.config.ids == model.network.config.ids

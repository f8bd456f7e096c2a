"""Released models read here and written again: stock entry points on text, from either folder, give what we give."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import atento
from atento.base.errors import CapabilityError
from atento.config import presets
from atento.config.sections.network import network_to_dict
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
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_w3_the_same_ids_from_their_folder_ours_and_us(both: Both) -> None:
    name, folder, model, out = both
    ids = [ids_of(model, text) for text in PLAIN]
    assert stock(out)(PLAIN)["input_ids"] == ids
    theirs = [i for i, text in enumerate(PLAIN) if name != "llama" or not text.startswith(" ")]  # there it loses one
    assert stock(folder)([PLAIN[i] for i in theirs])["input_ids"] == [ids[i] for i in theirs]
    again = atento.load(out)
    assert [ids_of(again, text) for text in PLAIN] == ids


def test_w3_stock_entry_points_on_our_folder(both: Both) -> None:
    name, folder, model, out = both
    peer, texts = stock(out), [text for text in PLAIN if text.strip()]
    if name in ("bert", "roberta"):
        fills = [transformers.pipeline("fill-mask", model=str(place), top_k=3) for place in (folder, out)]
        for text in (f"o {peer.mask_token} alto", f"{peer.mask_token}!"):
            assert fills[0](text) == fills[1](text)
        network = transformers.AutoModel.from_pretrained(out).eval()
        with torch.no_grad():
            hidden = [network(**peer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in PLAIN]
        np.testing.assert_allclose(model.embed(PLAIN), torch.stack(hidden).numpy(), atol=1e-5)
        return
    seq2seq = name in ("t5", "bart", "marian")
    kind = transformers.AutoModelForSeq2SeqLM if seq2seq else transformers.AutoModelForCausalLM
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


def test_w3_our_reload_is_the_same_model(both: Both) -> None:
    _, _, model, out = both
    again = atento.load(out)
    assert again.network.config == model.network.config and again.config["task"] == model.config["task"]
    np.testing.assert_array_equal(again.embed(PLAIN), model.embed(PLAIN))


def test_the_card_and_the_licence_are_kept(both: Both, tmp_path: Path) -> None:
    """What was done is added, once, by the version that did it."""
    _, folder, model, out = both
    card = (out / "README.md").read_text(encoding="utf-8")
    assert card.startswith((folder / "README.md").read_text(encoding="utf-8").rstrip())
    assert (out / "LICENSE").read_bytes() == (folder / "LICENSE").read_bytes()
    assert f"written by Atento {atento.__version__}" in card and "None" not in card
    twice = atento.load(model.save(tmp_path / "one")).save(tmp_path / "two", layout="huggingface")
    assert (twice / "README.md").read_text(encoding="utf-8") == card and (twice / "LICENSE").exists()


def test_w3_another_template_is_written_into_tokenizer_json(tmp_path: Path) -> None:
    """GPT-2's tokenizer adds nothing; a model that was trained behind BOS is read behind BOS everywhere."""
    tokens = atento.load(write_released("gpt2", tmp_path / "theirs")).tokenizer
    assert tokens is not None
    ids = dict.fromkeys(("pad", "bos", "eos", "unk", "start"), tokens.bos_id)
    config = presets.gpt2(vocab_size=500, d_model=16, d_ff=24, n_heads=2, n_layers=1, max_len=32, ids=ids)
    torch.manual_seed(0)
    about = {"task": "language-modeling", "name": "x", "template": "bos", "network": network_to_dict(config)}
    model = Model(build_network(config).eval(), tokens, about, None)
    peer = stock(model.save(tmp_path / "ours", layout="huggingface"))
    assert peer(PLAIN)["input_ids"] == [[tokens.bos_id, *tokens.encode(text)] for text in PLAIN]
    assert peer.padding_side == "left" and peer.model_max_length == 32
    assert len({one.generate("o gato", max_new_tokens=4) for one in (atento.load(tmp_path / "ours"), model)}) == 1


def test_w3_a_tokenizer_that_the_layout_cannot_say_is_refused(tmp_path: Path) -> None:
    tokens = atento.load(write_released("marian", tmp_path / "theirs")).tokenizer
    assert tokens is not None
    ids = dict.fromkeys(("pad", "bos", "eos", "unk", "start"), 0)
    config = presets.gpt2(vocab_size=tokens.vocab_size, d_model=16, d_ff=24, n_heads=2, n_layers=1, max_len=32, ids=ids)
    about = {"task": "language-modeling", "name": "x", "network": network_to_dict(config)}
    model = Model(build_network(config).eval(), tokens, about, None)
    said = r"Marian's tokenizer is read beside a network of Marian only: .*gpt2"
    fails(CapabilityError, said, model.save, tmp_path / "out", layout="huggingface")
    assert not (tmp_path / "out").exists()


def test_decoding_keys_of_older_folders_are_kept(tmp_path: Path) -> None:
    """Before `generation_config.json` they stood in `config.json`; a folder that has the file keeps it as it is."""
    folder = write_released("bart", tmp_path / "theirs")
    (folder / "generation_config.json").unlink()
    edited(folder / "config.json", no_repeat_ngram_size=3, num_beams=4)
    out = atento.load(folder).save(tmp_path / "ours", layout="huggingface")
    said = transformers.GenerationConfig.from_pretrained(out)
    assert (said.no_repeat_ngram_size, said.num_beams, said.decoder_start_token_id) == (3, 4, 2)
    edited(folder / "generation_config.json", num_beams=7, eos_token_id=2)
    out = atento.load(folder).save(tmp_path / "again", layout="huggingface")
    assert transformers.GenerationConfig.from_pretrained(out).num_beams == 7

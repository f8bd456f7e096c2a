"""Masking on released vocabularies: what is hidden and what replaces it are words, wherever special tokens stand."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import atento
from atento.attention.dropout import Randomness
from atento.config.reading.loading import load_recipe
from atento.config.tables.objective import OBJECTIVES, ObjectiveConfig
from atento.data.batches.batch import Batch, MemoryStore, Ragged
from atento.data.batches.masking import masking_of
from atento.data.objectives.masked import NextSentence
from atento.data.records.splits import Split
from atento.networks.output import Replaced
from atento.runs.prepare import tokenizer_and_network, training_batches
from atento.text import Tokenizer
from released_folders import TEXTS, _byte_level, _wordpiece
from test_tokenizer_families import FAIRSEQ, FAMILIES, unigram

MASKED = [*FAIRSEQ, "<mask>"]
SMALL: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
SMALL |= {"max_position_embeddings": 64}
OF_DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 64}
DEBERTA: dict[str, Any] = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True}
DEBERTA |= {"position_biased_input": False}
TOKENIZERS: dict[str, Callable[[], Any]] = {
    **FAMILIES,
    "bert": _wordpiece,
    "roberta": lambda: hf.RobertaTokenizerFast(**_byte_level(MASKED)),
    "xlm-roberta": lambda: hf.XLMRobertaTokenizerFast(vocab=[*unigram(FAIRSEQ), ("<mask>", 0.0)]),
    "camembert": lambda: hf.CamembertTokenizerFast(vocab=[*unigram(FAIRSEQ), ("<mask>", 0.0)]),
}


def small(name: str, rows: int, ids: dict[str, Any], **more: Any) -> Any:
    """Their masked model of so many rows, with the ids of a tokenizer."""
    sizes = OF_DISTILBERT if name == "DistilBert" else SMALL
    return getattr(hf, f"{name}ForMaskedLM")(getattr(hf, f"{name}Config")(vocab_size=rows, **sizes, **more, **ids))


MODELS: dict[str, Callable[[int, dict[str, Any]], Any]] = {
    **{name.lower(): partial(small, name) for name in ("Bert", "DistilBert", "MPNet")},
    **{name.lower(): partial(small, name, embedding_size=16) for name in ("Electra", "Albert")},
    "modernbert": lambda rows, ids: small(
        "ModernBert", rows, ids, cls_token_id=ids["bos_token_id"], sep_token_id=ids["eos_token_id"]
    ),
    "deberta-v2": partial(small, "DebertaV2", **DEBERTA),
    "roberta": partial(small, "Roberta", type_vocab_size=1),
    "xlm-roberta": partial(small, "XLMRoberta", type_vocab_size=1),
    "camembert": partial(small, "Camembert", type_vocab_size=1),
}
# what was done to the vocabulary -> special tokens and words that were added, rows behind it
CHANGES: dict[str, tuple[list[str], list[str], int]] = {
    "as released": ([], [], 0),
    "one special token": (["<ent>"], [], 0),
    "a special token, a word and rows behind": (["<ent>"], ["covid19"], 9),
}
UNITS = ("tokens", "words", "spans")
HIDING = [
    {"kind": kind} | ({"unit": unit} if spec.masks else {})
    for kind, spec in OBJECTIVES.items()
    if "rate" in spec.options and "encoder" in spec.architectures
    for unit in (UNITS if spec.masks else UNITS[:1])
]
NARROW = ("albert",)  # embeddings of a width of their own: no boundary of spans is predicted from these
DOCUMENTS = [f"{TEXTS[n]} covid19. {TEXTS[n + 1]}. {TEXTS[n + 2]}." for n in range(0, 90, 3)]


def hiding(family: str) -> list[dict[str, str]]:
    """The objectives that hide tokens for a family."""
    return [one for one in HIDING if family not in NARROW or one["kind"] != "span-boundary"]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, Any]]:
    """family, change -> the folder as `transformers` saves it, and their tokenizer."""

    @cache
    def made(family: str, change: str) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp(family)
        peer, (special, words, rows) = TOKENIZERS[family](), CHANGES[change]
        peer.add_tokens(words)
        peer.add_special_tokens({"additional_special_tokens": special})
        ids = {"pad": peer.pad_token_id, "bos": peer.cls_token_id, "eos": peer.sep_token_id}
        torch.manual_seed(0)
        MODELS[family](len(peer) + rows, {f"{role}_token_id": id_ for role, id_ in ids.items()}).save_pretrained(folder)
        peer.save_pretrained(folder)
        return folder, peer

    return made


def recipe(folder: Path, objective: Any) -> dict[str, Any]:
    made = {"task": "masked-language-modeling", "init": str(folder), "objective": objective}
    made["data"] = {"train": {"world": "train", "count": 3}, "max_len": 60}
    return made | {"training": {"steps": 2, "batch_tokens": 64, "warmup": 1, "precision": "float32", "log_every": 1}}


def trained(folder: Path, objective: Any, place: Path) -> Any:
    given = recipe(folder, objective) | {"data": {"train": {"memory": "train"}, "max_len": 60}}
    return atento.train(given, data={"train": DOCUMENTS}, out=place / "run", threads=1)


def batches_of(folder: Path, objective: Any) -> Iterator[Batch]:
    """All batches of an epoch, as a run makes them."""
    loaded, split = load_recipe(recipe(folder, objective), []), Split({"text": DOCUMENTS}, "")
    tokenizer, network = tokenizer_and_network(loaded, split, lambda line: None)
    batches = training_batches(loaded.recipe, network, tokenizer, split, lambda line: None)
    for update in range(batches.updates_per_epoch):
        yield from (part.batch for part in batches.parts(update))


@pytest.mark.covering
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("family", MODELS)
def test_e2_words_are_hidden_and_words_replace_them(family: str, change: str, released: Any) -> None:
    """Words by their own account: the whole vocabulary without `all_special_ids`."""
    folder, peer = released(family, change)
    words = set(peer.get_vocab().values()) - set(peer.all_special_ids)
    unknown = {peer.unk_token_id}
    for objective in hiding(family):
        hidden = read = 0
        replacing: set[int] = set()
        for batch in batches_of(folder, objective):
            ids, labels = batch.inputs["ids"], batch.labels.get("vocabulary", batch.labels.get("generator"))
            assert labels is not None
            chosen = labels >= 0
            assert set(labels[chosen].tolist()) <= words | unknown, objective
            replacing |= set(ids[chosen & (ids != labels) & (ids != peer.mask_token_id)].tolist())
            hidden += int(chosen.sum())
            read += int(batch.real("ids").sum())
        assert 0.08 < hidden / read < 0.25, (objective, hidden, read)
        assert replacing <= words, objective
        assert replacing or objective["kind"] == "replaced-token", objective


@pytest.mark.parametrize("family", MODELS)
def test_e2_every_objective_trains_on_every_family(family: str, released: Any, tmp_path: Path) -> None:
    """In one run each: all that hide tokens, of a vocabulary with a token more and rows behind it."""
    folder, peer = released(family, list(CHANGES)[-1])
    run = trained(folder, [{**one, "share": 1} for one in hiding(family) if one["kind"] != "replaced-token"], tmp_path)
    assert run.step == 2 and atento.load(run.folder).fill(f"O gato {peer.mask_token} .", top=2)


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_k1_a_generator_samples_pieces_of_the_tokenizer_alone(family: str, released: Any, tmp_path: Path) -> None:
    """Not the rows behind the vocabulary, also where they would be the likeliest, and not after updates either."""
    folder, peer = released(family, list(CHANGES)[-1])
    network = atento.load(trained(folder, "replaced-token", tmp_path).folder).network
    bias, size = network.heads["generator"].bias, network.config.vocab_size
    assert bias is not None and size == len(peer) + 9
    with torch.no_grad():
        bias[:-9] *= 0.0
        network.embedding.weight[-9:] *= 50.0  # likeliest by their vectors
    labels = torch.full((4, 30), 7)
    inputs = {"ids": torch.full((4, 30), peer.mask_token_id)}
    for step in range(3):
        sampled = network.replaced("generator", inputs, labels, Randomness(1, step=step)).state
        assert isinstance(sampled, Replaced) and int(sampled.ids.max()) < len(peer)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_k1_special_tokens_do_not_count_as_hidden_ones(family: str, released: Any) -> None:
    """A pair of RoBERTa has four of them, one of BERT three."""
    tokenizer = Tokenizer.load(released(family, next(iter(CHANGES)))[0])
    masking = masking_of(tokenizer, ObjectiveConfig("next-sentence"))
    objective = NextSentence(tokenizer.pad_id, masking, tokenizer.template(), 60, False)
    pair = {"ids": Ragged([[9] * 20, [9] * 10]), "first": Ragged([[0]]), "second": Ragged([[1]])}
    assert objective.sizes(MemoryStore(pair)).tolist() == (masking.share(np.array([30])) + 1).tolist()

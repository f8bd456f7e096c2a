"""Masking on released vocabularies, wherever special tokens stand; detection of replaced tokens beside ELECTRA."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from scipy.stats import chisquare

import atento
from atento.attention.dropout import Randomness
from atento.config.sections.network import NetworkConfig, changed
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.objective import OBJECTIVES, ObjectiveConfig
from atento.data.batches.batch import Batch, MemoryStore, Ragged
from atento.data.batches.masking import masking_of
from atento.data.objectives.masked import NextSentence
from atento.networks import Encoder, build_network
from atento.networks.electra_generator import sampled
from atento.networks.output import Replaced
from atento.released.write_layout import release
from atento.text import Tokenizer
from atento.training.losses import Call, losses
from fine_tuning import batches_of
from released_folders import FAIRSEQ, FRONT, TEXTS, TOKENIZERS, _byte_level, _wordpiece, unigram

SMALL: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
SMALL |= {"max_position_embeddings": 64}
OF_DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 64}
DEBERTA: dict[str, Any] = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True}
DEBERTA |= {"position_biased_input": False}
PEERS: dict[str, Callable[[], Any]] = {
    **TOKENIZERS,
    "bert": _wordpiece,
    "roberta": lambda: hf.RobertaTokenizerFast(**_byte_level(FAIRSEQ)),
    "xlm-roberta": lambda: hf.XLMRobertaTokenizerFast(vocab=[*unigram(FRONT), ("<mask>", 0.0)]),
    "camembert": lambda: hf.CamembertTokenizerFast(vocab=[*unigram(FRONT), ("<mask>", 0.0)]),
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
HIDING: list[dict[str, str]] = []
for _kind, _spec in OBJECTIVES.items():
    if "rate" in _spec.options and "encoder" in _spec.architectures:
        _units = [{"unit": unit} for unit in ("tokens", "words", "spans")] if _spec.masks else [{}]
        HIDING += [{"kind": _kind, **unit} for unit in _units]
NARROW = ("albert",)  # embeddings of a width of their own: no boundary of spans is predicted from these
DOCUMENTS = [f"{TEXTS[n]} covid19. {TEXTS[n + 1]}. {TEXTS[n + 2]}." for n in range(0, 90, 3)]


def hiding(family: str) -> list[dict[str, str]]:
    return [one for one in HIDING if family not in NARROW or one["kind"] != "span-boundary"]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, Any]]:
    """family, change -> the folder as `transformers` saves it, and their tokenizer."""

    @cache
    def made(family: str, change: str) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp(family)
        peer, (special, words, rows) = PEERS[family](), CHANGES[change]
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
    made["data"] = {"train": {"memory": "train"}, "max_len": 60}
    return made | {"training": {"steps": 2, "batch_tokens": 64, "warmup": 1, "precision": "float32", "log_every": 1}}


def trained(folder: Path, objective: Any, place: Path) -> Any:
    return atento.train(recipe(folder, objective), data={"train": DOCUMENTS}, out=place / "run", threads=1)


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
        batches = batches_of(recipe(folder, objective), DOCUMENTS)[0]
        for batch in (part.batch for update in range(batches.updates_per_epoch) for part in batches.parts(update)):
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


V, PAD, MASK = 31, 0, 4


def electra(folder: Path) -> tuple[Any, Any, Encoder]:
    """Theirs, the generator half as large as the discriminator, with the same embeddings; and ours of both."""
    torch.manual_seed(5)
    sizes = {"vocab_size": V, "embedding_size": 12, "num_hidden_layers": 2, "max_position_embeddings": 16}
    sizes |= {"initializer_range": 0.4, "hidden_act": "gelu", "pad_token_id": PAD}
    small = hf.ElectraConfig(hidden_size=8, num_attention_heads=1, intermediate_size=16, **sizes)
    large = hf.ElectraConfig(hidden_size=16, num_attention_heads=2, intermediate_size=32, **sizes)
    generator, discriminator = hf.ElectraForMaskedLM(small), hf.ElectraForPreTraining(large)
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
    for name, model in (("generator", generator), ("discriminator", discriminator)):
        model.eval().save_pretrained(folder / name)
    ours, whole = (atento.load(folder / name).network for name in ("generator", "discriminator"))
    heads = (HeadConfig("generator", size=0.5, activation="gelu"), *whole.config.heads)
    network: Any = build_network(changed(whole.config, heads=heads)).eval()
    missing, unexpected = network.load_state_dict(whole.state_dict(), strict=False)
    assert not unexpected and all(name.startswith("heads.generator.") for name in missing)
    inner = network.heads["generator"]
    inner.stack.load_state_dict(ours.stack.state_dict())
    inner.projection.load_state_dict(ours.inputs.projection.state_dict())
    inner.vocabulary.load_state_dict(ours.vocabulary_head.state_dict(), strict=False)
    return generator, discriminator, network


def test_losses_and_gradients_are_those_of_transformers(tmp_path: Path) -> None:
    generator, discriminator, network = electra(tmp_path)
    original = torch.randint(5, V, (3, 9), generator=torch.Generator().manual_seed(2))
    labels, ids = torch.full_like(original, -1), original.clone()
    labels[:, [2, 5, 6]] = original[:, [2, 5, 6]]
    ids[labels >= 0] = MASK
    real = torch.arange(9) < torch.tensor([9, 7, 8])[:, None]
    ids[~real], labels[~real], original[~real] = PAD, -1, -1
    batch = Batch({"ids": ids, "token_mask": real}, {"generator": labels, "replaced-token": original})
    state = network.replaced("generator", batch.inputs, batch.labels["generator"], Randomness(1)).state
    assert isinstance(state, Replaced)
    sums = losses(network, batch, Call(Randomness(1)))
    chosen = labels >= 0
    assert torch.equal(state.ids[~chosen & real], original[~chosen & real])  # samples stand for masks alone
    logits = generator(batch.inputs["ids"], attention_mask=real.long()).logits
    theirs_generator = F.cross_entropy(logits[chosen], labels[chosen], reduction="sum")
    wrong = (state.ids != original).long()
    assert 0 < int(wrong[chosen].sum()) <= int(chosen.sum())
    theirs_detector = discriminator(state.ids, attention_mask=real.long(), labels=wrong).loss * int(real.sum())
    torch.testing.assert_close(sums["generator"][0].float(), theirs_generator, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sums["replaced-token"][0], theirs_detector, rtol=1e-4, atol=1e-4)
    ours = sums["generator"][0] + 50 * sums["replaced-token"][0]
    (gradient,) = torch.autograd.grad(ours, [network.embedding.weight], retain_graph=True)
    table = discriminator.electra.embeddings.word_embeddings.weight
    (expected,) = torch.autograd.grad(theirs_generator + 50 * theirs_detector, [table])
    expected[PAD] = gradient[PAD] = 0  # transformers gives padding no gradient from its input
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-3)
    inner = network.heads["generator"]
    nothing = torch.autograd.grad(sums["replaced-token"][0], list(inner.parameters()), allow_unused=True)
    assert all(value is None for value in nothing)  # no gradient passes through the samples


def test_the_discriminator_is_exported_without_its_generator(tmp_path: Path) -> None:
    _, discriminator, network = electra(tmp_path)
    data, tensors = release(network.config, network.state_dict())
    assert data["architectures"] == ["ElectraForPreTraining"] and not any("generator" in name for name in tensors)
    before = discriminator.state_dict()
    assert all(torch.equal(before[name], value) for name, value in tensors.items())


def test_samples_follow_the_generators_distribution_and_its_randomness() -> None:
    torch.manual_seed(1)
    weight, bias = torch.randn(7, 3), torch.randn(7)
    vectors = torch.randn(1, 3).expand(20_000, 3)
    ids = sampled(vectors, weight, bias, Randomness(3))
    law = F.linear(vectors[0], weight, bias).double().softmax(dim=-1).numpy()
    assert chisquare(torch.bincount(ids, minlength=7).numpy(), law * len(ids)).pvalue > 1e-3
    assert torch.equal(ids, sampled(vectors, weight, bias, Randomness(3)))
    assert not torch.equal(ids, sampled(vectors, weight, bias, Randomness(3, step=1)))


def test_a_generator_shares_the_embedding_and_scales_its_layers() -> None:
    heads = (HeadConfig("generator", size=0.25), HeadConfig("replaced-token", hidden=True))
    config = NetworkConfig("encoder", vocab_size=V, d_model=32, d_ff=64, n_heads=8, n_layers=2, heads=heads)
    shapes = {name: tuple(value.shape) for name, value in build_network(config).state_dict().items()}
    assert [name for name, shape in shapes.items() if V in shape and len(shape) == 2] == ["embedding.weight"]
    assert shapes["heads.generator.projection.weight"] == (8, 32)
    assert shapes["heads.generator.stack.blocks.0.feed_forward.inner.weight"] == (16, 8)
    with pytest.raises(atento.AtentoError, match="a generator head belongs to an encoder"):
        NetworkConfig("decoder", vocab_size=V, heads=(HeadConfig("generator"),))

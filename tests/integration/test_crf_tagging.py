"""A conditional random field over tags, from a recipe to a tagged text: learning, saving, `init`, refusals (G4)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.base.errors import CapabilityError, DataError, RecipeError
from atento.metrics.tag_schemes import converted, illegal
from atento.models.peft import save_adapter
from atento.networks.heads import CRFHead
from atento.runs.train import TrainedRun
from atento.tasks.tagging import word_tags
from atento_cli.convert.engines import convert_for
from conftest import ForkServer, refused
from failing import fails
from runs import events
from test_tagging import FRAMES, records

CRF: dict[str, Any] = {"heads": [{"kind": "crf"}]}
TINY: dict[str, Any] = {"architecture": "encoder", "d_model": 32, "d_ff": 32, "n_heads": 2, "n_layers": 1}
TINY |= {"dropout": 0.0, "max_len": 48}
ALONE = {"mask": {"kind": "window", "left": 0, "right": 0}, "positions": {"kind": "none"}}  # each word by itself
TRAINING = {"batch_tokens": 120, "learning_rate": 5e-3, "warmup": 5, "precision": "float32", "validate_every": 1000}
Sentence = tuple[list[str], list[str]]


def recipe(network: dict[str, Any], steps: int = 60, **rest: Any) -> dict[str, Any]:
    base = {"task": "tagging", "data": {}, "tokenizer": {"kind": "bpe", "vocab_size": 330}, "network": TINY | network}
    return base | {"training": TRAINING | {"steps": steps}} | rest


def train(given: dict[str, Any], data: Any, out: Path) -> TrainedRun:
    return atento.train(given, data=data, out=out, threads=1)


def names() -> list[Sentence]:
    return records([frame.replace(" 📖", "") for frame in FRAMES])


def turns(count: int, seed: int) -> list[Sentence]:
    """Three tags in turn; the words "um", "dois" and "três" say theirs, and "outro" nothing: transitions alone do."""
    random, made = np.random.default_rng(seed), []
    for _ in range(count):
        first, length = random.integers(3), random.integers(2, 9)
        numbers = [int(first + place) % 3 for place in range(length)]
        known = random.random(length) < 0.3
        known[random.integers(length)] = True
        words = [("um", "dois", "três")[number] if says else "outro" for number, says in zip(numbers, known)]
        made.append((words, [("A", "B", "C")[number] for number in numbers]))
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    here = tmp_path_factory.mktemp("crf")
    lines = ["\t".join([" ".join(words), " ".join(tags)]) for words, tags in names()]
    (here / "names.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    source = {"file": str(here / "names.tsv"), "tokens": 0, "tags": 1}
    given = recipe(CRF, data={"train": source, "valid": source})
    (here / "crf.yaml").write_text(json.dumps(given), encoding="utf-8")
    return atento.train(given, out=here / "run", threads=1)


def test_transitions_learn_what_a_word_alone_does_not_say(tmp_path: Path) -> None:
    """Planted data whose words are read alone: the plain head guesses a tag of three for most of them."""
    accuracy = {}
    for name, heads in (("plain", {}), ("crf", CRF)):
        folder = train(recipe(ALONE | heads, 80, tokenizer={"kind": "word"}), turns(150, 1), tmp_path / name).folder
        accuracy[name] = atento.evaluate(folder, turns(200, 2))["tag-accuracy"].value
    assert accuracy["crf"] > 0.99 and accuracy["plain"] < 0.7


def test_a_recipe_learns_entities_by_a_crf(run: TrainedRun, tmp_path: Path) -> None:
    assert run.best == 1.0
    model = atento.load(run.folder)
    (head,) = model.network.config.heads
    assert (head.kind, head.name, head.labels) == ("crf", "tagging", ("B-LOC", "B-PER", "I-LOC", "I-PER", "O"))
    text = "Em  Porto Alegre Inês de Castro lê."
    found = model.tag(text)
    assert [(entity.label, entity.text) for entity in found] == [("LOC", "Porto Alegre"), ("PER", "Inês de Castro")]
    assert model.tag([text, "", "Ana"])[:2] == [found, []]
    assert atento.evaluate(model, names())["entity-f1"].value == 1.0
    assert events(run.folder, "valid")[-1]["nll"] < 0.1  # of the whole sequence, for each word


def test_illegal_tags_never_come_out_and_marginals_give_the_others(run: TrainedRun, tmp_path: Path) -> None:
    """On random weights: by default legal sequences alone; with constrained=False the best tag of each word."""
    model, words = atento.load(run.folder), [sentence for sentence, _ in names()]
    with torch.no_grad():
        for seed, (name, parameter) in enumerate(model.network.named_parameters()):
            if name.startswith("heads."):
                torch.nn.init.normal_(parameter, std=1.0, generator=torch.Generator().manual_seed(seed))
    probabilities = word_tags(model, words)
    labels = model.network.config.heads[0].labels
    for constrained in (None, True, False):
        tagged = model.tag_words(words=words, constrained=constrained)
        broken = sum(len(illegal([word.label for word in sentence], "IOB2")) for sentence in tagged)
        assert (broken > 0) == (constrained is False)
        for sentence, rows in zip(tagged, probabilities):
            assert rows.sum(axis=1) == pytest.approx(1.0)
            shares = [rows[number, labels.index(word.label)] for number, word in enumerate(sentence)]
            assert [word.probability for word in sentence] == pytest.approx(shares)
    # the probability of an entity is that of its tags together: of two words, at most that of either
    for sentence, items in zip(model.tag(words=words), model.tag_words(words=words)):
        of_word = {item.start: item.probability for item in items}
        for entity in sentence:
            inside = [share for start, share in of_word.items() if entity.start <= start < entity.end]
            assert max(0.0, sum(inside) - len(inside) + 1) - 1e-9 <= entity.probability <= min(inside) + 1e-9


def test_the_commands(run: TrainedRun, server: ForkServer) -> None:
    here = run.folder.parent
    done = server.run("tag", "run", cwd=here, stdin="Ana mora em Porto Alegre.\n\n")
    assert done.stdout == "Ana/PER mora em [Porto Alegre]/LOC .\n\n"
    done = server.run("evaluate", "run", "names.tsv", "--json", cwd=here)
    assert json.loads(done.stdout)["entity-f1"]["value"] == 1.0, done.stderr
    assert server.run("config", "check", "crf.yaml", cwd=here).status == 0
    peeked = json.loads(server.run("data", "peek", "crf.yaml", "--count", "1", "--json", cwd=here).stdout)
    assert set(peeked["labels"]["tokens"]) <= {"B-LOC", "B-PER", "I-LOC", "I-PER", "O"}
    assert server.run("plan", "crf.yaml", cwd=here).status == 0
    assert atento.train(json.loads((here / "crf.yaml").read_text()), out=here / "run", threads=1).already_finished


def test_saved_and_loaded_it_is_the_same(run: TrainedRun, tmp_path: Path) -> None:
    model, words = atento.load(run.folder), [sentence for sentence, _ in names()]
    tags, expected = model.tag(words=words), word_tags(model, words)
    again = atento.load(model.save(tmp_path / "saved"))
    assert again.tag(words=words) == tags
    for name, value in again.network.state_dict().items():
        assert torch.equal(value, model.network.state_dict()[name])
    in_8_bits = atento.load(model.save(tmp_path / "int8", precision="int8"))
    for precision, near in (("bfloat16", 0.05), ("int8", 0.05), (None, 0.05)):
        other = in_8_bits if precision is None else atento.load(run.folder, precision=precision)
        for rows, right in zip(word_tags(other, words), expected):
            assert rows == pytest.approx(right, abs=near)
    alone = [word_tags(model, [sentence])[0] for sentence in words[:5]]
    assert all(one == pytest.approx(right, abs=1e-5) for one, right in zip(alone, expected))  # batch = alone


def test_a_plain_head_becomes_a_crf_and_the_other_way(run: TrainedRun, tmp_path: Path, capsys: Any) -> None:
    plain = train(recipe({}), names(), tmp_path / "plain").folder
    still = {"training": TRAINING | {"steps": 1, "learning_rate": 0.0}, "network": {}}
    scores = "heads.tagging.out.weight"
    for start, heads, says in (
        (plain, CRF, f"the tagging head of {plain} becomes a crf head; its transitions begin at 0"),
        (run.folder, {"heads": [{"kind": "tagging"}]}, "becomes a tagging head; its transitions are left out"),
    ):
        kind = heads["heads"][0]["kind"]
        folder = train(recipe({}) | still | {"network": heads, "init": str(start)}, names(), tmp_path / kind).folder
        printed = capsys.readouterr().err
        assert printed.count(says) == 1, printed
        before, after = (atento.load(one).network for one in (start, folder))
        assert after.config.heads[0].kind == kind and after.state_dict()[scores].equal(before.state_dict()[scores])
        assert isinstance(after.heads["tagging"], CRFHead) == (kind == "crf")
    # without a word on heads it stays one, with its transitions; with other tags both begin anew
    renamed = [(words, [tag.replace("LOC", "GPE") for tag in tags]) for words, tags in names()]
    for name, data, same in (("same", names(), True), ("renamed", renamed, False)):
        folder = train(recipe({}) | still | {"init": str(run.folder)}, data, tmp_path / name).folder
        before, after = (atento.load(one).network.heads["tagging"] for one in (run.folder, folder))
        assert isinstance(before, CRFHead) and isinstance(after, CRFHead)
        assert after.transitions.equal(before.transitions) == after.out.weight.equal(before.out.weight) == same
        assert same or not after.transitions.any()


def test_tags_that_break_the_scheme_are_said_and_learned_as_it_writes_them(tmp_path: Path, capsys: Any) -> None:
    wrong = [(words, [tags[0].replace("B-", "I-"), *tags[1:]]) for words, tags in names()]
    run = train(recipe(CRF), {"train": wrong, "valid": names()}, tmp_path / "run")
    printed = capsys.readouterr().err
    assert "tags cannot follow the tag before by the rules of IOB2; the first is 'I-PER' of word 1" in printed
    assert "break IOB2: the crf head learns their entities as IOB2 writes them" in printed
    assert run.best == 1.0
    alone = [(["Ana", "lê"], ["I-PER", "O"]), (["Em", "Évora"], ["O", "B-LOC"]), (["Rui", "Costa"], ["I-PER", "I-PER"])]
    model = atento.load(train(recipe(CRF, 1), alone, tmp_path / "alone").folder)
    assert model.network.config.heads[0].labels == ("B-LOC", "B-PER", "I-PER", "O")  # B-PER is in no file


@pytest.mark.parametrize("scheme", ["BIOES", "BILOU"])
def test_sentences_that_are_cut_inside_an_entity_have_a_loss(scheme: str, tmp_path: Path) -> None:
    data = [(words, list(converted(tags, scheme))) for words, tags in names()]
    run = train(recipe(CRF | {"max_len": 7}, 40) | {"data": {"max_len": 7}}, data, tmp_path / "run")
    assert events(run.folder, "train")[-1]["nll"] < 5
    tagged = atento.load(run.folder).tag_words(words=[words for words, _ in data])
    assert not any(illegal([word.label for word in sentence], scheme) for sentence in tagged)


NETWORKS: list[dict[str, Any]] = [
    {"architecture": "decoder"},
    {"architecture": "encoder-decoder"},
    {"architecture": "recurrent-lm", "d_model": 32, "n_layers": 1, "dropout": 0.0},
    {"architecture": "encoder", "preset": "bert-tiny"},
]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.get("preset", network["architecture"]))
def test_every_network_that_tags_can_have_one(network: dict[str, Any], tmp_path: Path) -> None:
    given = recipe({}, 30)
    given["network"] = (TINY | network if "d_model" not in network else network) | CRF
    model = atento.load(train(given, names(), tmp_path / "run").folder)
    words = [sentence for sentence, _ in names()[:4]]
    for sentence, probabilities in zip(words, word_tags(model, words)):
        assert word_tags(model, [sentence])[0] == pytest.approx(probabilities, abs=1e-5)


def test_what_reads_its_probabilities_or_scores(run: TrainedRun, tmp_path: Path) -> None:
    """R-Drop, a teacher, explanations: with the probabilities of the chain, or by name without transitions."""
    for name, more in (
        ("r-drop", {"network": TINY | CRF | {"dropout": 0.1}, "training": TRAINING | {"steps": 3, "r_drop": 1.0}}),
        ("student", {"teacher": str(run.folder), "training": TRAINING | {"steps": 3}}),
        ("plain student", {"teacher": str(run.folder), "network": TINY, "training": TRAINING | {"steps": 3}}),
    ):
        folder = train(recipe(CRF) | more, names(), tmp_path / name).folder
        assert all(np.isfinite(event["loss"]) for event in events(folder, "train"))
    assert atento.load(run.folder).explain("Ana mora em Évora").quantity == "log-odds of the tags before transitions"


def test_layouts_and_engines_that_have_no_place_for_transitions(tmp_path: Path) -> None:
    folder = train(recipe(CRF | {"preset": "bert-tiny"}, 2), names(), tmp_path / "run").folder
    model = atento.load(folder)
    says = "no Bert class of the Hugging Face layout holds the heads crf"
    fails(CapabilityError, says, model.save, tmp_path / "hf", layout="huggingface")
    for engine, part in (
        ("onnx", "ONNX.* does not hold the transitions of a crf head, which"),
        ("ctranslate2", "CTranslate2 does not hold a crf head, which"),
    ):
        pytest.importorskip(engine, reason=f"{engine} is not installed (extra dev)")
        fails(CapabilityError, part, convert_for, folder, tmp_path / engine, engine)
    assert not (tmp_path / "hf").exists() and not (tmp_path / "onnx").exists()
    lora = recipe({}, 2) | {"network": CRF, "init": {"model": str(folder), "train": "lora"}}
    adapted = train(lora, names(), tmp_path / "lora").folder
    assert isinstance(atento.load(adapted).network.heads["tagging"], CRFHead)
    fails(CapabilityError, f"PEFT .* of this network: {says}", save_adapter, adapted, tmp_path / "peft", base="bert")


def head(**changes: Any) -> dict[str, Any]:
    return {"network": {"heads": [{"kind": "crf"} | changes]}}


OF_TEXTS = {"task": "classification", "network": CRF}
SMOOTHED = {"training": {"label_smoothing": 0.1, "steps": 1}}


@pytest.mark.parametrize(
    ("changes", "data", "error", "says"),
    [
        (head(labels=["O"]), names(), RecipeError, "`labels` must name at least two for a crf head"),
        (head(kind="crfs"), names(), RecipeError, "'crfs'; did you mean 'crf'"),
        (OF_TEXTS, [("a", "x"), ("b", "y")], RecipeError, "a crf head gives a tag to each word: got task classif"),
        (SMOOTHED, names(), RecipeError, "`training.label_smoothing` must be 0 for a crf head, whose sequences"),
        (head(labels=["B-PER", "I-PER", "O"]), names(), DataError, "unknown tag 'B-LOC' of word 4, 'Lisboa'"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], data: Any, error: type[Exception], says: str, tmp_path: Path) -> None:
    given = recipe(CRF) | changes
    given["network"] = TINY | given["network"] | ({} if "network" in changes else CRF)
    with pytest.raises(error) as refusal:
        train(given, data, tmp_path / "run")
    assert says in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_classifier_that_is_fitted_at_once_is_none(run: TrainedRun, tmp_path: Path, server: ForkServer) -> None:
    init = {"model": str(run.folder), "train": "head", "classifier": {"kind": "logistic"}}
    with pytest.raises(RecipeError, match=r"`init\.classifier` fits a linear head at once, and a crf head is trained"):
        train(recipe({}) | {"network": CRF, "init": init}, names(), tmp_path / "run")
    refused(server.run("tag", str(run.folder), "--threads", "no", cwd=tmp_path, stdin="a\n"), "no")


def test_one_of_several_heads_over_an_encoder_is_a_crf(tmp_path: Path) -> None:
    """Its name is that of its task, and its transitions learn beside the loss of the other task."""
    lines = [f"{' '.join(words)}\t{' '.join(tags)}" for words, tags in names()]
    (tmp_path / "names.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    texts = [f"{' '.join(words)}\t{'ask' if words[-1] == '!' else 'say'}" for words, _ in names()]
    (tmp_path / "texts.tsv").write_text("\n".join(texts) + "\n", encoding="utf-8")
    tags = {"file": str(tmp_path / "names.tsv"), "tokens": 0, "tags": 1}
    labels = {"file": str(tmp_path / "texts.tsv"), "text": 0, "label": 1}
    given = recipe({"heads": [{"kind": "crf", "name": "names"}]}, 120)
    del given["task"], given["data"]
    given["tasks"] = [
        {"name": "names", "task": "tagging", "data": {"train": tags}, "batch_tokens": 120},
        {"name": "mood", "task": "classification", "data": {"train": labels}},
    ]
    model = atento.load(atento.train(given, out=tmp_path / "run", threads=1).folder)
    assert {head.name: head.kind for head in model.network.config.heads} == {"names": "crf", "mood": "classification"}
    head = model.network.heads["names"]
    assert isinstance(head, CRFHead) and bool(head.transitions.any())
    found = model.tag("Em Porto Alegre Ana lê .")
    assert [(entity.label, entity.text) for entity in found] == [("LOC", "Porto Alegre"), ("PER", "Ana")]
    given["network"] = TINY | {"heads": [{"kind": "crf", "name": "mood"}]}
    with pytest.raises(RecipeError, match=r"network\.heads: a crf head gives a tag .*: got task classification"):
        atento.train(given, out=tmp_path / "wrong", threads=1)

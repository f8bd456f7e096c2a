"""Studies: the family race with its questions and scores, and the exposure laboratory with its losses and report."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from atento.base.errors import RecipeError, UsageError
from atento.config import presets
from atento.config.reading.loading import load_recipe
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.recurrent import CBOWConfig, CharacterConfig, ELMoConfig, RecurrentConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches.batch import Batch
from atento.data.objectives.sequence_to_sequence import HEAD
from atento.model import Model
from atento.networks import build_network
from atento.tasks.prefixes import free_running, losses_by_step, shifted
from atento.text import Tokenizer
from atento.text.specials import sentinels
from atento_cli.commands.bench import show
from atento_lab.studies import REPORTS
from atento_lab.studies import race_probes as probes
from atento_lab.studies.exposure import PLANTED_AT, TEACHER_FORCING, Size, exposure, measure, world, wrong_words
from atento_lab.studies.exposure_report import panels, schedules
from atento_lab.studies.race import measure_race, read_race
from atento_lab.studies.race_ngrams import DISCOUNT, NGrams
from atento_lab.studies.race_report import report_race
from failing import fails

WORDS = ["o", "a", "gato", "menina", "dorme", "corre", "na", "casa", "rua", "e", "canta", "fala", "hoje"]
QUESTION = probes.Question(("o", "gato", "dorme", "na", "casa", "hoje"), 3, ("na", "e", "rua"))
TOKENIZER = Tokenizer.from_vocabulary("word", WORDS, extra_specials=sentinels(3))
IDS = {role: getattr(TOKENIZER, f"{role}_id") for role in ("pad", "bos", "eos", "unk", "mask")}
SIZES: dict[str, Any] = {"d_model": 16, "d_ff": 24, "n_heads": 2, "n_layers": 1}
SIZES |= {"vocab_size": TOKENIZER.vocab_size, "ids": IDS | {"start": TOKENIZER.pad_id}}


def model(task: str, config: NetworkConfig) -> Model:
    torch.manual_seed(3)
    network = build_network(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))  # output vectors of CBOW begin at 0
    return Model(network, TOKENIZER, {"task": task, "name": "tiny"}, None)


def written(ids: list[int], start: int, logits: Callable[[list[int]], torch.Tensor]) -> float:
    """The log-probability of the ids from a place on, each by the logits after those before it."""
    return sum(float(torch.log_softmax(logits(ids[:end]).detach(), -1)[ids[end]]) for end in range(start, len(ids)))


def test_a_question_has_ten_different_answers_of_which_the_first_is_right() -> None:
    texts = ["o gato dorme na casa", "a menina corre na rua hoje", "o gato canta e fala", "a menina dorme", "xyz"]
    asked = probes.questions(TOKENIZER, texts)
    assert len(asked) == 3  # the last two have no word after the first three
    for question in asked:
        assert question.position >= 3 and question.answers[0] == question.words[question.position]
        assert len(set(question.answers)) == probes.ANSWERS == len(question.answers)
    assert probes.questions(TOKENIZER, texts) == asked


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("architecture", ["decoder", "recurrent-lm"])
def test_a_causal_model_scores_an_answer_by_the_words_after_it_too(architecture: str, both: bool) -> None:
    lm = model("language-modeling", NetworkConfig(architecture=architecture, **SIZES))
    for answer, score in zip(QUESTION.answers, probes.causal_scores(lm, QUESTION, both).tolist()):
        text = [*QUESTION.words[:3], answer, *(QUESTION.words[4:] if both else ())]
        ids = [TOKENIZER.bos_id, *(TOKENIZER.token_id(word) for word in text), *([TOKENIZER.eos_id] if both else [])]
        expected = written(ids, 4, lambda before: lm.network(torch.tensor([before])).logits[0, -1])
        assert score == pytest.approx(expected, abs=1e-4)


def test_masked_models_and_encoder_decoders_score_answers_where_they_stand() -> None:
    heads = (HeadConfig("masked-language-model"),)
    bert = model("masked-language-modeling", presets.bert_tiny(pooler=False, heads=heads, **SIZES))
    probabilities = {one.token: one.probability for one in bert.fill("o gato dorme <mask> casa hoje", top=13)}
    scores = probes.masked_scores(bert, QUESTION, True).exp()
    assert float(scores[0] / scores[1]) == pytest.approx(probabilities["na"] / probabilities["e"], rel=1e-4)
    other_right = probes.Question((*QUESTION.words[:4], "rua", "e"), 3, QUESTION.answers)
    assert torch.equal(probes.masked_scores(bert, QUESTION, False), probes.masked_scores(bert, other_right, False))
    assert not torch.equal(probes.masked_scores(bert, QUESTION, True), probes.masked_scores(bert, other_right, True))
    t5 = model("span-corruption", presets.t5_small(n_decoder_layers=1, attention={"d_head": 8}, **SIZES))
    source = TOKENIZER.encode_with_mask("o gato dorme <extra_id_0> casa hoje")
    first = TOKENIZER.token_id("<extra_id_0>")
    assert first is not None and first in source
    ids = torch.tensor([[*source, TOKENIZER.eos_id]])
    logits = t5.network(ids, torch.tensor([[TOKENIZER.pad_id, first]])).logits[0, -1]
    expected = torch.log_softmax(logits, dim=-1)[[TOKENIZER.token_id(word) for word in QUESTION.answers]]
    assert torch.allclose(probes.span_scores(t5, QUESTION, True), expected, atol=1e-5)
    marian = model("translation", NetworkConfig(**SIZES))  # a family without a scorer
    assert probes.accuracy(marian, "sequence-to-sequence", [QUESTION], both=True) is None


@pytest.mark.parametrize("both", [True, False])
def test_a_denoising_model_scores_an_answer_as_its_output(both: bool) -> None:
    bart = model("span-corruption", presets.bart_base(n_decoder_layers=1, max_len=40, **SIZES))
    right = " casa hoje" if both else ""
    source = torch.tensor([[*TOKENIZER.encode_with_mask(f"o gato dorme <mask>{right}"), TOKENIZER.eos_id]])
    for answer, score in zip(QUESTION.answers, probes.denoising_scores(bart, QUESTION, both).tolist()):
        ids = [TOKENIZER.pad_id, *TOKENIZER.encode(f"o gato dorme {answer}{right}"), *[TOKENIZER.eos_id] * both]
        expected = written(ids, 4, lambda before: bart.network(source, torch.tensor([before])).logits[0, -1])
        assert score == pytest.approx(expected, abs=1e-4)


def test_word_models_read_the_neighbours_of_the_word() -> None:
    options = {name: SIZES[name] for name in ("vocab_size", "d_model", "n_layers")}
    cbow = model("cbow", NetworkConfig(architecture="cbow", cbow=CBOWConfig(window=2, negatives=2), **options))
    weights = dict(cbow.network.named_parameters())
    mean = weights["input_weight"][[TOKENIZER.token_id(word) for word in ("gato", "dorme", "casa", "hoje")]].mean(dim=0)
    answers = [TOKENIZER.token_id(word) for word in QUESTION.answers]
    found = probes.window_scores(cbow, QUESTION, True)
    assert torch.allclose(found, weights["output_weight"][answers] @ mean, atol=1e-5)
    of_elmo = ELMoConfig(d_cell=8, characters=CharacterConfig(d_char=4, filters=((1, 8),), max_characters=12))
    elmo = model("bidirectional-language-modeling", NetworkConfig(architecture="elmo", elmo=of_elmo, **options))
    changed = probes.Question((*QUESTION.words[:4], "rua", "e"), 3, QUESTION.answers)
    left = probes.bidirectional_scores(elmo, QUESTION, False)
    assert torch.allclose(left, probes.bidirectional_scores(elmo, changed, False))
    behind = probes.bidirectional_scores(elmo, QUESTION, True) - left
    assert not torch.allclose(behind, probes.bidirectional_scores(elmo, changed, True) - left)
    same_word = probes.Question((*QUESTION.words[:3], "rua", *QUESTION.words[4:]), 3, QUESTION.answers)
    both = probes.bidirectional_scores(elmo, same_word, True)
    assert torch.allclose(both, left + behind)  # the word itself is not read


@pytest.mark.parametrize("both", [True, False])
def test_a_prefix_model_reads_the_words_on_the_left_in_both_directions(both: bool) -> None:
    """As its own steps of generation score the same words after the same prompt."""
    lm = model("prefix-language-modeling", NetworkConfig(architecture="decoder", **SIZES))
    prompt = [TOKENIZER.bos_id, *(TOKENIZER.token_id(word) for word in QUESTION.words[:3])]
    tail = [TOKENIZER.token_id(word) for word in QUESTION.words[4:]] if both else []
    allowed = torch.ones(len(prompt) + 3, len(prompt) + 3).tril().bool()
    allowed[:, : len(prompt)] = True
    for answer, score in zip(QUESTION.answers, probes.prefix_scores(lm, QUESTION, both).tolist()):
        ids = [*prompt, TOKENIZER.token_id(answer), *tail, *([TOKENIZER.eos_id] if both else [])]

        def logits(before: list[int]) -> torch.Tensor:
            mask = allowed[None, None, : len(before), : len(before)]
            return lm.network(torch.tensor([before]), mask=mask).logits[0, -1]

        assert score == pytest.approx(written(ids, len(prompt), logits), abs=1e-4)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_n_grams_are_those_of_nltk(order: int) -> None:
    """NLTK on the same counts, single words with 1/V; behind BOS alone its probabilities do not sum to 1."""
    from nltk.lm import KneserNeyInterpolated
    from nltk.util import everygrams

    padded = [[1] * (order - 1) + text + [2] for text in [[3, 4, 5, 3, 4], [3, 5, 5], [4, 3, 4, 6], [5]]]
    counted = NGrams(padded, order, 8)
    theirs = KneserNeyInterpolated(order, discount=DISCOUNT)
    named = [list(map(str, text)) for text in padded]
    theirs.fit([everygrams(text, max_len=order) for text in named], [word for text in named for word in text])
    theirs.estimator.unigram_score = lambda word: counted.probability((), int(word))
    for history in ([], [1, 3], [3, 4], [5, 5], [6, 6], [7, 3]):
        context = history[max(0, len(history) - order + 1) :]
        assert sum(counted.probability([1, 1], word) for word in range(8)) == pytest.approx(1.0)
        assert sum(counted.probability(history, word) for word in range(8)) == pytest.approx(1.0)
        for word in range(2, 7):
            expected = theirs.score(str(word), list(map(str, context)))
            assert counted.probability(history, word) == pytest.approx(expected), (history, word)
    assert counted.parameters == len({text[at : at + n] for text in map(tuple, padded) for n in range(1, order + 1)
                                      for at in range(order - n, len(text) - n + 1)})  # fmt: skip


def test_the_shipped_race_is_read_and_its_entrants_are_of_about_equal_size(tmp_path: Path) -> None:
    race = read_race()
    assert race.ngrams == {"trigrams": 3} and {"prefix-lm", "rnn-attention"} <= set(race.entrants)
    sizes_by_name = {}
    for name in race.entrants.keys() - race.ngrams.keys() - {"cbow"}:
        config = load_recipe(race.entrants[name], environment={}).recipe.network
        with torch.device("meta"):
            shapes = [parameter.shape for parameter in build_network(changed(config, vocab_size=2000)).parameters()]
        sizes_by_name[name] = sum(shape.numel() for shape in shapes if 2000 not in shape)
    assert all(850_000 < size < 1_250_000 for size in sizes_by_name.values()), sizes_by_name
    assert {"rnn", "lstm", "cbow", "elmo", "gpt", "bert", "t5", "bart", "marian"} <= set(race.entrants)
    assert race.pairs is not None and race.classes == ["tense", "number", "question"]
    fails(UsageError, "this race has no entrant 'x': it has trigrams, rnn, lstm", next, measure_race(1, only=["x"]))
    fails(UsageError, "cannot be read", read_race, tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("entrants: {}", "base, entrants and probes"),
        ("base: {tokenizer: {kind: bpe}}\nentrants: {x: {task: language-modeling, data: {train: {world: train}}}}",
         "needs `tokenizer.kind` word"),
        ("base: {tokenizer: {kind: word}}\nentrants: {x: {task: language-modeling, data: {train: {world: train}}}}",
         "`probes` needs `texts`"),
        ("entrants: {x: {ngrams: 0}}", "`ngrams` is the only key of its entrant, a number from 1 to 9: got"),
        ("entrants: {x: {ngrams: 2, task: language-modeling}}", "`ngrams` is the only key"),
    ],
)  # fmt: skip
def test_what_is_no_race_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "race.yaml"
    file.write_text(text)
    fails(RecipeError, words, read_race, file)


RACE = """
base:
  data: {train: {file: text.txt}, max_len: 16}
  tokenizer: {kind: word, vocab_size: 60}
  training: {learning_rate: 1e-2, batch_tokens: 512, precision: float32}
entrants:
  bigrams: {ngrams: 2}
  gpt:
    task: language-modeling
    network: {d_model: 16, d_ff: 32, n_heads: 2, n_layers: 1, dropout: 0.0}
  cbow:
    task: cbow
    network: {d_model: 16, cbow: {window: 2, negatives: 3}}
probes:
  texts: {file: text.txt, count: 40}
  classes: {animals: animals.txt, people: people.txt}
"""


@pytest.mark.slow  # trains a race
def test_a_race_on_own_text_has_rows_of_every_checkpoint_and_a_page(tmp_path: Path) -> None:
    animals = [f"o {noun} {verb} na {place} hoje" for noun, verb, place in product(
        ["gato", "pato", "rato", "boi"], ["dorme", "corre", "come"], ["casa", "rua", "mata"])]  # fmt: skip
    people = [text.replace("o ", "a ", 1).replace("gato", "menina").replace("pato", "moça") for text in animals]
    (tmp_path / "animals.txt").write_text("\n".join(animals))
    (tmp_path / "people.txt").write_text("\n".join(people))
    too_long = " ".join(["gato"] * 30)  # no entrant reads more than 16 words
    (tmp_path / "text.txt").write_text("\n".join([too_long, *animals, *people]))
    (tmp_path / "race.yaml").write_text(RACE)
    rows = list(measure_race(0.3, race=tmp_path / "race.yaml"))
    by_entrant = {name: [row for row in rows if row["entrant"] == name] for name in ("gpt", "cbow")}
    for name, own in by_entrant.items():
        steps = [row["step"] for row in own]
        assert len(own) >= 4 and steps == sorted(steps), name
        assert set(own[0]["scores"]) == {"fill", "continue", "classes", "translate"}
        assert own[0]["questions"] == 39  # of the first 40 texts, without the one that is too long
    assert by_entrant["gpt"][-1]["scores"]["classes"] > 0.6  # "o" and "a" tell the classes apart
    (counts,) = (row for row in rows if row["entrant"] == "bigrams")
    assert counts["questions"] == 39 and counts["parameters"] > 40
    assert 0.3 < counts["scores"]["continue"] <= counts["scores"]["fill"]  # it has read these texts
    report = report_race(rows)
    assert "| gpt | " in report.text and "<svg" in report.files["race.html"]
    assert report.text.count("\n| ") == 4


TINY = Size(d_model=8, sentences=40, texts=12, updates=3, batch_tokens=120, seeds=1)
TRANSFORMER = NetworkConfig(vocab_size=19, d_model=16, d_ff=32, n_heads=2, n_layers=1, dropout=0.0)
NETWORKS = {
    "transformer": TRANSFORMER,
    "recurrent": changed(TRANSFORMER, architecture="recurrent-seq2seq", recurrent=RecurrentConfig("gru")),
}


def network_and_batch(name: str) -> tuple[Any, Batch]:
    torch.manual_seed(1)
    network = build_network(NETWORKS[name]).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    source, target = torch.randint(4, 19, (9, 5)), torch.randint(4, 19, (9, 6))
    inputs = torch.cat([torch.full((9, 1), network.config.start_id), target[:, :-1]], dim=1)
    target[0, 4:] = -1
    return network, Batch({"source_ids": source, "target_ids": inputs}, {HEAD: target})


@torch.no_grad()
@pytest.mark.parametrize("name", list(NETWORKS))
def test_the_loss_after_its_own_prefix_is_that_of_a_loop_which_feeds_it_its_own_tokens(name: str) -> None:
    network, batch = network_and_batch(name)
    labels = batch.labels[HEAD]
    read, by_hand = batch.inputs["target_ids"][:, :1], []
    for t in range(labels.shape[1]):
        log_probs = network(batch.inputs["source_ids"], read).logits[:, -1].log_softmax(-1)
        right = log_probs.gather(1, labels[:, t : t + 1].clamp(min=0)).squeeze(1)
        by_hand.append(torch.where(labels[:, t] >= 0, -right, 0.0))
        read = torch.cat([read, log_probs.argmax(-1, keepdim=True)], dim=1)
    written = free_running(network, batch, labels.shape[1])
    assert torch.equal(written, read[:, 1:])
    own = losses_by_step(network, batch, shifted(written, batch.inputs["target_ids"]))
    torch.testing.assert_close(own, torch.stack(by_hand, dim=1))


@pytest.mark.parametrize("name", list(NETWORKS))
def test_only_a_wrong_word_changes_the_loss_and_of_later_steps_alone(name: str) -> None:
    network, batch = network_and_batch(name)
    written = free_running(network, batch, 6)
    right = Batch(dict(batch.inputs) | {"target_ids": shifted(written, batch.inputs["target_ids"])}, {HEAD: written})
    result = exposure(network, right, seed=1)
    assert result["gap"] == 0 and result["exact"] == 1 and result["own"] == result["gold"]
    result = exposure(network, batch, seed=1)
    assert result["planted"][: PLANTED_AT + 1] == pytest.approx(result["gold"][: PLANTED_AT + 1])
    assert result["planted"][PLANTED_AT + 1] != pytest.approx(result["gold"][PLANTED_AT + 1])


def test_wrong_words_are_words_of_the_same_step_and_never_right() -> None:
    right = torch.tensor([4, 4, 5, 6, 4, -1])
    drawn = wrong_words(right, seed=3)
    assert all(wrong in (4, 5, 6) and wrong != word for wrong, word in zip(drawn.tolist(), right.tolist()))
    assert torch.equal(drawn, wrong_words(right, seed=3))


def test_a_run_trains_all_networks_and_reports_page_and_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = list(measure(TINY, 1, (TEACHER_FORCING, "linear")))
    pairs = [(name, training) for name in ("recurrent", "transformer") for training in (TEACHER_FORCING, "linear")]
    assert [(row["network"], row["training"]) for row in rows] == pairs
    for row in rows:
        assert row["gold"][0] == row["own"][0] == row["planted"][0]  # nothing has been read yet
        assert row["gap"]["mean"] == pytest.approx(row["own nll"]["mean"] - row["gold nll"]["mean"], abs=2e-4)
    assert rows[0]["gold"] != rows[1]["gold"]  # scheduled sampling has changed the weights
    show("exposure", rows, tmp_path, True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
    show("exposure", rows, tmp_path, False)
    text = capsys.readouterr().out
    assert f"under teacher forcing; {rows[1]['gap']['mean']:.2f} with linear scheduled sampling" in text
    files = {"exposure.html", "exposure.jsonl", "exposure.md", "exposure.svg", "schedules.svg"}
    assert {path.name for path in tmp_path.iterdir()} == files
    page = (tmp_path / "exposure.html").read_text(encoding="utf-8")
    assert "own prefix" in page and "<script" not in page
    assert REPORTS["exposure"](rows).text == text


def test_the_curves_are_the_numbers_of_the_rows_and_held_out_words_are_known() -> None:
    row: dict[str, Any] = {"network": "recurrent", "training": TEACHER_FORCING, "updates": 100, "share": 0.5}
    row |= {"gold": [1.0, 2.0], "own": [1.0, 4.0], "planted": [1.0, 2.5]}
    prefixes, added = panels([row])
    assert [list(line.points) for line in prefixes.lines] == [[(1, 1.0), (2, 2.0)], [(1, 1.0), (2, 4.0)]]
    assert list(added.lines[0].points) == [(1, 0.0), (2, 0.5)]
    linear = next(line for line in schedules(row).lines if line.label == "linear")
    assert dict(linear.points)[100] == pytest.approx(0.5) and dict(linear.points)[1] == 0
    vocab_size, train, test = world(2000, 50)
    unknown = NetworkConfig().eos_id + 1
    assert int(max(train[0].flat.max(), train[1].flat.max())) == vocab_size - 1
    assert sum(int((side.flat == unknown).sum()) for side in test) < 0.02 * sum(len(side.flat) for side in test)

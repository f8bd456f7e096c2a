"""The family race: its file, its questions, the scores of answers by family, and its table."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from atento.base.errors import RecipeError, UsageError
from atento.config import presets
from atento.config.reading.loading import load_recipe
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.recurrent import CBOWConfig, CharacterConfig, ELMoConfig
from atento.model import Model
from atento.networks import build_network
from atento.text import Tokenizer
from atento.text.specials import sentinels
from atento_lab.studies import race_probes as probes
from atento_lab.studies.race import measure_race, read_race
from atento_lab.studies.race_ngrams import DISCOUNT, NGrams
from atento_lab.studies.race_report import report_race
from failing import fails

WORDS = ["o", "a", "gato", "menina", "dorme", "corre", "na", "casa", "rua", "e", "canta", "fala", "hoje"]
QUESTION = probes.Question(("o", "gato", "dorme", "na", "casa", "hoje"), 3, ("na", "e", "rua"))


def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocabulary("word", WORDS, extra_specials=sentinels(3))


def model(task: str, config: NetworkConfig) -> Model:
    torch.manual_seed(3)
    network = build_network(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))  # output vectors of CBOW begin at 0
    return Model(network, tokenizer(), {"task": task, "name": "tiny"}, None)


def sizes() -> dict[str, object]:
    words = tokenizer()
    ids = {role: getattr(words, f"{role}_id") for role in ("pad", "bos", "eos", "unk", "mask")}
    return {
        "vocab_size": words.vocab_size, "d_model": 16, "d_ff": 24, "n_heads": 2, "n_layers": 1,
        "ids": ids | {"start": words.pad_id},
    }  # fmt: skip


def written(ids: list[int], start: int, logits: Callable[[list[int]], torch.Tensor]) -> float:
    """The log-probability of the ids from a place on, each by the logits after those before it."""
    return sum(float(torch.log_softmax(logits(ids[:end]).detach(), -1)[ids[end]]) for end in range(start, len(ids)))


def test_a_question_has_ten_different_answers_of_which_the_first_is_right() -> None:
    texts = ["o gato dorme na casa", "a menina corre na rua hoje", "o gato canta e fala", "a menina dorme", "xyz"]
    asked = probes.questions(tokenizer(), texts)
    assert len(asked) == 3  # the last two have no word after the first three
    for question in asked:
        assert question.position >= 3 and question.answers[0] == question.words[question.position]
        assert len(set(question.answers)) == probes.ANSWERS == len(question.answers)
    assert probes.questions(tokenizer(), texts) == asked


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("architecture", ["decoder", "recurrent-lm"])
def test_a_causal_model_scores_an_answer_by_the_words_after_it_too(architecture: str, both: bool) -> None:
    lm = model("language-modeling", NetworkConfig(architecture=architecture, **sizes()))
    words = tokenizer()
    for answer, score in zip(QUESTION.answers, probes.causal_scores(lm, QUESTION, both).tolist()):
        text = [*QUESTION.words[:3], answer, *(QUESTION.words[4:] if both else ())]
        ids = [words.bos_id, *(words.token_id(word) for word in text), *([words.eos_id] if both else [])]
        expected = written(ids, 4, lambda before: lm.network(torch.tensor([before])).logits[0, -1])
        assert score == pytest.approx(expected, abs=1e-4)


def test_masked_models_and_encoder_decoders_score_answers_where_they_stand() -> None:
    from atento.config.tables.head_kinds import HeadConfig

    heads = (HeadConfig("masked-language-model"),)
    bert = model("masked-language-modeling", presets.bert_tiny(pooler=False, heads=heads, **sizes()))
    probabilities = {one.token: one.probability for one in bert.fill("o gato dorme <mask> casa hoje", top=13)}
    scores = probes.masked_scores(bert, QUESTION, True).exp()
    ratio = probabilities["na"] / probabilities["e"]
    assert float(scores[0] / scores[1]) == pytest.approx(ratio, rel=1e-4)
    other_right = probes.Question((*QUESTION.words[:4], "rua", "e"), 3, QUESTION.answers)
    assert torch.equal(probes.masked_scores(bert, QUESTION, False), probes.masked_scores(bert, other_right, False))
    assert not torch.equal(probes.masked_scores(bert, QUESTION, True), probes.masked_scores(bert, other_right, True))
    t5 = model("span-corruption", presets.t5_small(n_decoder_layers=1, attention={"d_head": 8}, **sizes()))
    words = tokenizer()
    source = words.encode_with_mask("o gato dorme <extra_id_0> casa hoje")
    first = words.token_id("<extra_id_0>")
    assert first is not None and first in source
    ids = torch.tensor([[*source, words.eos_id]])
    logits = t5.network(ids, torch.tensor([[words.pad_id, first]])).logits[0, -1]
    expected = torch.log_softmax(logits, dim=-1)[[words.token_id(word) for word in QUESTION.answers]]
    assert torch.allclose(probes.span_scores(t5, QUESTION, True), expected, atol=1e-5)
    marian = model("translation", NetworkConfig(**sizes()))  # a family without a scorer
    assert probes.accuracy(marian, "sequence-to-sequence", [QUESTION], both=True) is None


@pytest.mark.parametrize("both", [True, False])
def test_a_denoising_model_scores_an_answer_as_its_output(both: bool) -> None:
    bart = model("span-corruption", presets.bart_base(n_decoder_layers=1, max_len=40, **sizes()))
    words = tokenizer()
    right = " casa hoje" if both else ""
    source = torch.tensor([[*words.encode_with_mask(f"o gato dorme <mask>{right}"), words.eos_id]])
    for answer, score in zip(QUESTION.answers, probes.denoising_scores(bart, QUESTION, both).tolist()):
        ids = [words.pad_id, *words.encode(f"o gato dorme {answer}{right}"), *([words.eos_id] if both else [])]
        expected = written(ids, 4, lambda before: bart.network(source, torch.tensor([before])).logits[0, -1])
        assert score == pytest.approx(expected, abs=1e-4)


def test_word_models_read_the_neighbours_of_the_word() -> None:
    options: dict[str, object] = {"vocab_size": tokenizer().vocab_size, "d_model": 16, "n_layers": 1}
    cbow = model("cbow", NetworkConfig(architecture="cbow", cbow=CBOWConfig(window=2, negatives=2), **options))
    weights = dict(cbow.network.named_parameters())
    ids = [tokenizer().token_id(word) for word in ("gato", "dorme", "casa", "hoje")]
    mean = weights["input_weight"][ids].mean(dim=0)
    answers = [tokenizer().token_id(word) for word in QUESTION.answers]
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
    lm = model("prefix-language-modeling", NetworkConfig(architecture="decoder", **sizes()))
    words = tokenizer()
    prompt = [words.bos_id, *(words.token_id(word) for word in QUESTION.words[:3])]
    tail = [words.token_id(word) for word in QUESTION.words[4:]] if both else []
    allowed = torch.ones(len(prompt) + 3, len(prompt) + 3).tril().bool()
    allowed[:, : len(prompt)] = True
    for answer, score in zip(QUESTION.answers, probes.prefix_scores(lm, QUESTION, both).tolist()):
        ids = [*prompt, words.token_id(answer), *tail, *([words.eos_id] if both else [])]

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
    from itertools import product

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

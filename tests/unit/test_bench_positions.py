"""The position laboratory: tasks are what they say, networks differ in the scheme alone, answers follow numbers."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from atento.base.errors import UsageError
from atento_cli.commands.bench import bench, show
from atento_lab.studies import REPORTS, tasks
from atento_lab.studies.answers import QUESTIONS, answers
from atento_lab.studies.laboratory import Job, links, measure, relative_change, run
from atento_lab.studies.networks import HYBRID, RELATIVE, SCHEMES, Size, reader, stretched, train, translator
from atento_lab.studies.position_costs import LiveMemory, measure_cost
from atento_lab.studies.position_rows import Numbers, reached
from atento_lab.studies.report import grid_svg, report_positions
from atento_lab.studies.seeds import interval
from failing import fails

TINY = Size(d_model=16, n_heads=2, length=16, batch=4, texts=4, seeds=2, steps=0.001, cost_length=16, long=0)


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_echo_asks_for_the_letter_that_stood_there_and_for_nothing_else() -> None:
    """Read one token at a time: every query symbol is answered, by the letter the distance points at."""
    batch = tasks.echo(20, 48, seeded())
    following = torch.cat([batch.ids[:, 1:], batch.labels[:, -1:]], dim=1)
    asked = 0
    for ids, labels, after in zip(batch.ids.tolist(), batch.labels.tolist(), following.tolist()):
        for t, token in enumerate(ids):
            if token < tasks.LETTERS:
                assert labels[t] == -1
                continue
            asked += 1
            answer = ids[t - tasks.ECHO_DISTANCES[token - tasks.LETTERS]]
            assert labels[t] == answer < tasks.LETTERS
            assert after[t] == answer
    assert asked > 20 * 48 * 0.1


def test_pairs_are_told_apart_by_order_and_world_text_is_whole_sentences() -> None:
    """Three of four pairs are of the class; both classes hold the same letters as often."""
    batch = tasks.pairs(40, 32, seeded())
    assert batch.labels.sum() == 20
    for ids, label in zip(batch.ids.tolist(), batch.labels.tolist()):
        met = Counter(pairwise(ids))
        forward, backward = met[tasks.FIRST, tasks.SECOND], met[tasks.SECOND, tasks.FIRST]
        assert (forward, backward) == ((6, 2) if label else (2, 6))
        assert ids.count(tasks.FIRST) == ids.count(tasks.SECOND) == 8
    train_text, valid_text = tasks.world(4, 40, seeded()), tasks.world(4, 40, seeded(), True)
    assert torch.equal(train_text.ids[:, 1:], train_text.labels[:, :-1])
    assert not torch.equal(train_text.ids, valid_text.ids)
    single = tasks.sentences(64, tasks.longest_sentence(), seeded())
    for ids, labels in zip(single.ids.tolist(), single.labels.tolist()):
        real = [label for label in labels if label != -1]
        assert real[-1] == 0 and 0 not in real[:-1]  # ends where the sentence does
        assert labels[len(real) :] == [-1] * (len(labels) - len(real))
        assert ids[1 : len(real)] == real[:-1]


def test_b14_reordered_phrases_are_turned_round_word_by_word() -> None:
    """A slow reading: cut the source after each noun, turn each part round, translate each word."""
    batch = tasks.reorder(30, 15, seeded())
    for row in range(30):
        source = batch.source[row].tolist()
        phrases: list[list[int]] = [[]]
        for place, word in enumerate(source):
            phrases[-1].append(place)
            if word >= tasks.ADJECTIVES:
                phrases.append([])
        assert phrases.pop() == [] and max(map(len, phrases)) <= 3
        sources = [place for phrase in phrases for place in reversed(phrase)]
        assert batch.sources[row].tolist() == sources
        assert batch.labels[row].tolist() == [source[place] + tasks.ADJECTIVES + tasks.NOUNS for place in sources]
        assert batch.target_input[row].tolist() == [tasks.START, *batch.labels[row, :-1].tolist()]


@pytest.mark.parametrize("build", [lambda scheme: reader("pairs", scheme, TINY, 3), lambda s: translator(s, TINY, 3)])
def test_networks_of_a_seed_differ_in_their_scheme_alone(build: Any) -> None:
    """Every parameter but the schemes' own begins alike; another seed begins otherwise."""
    plain = dict(build("none").named_parameters())
    for scheme in SCHEMES:
        named = dict(build(scheme).named_parameters())
        rest = {name: value for name, value in named.items() if "positions." not in name}
        assert rest.keys() == plain.keys()
        assert all(torch.equal(value, plain[name]) for name, value in rest.items())
    one, other = (reader("pairs", "none", TINY, seed).embedding.weight for seed in (4, 3))
    assert not torch.equal(one, other)


def test_a_language_model_sees_nothing_ahead_and_a_classifier_everything() -> None:
    ids = torch.arange(12).unsqueeze(0)
    changed = ids.clone()
    changed[0, -1] = 0
    for scheme in SCHEMES:
        model, classifier = (reader(task, scheme, TINY, 1).eval() for task in ("echo", "pairs"))
        with torch.inference_mode():
            assert torch.equal(model.hidden(ids)[:, :-1], model.hidden(changed)[:, :-1])
            assert not torch.equal(classifier.hidden(ids)[:, :-1], classifier.hidden(changed)[:, :-1])


def test_b3_b8_b13_stretched_tables_spans_that_move_rows_never_trained_and_shares() -> None:
    network = reader("echo", "learned", TINY, 1).eval()
    assert stretched(network, 64)(torch.zeros(1, 64, dtype=torch.long)).shape[1] == 64
    assert network.positions.schemes[0].max_len == 16
    shaw = reader("echo", "shaw", TINY, 1)
    assert stretched(shaw, 64) is shaw
    found = {scheme: run(Job("pairs", scheme, 1, TINY, "cpu"))["shift by position"] for scheme in SCHEMES}
    for scheme, change in found.items():
        assert change < 1e-5 if scheme in ("none", *RELATIVE) else change > 0.05, scheme
    before = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    assert relative_change(before, before + torch.tensor([[0.0, 5.0], [1.0, 0.0]])) == pytest.approx((1 + 0.5) / 2)
    # one step of four sentences: as many rows move as the longest has tokens to read
    found = run(Job("table", "learned", 1, TINY, "cpu"))
    longest = int((tasks.sentences(4, tasks.longest_sentence(), seeded()).labels >= 0).sum(dim=1).max())
    assert [count > 0 for count in found["updates"]] == [place < longest for place in range(tasks.longest_sentence())]
    assert [change > 0 for change in found["change"]] == [count > 0 for count in found["updates"]]
    assert run(Job("echo", "none", 1, TINY, "cpu"))["position share"] == pytest.approx(0, abs=1e-6)
    for scheme in ("sinusoidal", "alibi", HYBRID[0]):
        assert 0.05 < run(Job("echo", scheme, 1, TINY, "cpu"))["position share"] < 1


@pytest.mark.slow  # trains
def test_training_learns_what_needs_order_and_only_with_it() -> None:
    """Shaw's positions find the letter three back; without positions it stays a guess."""
    size = Size(d_model=32, n_heads=2, length=12, batch=32)
    right = {}
    for scheme in ("none", "shaw"):
        network, generator = reader("echo", scheme, size, 1), seeded()

        def loss(network: Any = network, generator: torch.Generator = generator) -> torch.Tensor:
            batch = tasks.echo(32, 12, generator)
            return torch.nn.functional.cross_entropy(network(batch.ids).mT, batch.labels, ignore_index=-1)

        assert len(list(train(network, loss, 120))) == 120
        batch = tasks.echo(64, 12, seeded(9))
        asked = batch.labels >= 0
        right[scheme] = float((network(batch.ids).argmax(dim=-1) == batch.labels)[asked].float().mean())
    assert right["shaw"] > 0.95 and right["none"] < 0.6


def test_the_same_job_gives_the_same_numbers_and_the_global_generator_stays() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    reader("echo", "learned", TINY, 1)
    translator("shaw", TINY, 1)
    assert torch.equal(torch.get_rng_state(), before)
    job = Job("reorder", HYBRID[1], 1, TINY, "cpu")
    assert run(job) == run(job)


def test_intervals_links_and_live_memory_by_hand() -> None:
    """Of 1, 2, 3: mean 2, deviation 1, t = 4.303 with two degrees of freedom."""
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 4.303 / math.sqrt(3)))
    assert interval([7.0]) == (7.0, None)
    assert interval([0.0, 1.0] * 6)[1] == pytest.approx(2.262 * math.sqrt(12 / 11 / 4) / math.sqrt(12))
    assert links(torch.tensor([[1, 0], [1, 1]])) == {(0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 1, 1)}
    outside = torch.zeros(1000)
    with LiveMemory() as memory:
        one = outside + 1  # 4,000 bytes
        two = one.view(10, 100) * 2  # as many again; the view is of the same
        del one
        two.add_(1)
        outside.t()
    assert memory.peak == 8000 and memory.live == 4000


def test_b10_tables_of_vectors_cost_products_and_memory_that_sums_do_not() -> None:
    rows = {row["scheme"]: row for row in measure_cost(TINY, "cpu", ("none", "sinusoidal", "learned", "shaw"))}
    plain, size = rows["none"], TINY
    assert rows["sinusoidal"]["parameters"] == plain["parameters"]
    assert rows["learned"]["parameters"] - plain["parameters"] == size.length * size.d_model
    tables = 2 * size.n_layers * (2 * (size.length // 2) + 1) * (size.d_model // size.n_heads)
    assert rows["shaw"]["parameters"] - plain["parameters"] == tables
    # two products with a table of 17 rows a head and layer: 2 · 2 · 17 · 16 operations a token and layer
    more = 2 * 2 * 17 * size.d_model * size.n_layers / 1e6
    assert rows["shaw"]["mflops_a_token"] - plain["mflops_a_token"] == pytest.approx(more, abs=1e-4)
    assert rows["sinusoidal"]["mflops_a_token"] == plain["mflops_a_token"]
    assert rows["shaw"]["peak_mib"] > plain["peak_mib"]


# ---- rows made by hand: the conclusions must follow them


def task_row(task: str, scheme: str, **measures: list[float]) -> dict[str, Any]:
    means = {name.replace("_", " "): (sum(values) / len(values), values) for name, values in measures.items()}
    found = {name: {"mean": mean, "within": 0.0, "seeds": values} for name, (mean, values) in means.items()}
    return {"bench": "positions", "task": task, "scheme": scheme, "length": 16, "steps": 1, "measures": found}


def accuracies(task: str, scheme: str, *shares: float, **more: list[float]) -> dict[str, Any]:
    lengths = {f"accuracy_{length}": [share, share] for length, share in zip((16, 32, 64, 128), shares)}
    return task_row(task, scheme, **lengths, **more)


def test_b9_how_far_what_was_learned_carries() -> None:
    shares = {"shaw": (1.0, 1.0, 0.99, 0.96), "rotary": (1.0, 0.99, 0.8, 1.0)}  # what comes back later does not count
    shares |= {"learned": (0.95, 0.5, 0.2, 0.1), "none": (0.3, 0.3, 0.3, 0.3)}
    numbers = Numbers([accuracies("echo", scheme, *of_lengths) for scheme, of_lengths in shares.items()])
    assert [reached(numbers, "echo", one) for one in shares] == [128, 32, 16, 0]


def answered(rows: list[dict[str, Any]], english: str, key: str = "answer_en") -> str:
    return next(row[key] for row in answers(rows) if row["question_en"].startswith(english))


def test_the_answer_on_periodicity_follows_the_numbers() -> None:
    for shares, said, dito in (
        ((1.0, 0.4, 0.2, 0.1), "gave no generalisation beyond", "não levou o aprendido além"),
        ((1.0, 1.0, 0.97, 0.1), "held up to 64 tokens", "valeu até 64 tokens"),
        ((0.5, 0.4, 0.2, 0.1), "there is no conclusion", "nada se conclui"),
    ):
        rows = [accuracies("echo", one, *shares, position_share=[0.5, 0.5]) for one in ("sinusoidal", "shaw")]
        rows += [accuracies("echo", "none", 0.3, 0.3, 0.3, 0.3, position_share=[0.0, 0.0])]
        assert said in answered(rows, "Sinusoids are periodic")
        assert dito in answered(rows, "Sinusoids are periodic", "answer_pt")


@pytest.mark.parametrize(
    ("absolute", "relative", "said"),
    [
        ([0.5, 0.51, 0.5], [0.1, 0.1, 0.11], ": aligns better."),
        ([0.1, 0.1, 0.11], [0.5, 0.51, 0.5], ": aligns worse."),
        ([0.1, 0.5, 0.3], [0.3, 0.2, 0.3], "show no difference"),
    ],
)
def test_b14_the_answer_on_alignment_needs_all_seeds(absolute: list[float], relative: list[float], said: str) -> None:
    rows = [
        task_row("reorder", scheme, alignment_error_16=errors, accuracy_16=[1.0, 1.0, 1.0])
        for scheme, errors in (("sinusoidal", absolute), ("rotary", relative))
    ]
    assert said in answered(rows, "Do relative schemes align")


def test_b7_the_hybrid_is_compared_with_each_part_and_unmeasured_questions_stay_unanswered() -> None:
    rows = []
    for task in ("echo", "pairs"):
        for scheme, far in (("sinusoidal", 0.2), ("shaw", 1.0), (HYBRID[0], 0.9)):
            rows.append(accuracies(task, scheme, 1.0, 1.0, 1.0, far, position_share=[0.5, 0.5]))
            rows[-1]["measures"]["shift by position"] = {"mean": 0.0, "seeds": [0.0, 0.0]}
    said = answered(rows, "Is a hybrid better?")
    assert said.count("better than sinusoidal (20 %)") == said.count("worse than shaw (100 %)") == 2
    of_words = {"alignment_error_16": [0.1, 0.2], "accuracy_16": [1.0, 1.0]}
    rows = [task_row("reorder", one, **of_words) for one in ("learned", "t5")]
    assert len(list(answers(rows))) == 1 and list(answers([])) == []


def test_networks_that_learned_nothing_answer_nothing() -> None:
    """No scheme has learned a task: every question on it is answered with that, whatever the schemes differ in."""
    schemes = ("none", "sinusoidal", "learned", "shaw")
    rows = list(measure(Size(16, 2, 1, 16, 2, 2, 2, 0.001, 16, 0), "cpu", 1, schemes=schemes))
    for task in ("echo", "pairs", "reorder"):
        for row in rows:
            learned = 0.6 if row.get("task") == task else 1.0
            for name, value in row.get("measures", {}).items():
                if name.startswith("accuracy"):
                    value |= {"mean": learned, "seeds": [learned, learned]}
        no = f"No scheme learned {task} (60 %, 1 updates) at 16 tokens, so there is no conclusion"
        for question, row in zip(QUESTIONS, answers(rows), strict=True):
            assert (no in row["answer_en"]) == ("nada se conclui: `" in row["answer_pt"]) == (task in question.tasks)


@pytest.mark.slow  # trains every network
def test_the_whole_laboratory_answers_every_question_and_draws() -> None:
    """Tiny: one step each. Rows are JSON, every scheme stands in every table, figures are well-formed."""
    rows = list(measure(Size(16, 2, 1, 16, 2, 2, 2, 0.001, 16, 0), "cpu", 1))
    rows += list(answers(rows))
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    for task in ("echo", "pairs", "world", "reorder", "cost"):
        assert [row["scheme"] for row in rows if row.get("task") == task] == list(SCHEMES)
    assert len([row for row in rows if "answer_pt" in row]) == len(QUESTIONS)
    report = report_positions(rows)
    assert all(row[key] in report.text for row in rows if "answer_pt" in row for key in ("answer_pt", "answer_en"))
    for scheme in SCHEMES:
        assert report.text.count(f"| {scheme} |") >= 5
    figures = {name: text for name, text in report.files.items() if name.endswith(".svg")}
    assert {"echo.svg", "pairs.svg", "world.svg", "table.svg", "alignment-rotary.svg"} <= figures.keys()
    for figure in figures.values():
        assert ElementTree.fromstring(figure).tag.endswith("svg")


@pytest.mark.slow  # two processes that import torch
def test_workers_give_the_rows_that_one_process_gives() -> None:
    size = Size(16, 2, 1, 16, 2, 2, 2, 0.001, 16, 0)
    schemes = ("none", "shaw")
    one, two = ([row for row in measure(size, "cpu", n, ("echo",), schemes) if row["task"] == "echo"] for n in (1, 2))
    assert one == two


def test_a_grid_colours_the_best_darkest_and_escapes_labels() -> None:
    drawn = grid_svg("<a & b>", "", ["x<y"], ["1", "2"], [[1.0, 3.0]], more_is_better=True)
    dark = grid_svg("t", "", ["x"], ["1", "2"], [[1.0, 3.0]], more_is_better=False)
    assert "&lt;a &amp; b&gt;" in drawn and "x&lt;y" in drawn

    def fills(svg: str) -> list[str]:
        return [node.attrib["fill"] for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("rect")][1:]

    assert fills(drawn) == fills(dark)[::-1] and sum(int(fills(drawn)[1][i : i + 2], 16) for i in (1, 3, 5)) < 200


def test_the_command_writes_page_and_folder_before_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [accuracies("echo", one, 1.0, 0.5, 0.2, 0.1, position_share=[0.5, 0.5]) for one in ("none", *RELATIVE)]
    show("positions", iter(rows), tmp_path, as_json=False)
    printed = capsys.readouterr()
    assert printed.out == REPORTS["positions"](rows).text and "echo, rotary" in printed.err
    written = (tmp_path / "positions.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in written] == rows
    assert (tmp_path / "positions.md").read_text(encoding="utf-8") == printed.out
    assert (tmp_path / "echo.svg").read_text(encoding="utf-8").startswith("<svg")
    show("positions", iter(rows), None, as_json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
    show("training", iter([{"bench": "training", "ratio": 2.0}]), None, as_json=False)
    assert capsys.readouterr().out == "bench training\tratio 2.0\n"

    def measured() -> Iterator[dict[str, Any]]:
        yield {"bench": "race", "entrant": "gpt", "seconds": 1.0, "scores": {}}
        raise UsageError("the second entrant fails")

    fails(UsageError, "second entrant", show, "race", measured(), tmp_path, as_json=False)
    assert json.loads((tmp_path / "race.jsonl").read_text(encoding="utf-8"))["entrant"] == "gpt"
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match=r"cannot be written: .* is a file, and a folder is needed"):
        bench("positions", names_only=False, run_all=False, seconds=30.0, out=tmp_path / "file" / "folder")

"""`atento data clean`: each filter, words that translate each other, pairs planted, the command and its resuming."""

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from atento.base.errors import DataError, UsageError
from atento.text.language import language_shares
from atento_cli.corpus.clean_pairs import FILTERS, Filters, broken_rules, usual_languages
from atento_cli.corpus.pair_evidence import FEWEST, Floats, WordTranslations, whole_and_right, words_of
from atento_cli.main import application
from atento_world import write
from failing import fails

EN_PT = ("en", "pt")


def world(count: int = 900) -> list[tuple[str, str]]:
    return list(dict.fromkeys((pair.source, pair.target) for pair in write("train", 3 * count)))[:count]


def planted(pairs: list[tuple[str, str]]) -> tuple[list[tuple[str, str]], dict[int, str]]:
    """Pairs of which a tenth is wrong: targets of other pairs, targets cut, and copies."""
    pairs, kinds, draw = list(pairs), dict[int, str](), random.Random(7)
    chosen = draw.sample(range(len(pairs)), len(pairs) // 10)
    third = len(chosen) // 3
    others = [pairs[number][1] for number in chosen[:third]]
    for place, number in enumerate(chosen):
        source, target = pairs[number]
        words = target.split()
        if place < third:
            pairs[number], kinds[number] = (source, others[place - 1]), "misaligned"
        elif place < 2 * third:
            pairs[number], kinds[number] = (source, " ".join(words[: len(words) // 2])), "truncated"
        else:
            pairs[number], kinds[number] = (source, source), "copy"
    return pairs, kinds


@pytest.mark.parametrize(
    ("source", "target", "rules"),
    [
        ("The house is old.", "A casa é velha.", []),
        ("The house is old.", " ", ["empty"]),
        ("", "", ["empty"]),
        ("Yes.", "Sim.", []),
        ("Tom.", "Tom.", []),  # a name
        ("New York", "New York", []),
        ("The house is old.", "the house is old", ["copy"]),
        ("今日は天気", "今日は天気", ["copy"]),
        ("Python 3.12", "Python 3.12", []),
        ("It costs 1,000.50 dollars.", "Custa 1.000,50 dólares.", []),
        ("It costs 10 000 euros.", "Custa 10.000 euros.", []),
        ("In 1999 it rained.", "Em 1998 choveu.", ["numbers"]),
        ("Twelve of 30 came.", "Vieram 12 de 30.", []),  # one side spells it
        ("At 08:30 on day 5", "Às 8h30 no dia 5", []),
        ("\uff13 cats", "3 gatos", []),  # full width
        ("%s files in %s", "%2$s tem %1$s arquivos", []),
        ("%s has %d files", "%d arquivos em %s", ["placeholders"]),  # which would be printed wrong
        ("%s has %d files", "%2$d arquivos em %1$s", []),
        ("Open {name} now", "Abra {nome} agora", ["placeholders"]),
        ("Open {name} now", "Abra agora", ["placeholders"]),
        ("Cats &amp; dogs", "Gatos e cães", []),
        ("A <b>bold</b> word", "Uma palavra <b>grossa</b>", []),
        ("A <b>bold</b> word", "Uma palavra <b>grossa", ["tags"]),
        ('<a href="en.html">Help</a>', '<a href="pt.html">Ajuda</a>', []),
        ("x < y and y > z", "x < y e y > z", []),
        ("The action failed.", "A aÃ§Ã£o falhou.", ["characters"]),
        ("The action failed.", "A a\ufffd\ufffdo falhou.", ["characters"]),
        ("The action failed.", "A ação #@~^*&¬|<=+ falhou.", ["characters"]),
        ("Great! 🎉🎉", "Ótimo! 🎉🎉", []),
        ("🎉", "🎉", []),
        ("今日は天気がいいですね。", "今天天气很好。", []),
        ("一" * 5100, "二" * 4, ["long"]),  # 20 characters count as a word where there are no spaces
        ("word " * 5000, "palavra " * 5000, ["long"]),
    ],
)  # fmt: skip
def test_a_pair_breaks_these_rules(source: str, target: str, rules: list[str]) -> None:
    assert broken_rules((source, target), None, 250) == rules


def test_languages_are_those_of_most_texts_and_words_those_of_any_script() -> None:
    pairs = [*world(60), ("El perro duerme en la casa vieja.", "O cachorro dorme na casa velha.")]
    assert usual_languages(pairs) == EN_PT
    spanish = ("The old dog sleeps in the house today.", "El perro viejo duerme hoy en la casa de mi hermana.")
    assert broken_rules(spanish, EN_PT, 250) == ["language"] and broken_rules(spanish, ("en", "es"), 250) == []
    assert broken_rules(("The dog sleeps here.", "今日は天気がいいですね。"), EN_PT, 250) == ["language"]
    assert broken_rules(("Python 3.12", "Python 3.12"), EN_PT, 250) == []
    assert language_shares(" ") == {} and usual_languages([("", "")]) == ("", "")
    assert words_of("The Ações, don't: 1,5") == ["the", "ações", ",", "don", "'", "t", ":", "1", ",", "5"]
    assert words_of("今日はいい 天気") == list("今日はいい天気")
    assert words_of("ação") == words_of("ac\u0327a\u0303o") != words_of("acao")
    assert words_of("हिन्दी भाषा")[1] == "भाषा"  # marks of vowels are letters
    assert len(words_of("a " * 5000)) == 128 and words_of(" ") == []


def test_words_that_translate_each_other_speak_for_a_pair_and_the_pair_itself_does_not() -> None:
    pairs = world()
    right = WordTranslations(pairs).evidence(pairs)
    wrong = WordTranslations(pairs).evidence([(pair[0], other[1]) for pair, other in pairwise(pairs)], learned=False)
    assert right.shape == (900, 15) and np.isfinite(right).all()
    assert np.median(right[:, 0]) > 1 > 0 > np.median(wrong[:, 0])  # log ratios of targets; of sources below
    assert np.median(right[:, 5]) > 1 > 0 > np.median(wrong[:, 5])
    # two words that stand in one pair alone explain each other in it perfectly, and say nothing
    pairs = world(600)
    rare = [("zyx qwv the house", "kjh bnm a casa"), ("zyx qwv the garden", "outra coisa aqui")]
    words = WordTranslations([*pairs, *rare])
    own, not_own = (words.evidence(rare[:1], learned=learned)[0, 0] for learned in (True, False))
    assert own < not_own


def test_planted_pairs_are_found_and_good_ones_kept() -> None:
    pairs, kinds = planted(world(2000))
    found = Filters().reasons(pairs)
    assert found == Filters().reasons(pairs)
    for kind in ("misaligned", "truncated", "copy"):
        numbers = [number for number in kinds if kinds[number] == kind]
        assert sum(bool(found[number]) for number in numbers) >= 0.9 * len(numbers), kind
        assert sum(kind in found[number] for number in numbers) >= 0.7 * len(numbers), kind  # the rest by their length
    assert sum(bool(why) for number, why in enumerate(found) if number not in kinds) <= 0.05 * len(pairs)
    assert not any(Filters(without=tuple(FILTERS)).reasons(pairs))
    alone = Counter(name for why in Filters(without=("misaligned",)).reasons(pairs) for name in why)
    assert alone["truncated"] and not alone["misaligned"]


def test_scores_of_models_similar_pairs_and_unusual_lengths_are_evidence() -> None:
    """Words of no pair have anything to do with one another here: the score alone tells pairs from others."""
    draw = random.Random(3)
    pairs = [(" ".join(draw.choices("abcdefgh", k=6)), " ".join(draw.choices("stuvwxyz", k=6))) for _ in range(FEWEST)]
    right = set(pairs[20:])

    def scores(some: Sequence[tuple[str, str]]) -> Floats:
        return np.array([[float(pair in right)] for pair in some])

    p, without = whole_and_right(pairs, scores)(pairs), whole_and_right(pairs)(pairs)
    assert p.shape == (FEWEST, 2) and sum(p[:20, 0] < 0.5) >= 16 and np.mean(p[20:, 0] > 0.5) > 0.95
    assert abs(np.median(without[:20, 0]) - np.median(without[20:, 0])) < 0.1
    base = [(f"The {word} house is old and big.", f"A casa {word} é velha e grande.") for word in "abcdefghij"]
    pairs = [*base, base[0], ("The house is old and big, see the x.", "A casa"), (" ", "")]
    assert Filters().reasons(pairs) == [*[[]] * 10, ["duplicate"], ["ratio"], ["empty"]]
    near = Filters(near=0.3).reasons(pairs)
    assert near[0] == [] and near[1] == ["duplicate"]
    assert Filters().reasons([(" ", "a")]) == [["empty"]]


def clean(*arguments: str) -> str:
    done = CliRunner().invoke(application("data"), ["data", "clean", *arguments])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def put(here: Path, pairs: list[tuple[str, str]]) -> None:
    (here / "p.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")


def table(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_writes_what_is_kept_and_why_the_rest_is_not(here: Path) -> None:
    pairs, kinds = planted(world(2000))
    put(here, pairs)
    shown = clean("p.tsv", "--out", "kept.tsv", "--dropped", "dropped.tsv")
    kept, dropped = table(here / "kept.tsv"), table(here / "dropped.tsv")
    assert kept[0] == ["source", "target"] and dropped[0] == ["line", "reason", "source", "target"]
    assert len(kept) + len(dropped) - 2 == len(pairs) and f"{len(kept) - 1:,} kept in kept.tsv" in shown
    assert [tuple(row[2:]) for row in dropped[1:]] == [pairs[int(row[0]) - 1] for row in dropped[1:]]
    left = {row[0] for row in dropped}
    assert [tuple(row) for row in kept[1:]] == [pair for n, pair in enumerate(pairs, start=1) if str(n) not in left]
    assert sum(int(row[0]) - 1 in kinds for row in dropped[1:]) >= 0.9 * len(kinds)
    record = json.loads(clean("p.tsv", "--out", "k.jsonl", "--dropped", "d.jsonl", "--json", "--without", "copy"))
    assert record["pairs"] == 2000 and record["filters"]["copy"] == 0 and record["languages"] == ["en", "pt"]
    first = json.loads((here / "k.jsonl").read_text(encoding="utf-8").partition("\n")[0])
    assert list(first) == ["source", "target"] and not list(here.glob(".*"))


def test_tables_are_read_as_by_other_commands(here: Path) -> None:
    (here / "p.csv").write_text('english;portuguese\n"The house; old.";A casa velha.\nOne;\n', encoding="utf-8")
    to = ("--out", "k.tsv", "--dropped", "d.tsv")
    clean("p.csv", *to, "--columns", "source=english,target=portuguese", "--reading", "delimiter=;")
    assert table(here / "k.tsv")[1:] == [["The house; old.", "A casa velha."]]
    assert table(here / "d.tsv")[1:] == [["3", "empty", "One", ""]]
    (here / "p.jsonl").write_text('{"source": "a\\tb", "target": "c"}\n', encoding="utf-8")
    fails(UsageError, re.escape("--out k.tsv: a text has a tab or a line end"), clean, "p.jsonl", *to)
    clean("p.jsonl", "--out", "k.jsonl", "--dropped", "d.jsonl")


def test_wrong_requests_and_broken_rows_are_refused(here: Path) -> None:
    (here / "p.tsv").write_text("one\tum\nbroken\ntwo\tdois\n", encoding="utf-8")
    to = ("--out", "k.tsv", "--dropped", "d.tsv")
    fails(UsageError, re.escape("p.tsv:2: 1 column"), clean, "p.tsv", *to)
    clean("p.tsv", *to, "--skip-bad")
    line, reason, *_ = table(here / "d.tsv")[1]
    assert line == "2" and "broken: p.tsv:2: 1 column" in reason
    for line, said in {
        "p.tsv --out ./p.tsv --dropped d.tsv": "must be three files",
        "p.tsv --out k.tsv --dropped k.tsv": "must be three files",
        "p.tsv --out k.tsv --dropped d.tsv --without number": "unknown filter 'number'; did you mean",
        "p.tsv --out k.tsv --dropped d.csv": "--dropped must end in .tsv or .jsonl",
        "p.txt --out k.tsv --dropped d.tsv": "PAIRS p.txt",
    }.items():
        fails(UsageError, re.escape(said), clean, *line.split())
    (here / "e.tsv").write_text("", encoding="utf-8")
    fails(DataError, r"e\.tsv", clean, "e.tsv", *to)
    assert (here / "p.tsv").read_text(encoding="utf-8").startswith("one\tum")


def test_a_killed_command_goes_on_and_gives_the_same_bytes(here: Path) -> None:
    pairs, _ = planted(world(2600))
    put(here, pairs)
    clean("p.tsv", "--out", "whole.tsv", "--dropped", "left.tsv")
    command = [sys.executable, "-m", "atento", "data", "clean", "p.tsv", "--out", "k.tsv", "--dropped", "d.tsv"]
    steps, process = here / ".k.tsv.steps", subprocess.Popen(command)
    for _ in range(6000):
        if steps.exists() and steps.read_bytes().count(b"\n") > 2:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert steps.exists() and not (here / "k.tsv").exists()
    with steps.open("ab") as file:
        file.write(b'{"event": "rules", "st')  # a line that was cut
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "computed before; continuing" in done.stderr and not steps.exists()
    assert (here / "k.tsv").read_bytes() == (here / "whole.tsv").read_bytes()
    assert (here / "d.tsv").read_bytes() == (here / "left.tsv").read_bytes()


def test_a_translator_and_an_encoder_are_evidence_and_what_another_computed_is_forgotten(here: Path) -> None:
    (here / "p.tsv").write_text("one 5\tum 6\n", encoding="utf-8")
    event = {"event": "clean", "step": 0, "identity": ["other"]}
    (here / ".k.tsv.steps").write_text(json.dumps(event) + "\n", encoding="utf-8")
    clean("p.tsv", "--out", "k.tsv", "--dropped", "d.tsv")
    assert table(here / "d.tsv")[1][:2] == ["1", "numbers"]
    pairs, kinds = planted(world(600))
    put(here, pairs)
    to = ("--out", "k.tsv", "--dropped", "d.tsv", "--threads", "1")
    names = ("--forward", "micro-world-en-pt", "--encoder", "micro-world-mlm")
    record = json.loads(clean("p.tsv", *to, *names, "--json"))
    dropped = {int(row[0]) - 1 for row in table(here / "d.tsv")[1:]}
    wrong = [number for number in kinds if kinds[number] == "misaligned"]
    assert sum(number in dropped for number in wrong) >= 0.9 * len(wrong)
    assert record["dropped"] == len(dropped) and len(dropped - kinds.keys()) <= 0.05 * len(pairs)
    fails(UsageError, "no-such-model", clean, "p.tsv", *to, "--reverse", "no-such-model")

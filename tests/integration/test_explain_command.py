"""`--explain` of the commands that predict: lines, JSON, pages, and flags that exclude it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.inspection.explanation import Explanation, explanation_page, explanation_svg
from atento.networks import build_network
from conftest import ForkServer, each_refused, refused
from failing import fails

TINY: dict[str, Any] = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "dropout": 0.0, "max_len": 48}
TRAINING = {"steps": 30, "batch_tokens": 80, "learning_rate": 5e-3, "warmup": 5, "precision": "float32"}
TEXTS = ["a good film", "a bad film", "good and good", "bad , bad day"]
ATTACK = '<script>top.hit = 1</script><img src="x" onerror="top.hit = 1">'


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that tells good from bad by the word."""
    folder = tmp_path_factory.mktemp("classifier")
    rows = [{"text": text, "label": "yes" if "good" in text else "no"} for text in TEXTS * 4]
    data = {"train": {"memory": "train"}, "valid": {"memory": "valid"}}
    recipe = {"task": "classification", "data": data, "tokenizer": {"kind": "word"}, "training": TRAINING}
    recipe["network"] = {"architecture": "encoder", **TINY}
    return atento.train(recipe, out=folder / "run", data={"train": rows, "valid": rows[:4]}).folder


def test_classify_explains_each_line(classifier: Path, tmp_path: Path, server: ForkServer) -> None:
    file, page = tmp_path / "texts.txt", tmp_path / "why.html"
    file.write_text(f"a bad film\n\n{ATTACK} bad\n", encoding="utf-8")
    done = server.good("classify", classifier, file, "--explain-out", page, "--json", cwd=tmp_path)
    first, empty, second = done.stdout.splitlines()
    record, model = json.loads(first), atento.load(classifier)
    assert empty == "" and record["method"] == "integrated-gradients" and json.loads(second)["words"][1] == "<"
    expected = model.explain("a bad film")
    assert record["words"] == expected.words and record["target"] == "no" and record["steps"] == expected.steps
    assert record["scores"] == pytest.approx(expected.scores, abs=1e-5)
    assert sum(record["scores"]) == pytest.approx(record["total"], rel=0.01)
    assert record["words"][max(range(len(record["words"])), key=lambda n: record["scores"][n])] == "bad"
    shown = page.read_text(encoding="utf-8")
    assert "<script" not in shown and "&lt;script&gt;" in shown and shown.count("<section>") == 2
    assert f"wrote {page}" in done.stderr


def test_a_terminal_shows_signs_and_bars(classifier: Path, tmp_path: Path, server: ForkServer) -> None:
    done = server.good("classify", classifier, "--explain-method", "leave-out", cwd=tmp_path, stdin="bad film\n")
    head, *words = done.stdout.splitlines()
    assert head.startswith("no: log-odds of the label ") and "leave-out, total" in head
    assert [line.split()[0] for line in words] == ["<s>", "bad", "film", "</s>"]
    assert "█" in words[1] and " +" in words[1] and "█" not in words[0]


def test_translate_explains_each_word_of_its_output(here: Path, server: ForkServer) -> None:
    plain = server.run("translate", "run", cwd=here, stdin="The cat sleeps.\n")
    done = server.good("translate", "run", "--explain", "--json", "--greedy", cwd=here, stdin="The cat sleeps.\n")
    record = json.loads(done.stdout)
    assert record["target"] == plain.stdout.rstrip("\n") and record["sides"][0] == "source"
    assert len(record["parts"]) > 0 and record["total"] == pytest.approx(sum(part["total"] for part in record["parts"]))
    done = server.run("translate", "run", "--explain", "--stream", cwd=here, stdin="x\n")
    refused(done, "--explain and --stream exclude each other")


OTHERS = [
    ("tag", "tagging", "Ana sees Rui .", (HeadConfig(kind="tagging", labels=("B-PER", "O"), name="tagging"),)),
    ("answer", "question-answering", "Who sleeps ?\tThe cat sleeps .", (HeadConfig(kind="answer", name="answer"),)),
    ("similarity", "embedding", "The cat sleeps .\tA dog sleeps .", ()),
]


@pytest.mark.parametrize("verb, task, line, heads", OTHERS, ids=[verb for verb, *_ in OTHERS])
def test_other_verbs_explain_their_lines(
    verb: str, task: str, line: str, heads: tuple[HeadConfig, ...], tmp_path: Path, server: ForkServer
) -> None:
    tokenizer = atento.Tokenizer.from_vocabulary("word", sorted(set(line.split())))
    sizes = {name: value for name, value in TINY.items() if name != "dropout"}
    config = NetworkConfig(architecture="encoder", heads=heads, vocab_size=tokenizer.vocab_size, **sizes)
    torch.manual_seed(1)
    atento.Model(build_network(config).eval(), tokenizer, {"name": "tiny", "task": task}, None).save(tmp_path / "model")
    done = server.good(verb, "model", "--explain", "--json", cwd=tmp_path, stdin=f"{line}\n\n")
    record = json.loads(done.stdout.splitlines()[0])
    assert done.stdout.splitlines()[1] == "" and len(record["words"]) == len(record["scores"]) > 3
    assert sum(record["scores"]) == pytest.approx(record["total"], abs=max(0.001, 0.01 * abs(record["total"])))


def test_what_excludes_it(classifier: Path, tmp_path: Path, server: ForkServer) -> None:
    refusals = {
        "--explain-method saliency": "unknown method 'saliency'",
        "--explain --threshold 0.3": "--explain and --threshold exclude each other",
        "--explain-out why.png": "--explain-out must end in .html",
        "--explain --cluster local --out parts": "--explain and --cluster exclude each other",
    }
    lines = {f"classify {classifier} {flags}": said for flags, said in refusals.items()}
    each_refused(server, tmp_path, lines, stdin="x\n")


def explanation(**changes: Any) -> Explanation:
    words = ["[CLS]", "good", ATTACK]
    fields = {"special": [True, False, False], "sides": ["text"] * 3, "title": ATTACK, "quantity": "log-probability"}
    return Explanation(words, [0.0, 1.25, -0.5], "leave-out", ATTACK, 0.75, **(fields | changes))


def test_the_page_is_readable_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """Texts are no markup, signs are in the text, every colour has contrast, and nothing is fetched."""
    part = explanation()
    explanation(parts=[part, part]).save(tmp_path / "why.html")
    page, requests = browser.new_page(viewport={"width": 360, "height": 700}), []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((tmp_path / "why.html").as_uri())
    assert page.evaluate("window.hit === undefined") and page.locator("script, img").count() == 0
    assert page.locator(".words li").all_inner_texts()[1].split() == ["good", "+1.250"]
    assert page.locator(".words li").all_inner_texts()[2].endswith("−0.500")
    assert page.locator("table tr").count() == 3 and page.locator("th[scope=col]").count() == 4
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert all(url.startswith("file:") for url in requests)
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed (extra dev)")
    grounds = set()
    for scheme in ("light", "dark"):  # axe also measures the contrast of letters on the colours of scores
        page.emulate_media(color_scheme=scheme)
        found = axe.Axe().run(page).response["violations"]
        assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found] == []
        ground = "all => all.map((li) => getComputedStyle(li).background)"
        grounds |= set(page.locator(".words li").evaluate_all(ground))
    assert len(grounds) >= 5 and page.locator("header .mark").is_visible()
    page.close()


def test_files_of_an_explanation(tmp_path: Path) -> None:
    one = explanation(parts=[explanation()])
    one.save(tmp_path / "why.json")
    assert json.loads((tmp_path / "why.json").read_text(encoding="utf-8")) == one.to_dict()
    one.save(tmp_path / "why.svg")
    drawn = (tmp_path / "why.svg").read_text(encoding="utf-8")
    assert drawn == explanation_svg(one) and "<script" not in drawn and "−0.500" in drawn
    fails(atento.base.errors.UsageError, "must end in", one.save, tmp_path / "why.txt")
    fails(atento.base.errors.UsageError, "at least one explanation", explanation_page, [])
    assert "iframe sandbox" in one._repr_html_()


def test_fill_explains_its_masks(tmp_path: Path, server: ForkServer) -> None:
    line = "O gato <mask> a casa velha."
    done = server.good("fill", "micro-world-mlm", "--explain", "--json", cwd=tmp_path, stdin=f"{line}\n")
    record, model = json.loads(done.stdout), atento.load("micro-world-mlm")
    assert record["target"] == model.fill(line, top=1)[0].token and "gato" in record["words"]
    assert record["scores"] == pytest.approx(model.explain(line).scores, abs=1e-5)
    refused(server.run("fill", "micro-world-mlm", "--explain", "--top", "3", cwd=tmp_path, stdin=line), "--top")
    refused(server.run("fill", "micro-world-mlm", "--explain", cwd=tmp_path, stdin="O gato.\n"), "no <mask> to fill")

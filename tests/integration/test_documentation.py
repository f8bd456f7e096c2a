"""README.md and docs/: every code block is run in the order of its page, with small networks, few steps and no network.

A page is one session in one folder: `bash` and `console` blocks are command lines, `yaml` blocks that begin with
`# NAME.yaml` are files, `python` blocks are one program. A block that cannot run here has a comment right above it:
`<!-- not run: the reason -->`. Models with a hub name are folders of that name with random weights. The headings of
docs/troubleshooting.md quote what is printed, and are held against the commands that print it.
"""

import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import atento
from atento.config.reading.loading import load_recipe
from atento.config.reading.recipe_layers import shipped
from atento_world import write
from conftest import ForkServer
from published_translators import PUBLISHED, write_published
from released_folders import write_released

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^(?:<!-- (?P<reason>[^\n]+) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", flags=re.M | re.S)


def code(page: Path) -> list[str]:
    found = [one for one in BLOCK.finditer(page.read_text("utf-8")) if one["kind"] != "text"]
    return [re.sub(r"\s*# .*", "", one["text"]) for one in found]


PAGES = [ROOT / "README.md"]
for page in sorted((ROOT / "docs").rglob("*.md")):  # those in Portuguese whose code is not that of the English ones
    if not page.name.endswith(".pt-BR.md") or code(page) != code(page.with_name(page.name.replace(".pt-BR", ""))):
        PAGES.append(page)
SMALLER = {"TOKENIZER__VOCAB_SIZE": "400", "NETWORK__D_MODEL": "16", "NETWORK__D_FF": "32", "NETWORK__N_HEADS": "2"}
SMALLER |= {"NETWORK__N_LAYERS": "1", "TRAINING__STEPS": "4", "TRAINING__PRECISION": "float32"}
SMALLER |= {"TRAINING__BATCH_TOKENS": "120", "TRAINING__VALIDATE_EVERY": "4", "TRAINING__CHECKPOINT_EVERY": "2"}
SMALLER |= {"DECODING__MAX_NEW_TOKENS": "6"}
HUB = {"google-bert/bert-base-cased": "bert", "sentence-transformers/all-MiniLM-L6-v2": "bert"}
HUB |= {"openai-community/gpt2": "gpt2", "google-t5/t5-small": "t5", "Helsinki-NLP/opus-mt-en-de": "marian"}
HUB |= {"Helsinki-NLP/opus-mt-en-roa": "marian of languages", "facebook/nllb-200-distilled-600M": "nllb"}
HUB |= {"facebook/m2m100_418M": "m2m_100", "facebook/mbart-large-50-many-to-many-mmt": "mbart50"}
SLOW = {"search.md"}  # five searches, each with a process that imports torch; `test_search.py` runs the command


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line it starts at."""

    kind: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that can run here."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(one["kind"], one["text"], text[: one.start("text")].count("\n") + 1)
        for one in BLOCK.finditer(text)
        if not (one["reason"] or "").startswith("not run: ")
    ]


def shortened(text: str) -> str:
    """`steps=60`, `"steps": 300` and `runs/a@2000` divided by 1000, at least 2; fewer pairs; of a search one trial."""
    fewer = re.sub(r'(write\("\w+", |, )(?:\d+_000|\d00)\)', r"\g<1>40)", text)
    fewer = re.sub(r"--trials \d+", "--trials 1", fewer)
    steps = r"""(steps["']?\s*[=:]\s*|--steps |@(?=\d{3}))(\d+)"""  # and not ndcg@10
    return re.sub(steps, lambda found: f"{found[1]}{max(2, int(found[2]) // 1000)}", fewer)


def command_lines(block: Block) -> list[str]:
    """Of a `console` block the lines behind `$ `, of a `bash` block all; a backslash joins lines."""
    lines = [line.strip() for line in block.text.replace("\\\n", " ").splitlines()]
    if block.kind == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [line for line in lines if line and not line.startswith("#")]


def shown(block: Block) -> list[str]:
    """The output that a `console` block shows, a pattern a line: `...` is anything, a number any number."""
    lines = [line for line in block.text.splitlines() if block.kind == "console" and not line.startswith("$ ")]
    escaped = [re.escape(line.strip()).replace(r"\.\.\.", ".*") for line in lines]
    return [re.sub(r"\d+(?:(?:,|\\\.)\d+)*", r"[\\d.,]+", line) for line in escaped]


class Session:
    def __init__(self, server: ForkServer, folder: Path, demo: Path) -> None:
        self.server, self.folder, self.demo = server, folder, demo
        self.names: dict[str, Any] = {}
        self.recipes: list[Path] = []

    def run(self, block: Block, page: str) -> None:
        if block.kind in ("bash", "sh", "console"):
            printed = "".join(self.command(shortened(line), f"{page}:{block.line}") for line in command_lines(block))
            for line in shown(block) if printed else []:
                assert re.search(line, printed, flags=re.M), f"{page}:{block.line}: {line}\n{printed}"
        elif block.kind == "python":
            trained = re.search(r"\b(?:train|search)\(\s*\"(micro-world[\w-]*)\"", block.text)
            with pytest.MonkeyPatch.context() as patch:
                for name, value in (environment(("", trained[1])) if trained else {}).items():
                    if "__COUNT" in name:
                        patch.setenv(name, value)
                exec(compile("\n" * (block.line - 1) + shortened(block.text), page, "exec"), self.names)
        elif block.kind == "yaml" and (named := re.match(r"# (\S+\.yaml)\b", block.text)):
            self.recipes.append(self.folder / named[1])
            self.recipes[-1].write_text(block.text, encoding="utf-8")
            load_recipe(self.recipes[-1], environment={})
        elif block.kind == "yaml":  # a whole recipe, which shows a format; or a part, which is laid over a shipped one
            below = "" if block.text.startswith("task: ") else "extends: micro-world-en-pt\n"
            (self.folder / "part.yaml").write_text(below + block.text, encoding="utf-8")
            load_recipe(self.folder / "part.yaml", environment={})
        else:
            assert block.kind == "text", f"{page}:{block.line}: a block of kind {block.kind!r}"

    def command(self, line: str, place: str) -> str:
        """One command line: `atento`, `echo`, `printf`, with pipes and a file for the output. What was printed."""
        if line.startswith(("make ", "pip install ", ". .venv/bin/activate", "git clone ", "cd ", "python tools/")):
            target = re.match(r"make (\w+)", line)
            assert not target or f"\n{target[1]}:" in (ROOT / "Makefile").read_text("utf-8"), f"{place}: {line}"
            if target and target[1] == "demo":
                shutil.copytree(self.demo, self.folder / "runs" / "demo", dirs_exist_ok=True)
            return ""
        line, _, written = re.sub(r"\s#.*", "", line).partition(" > ")
        passed, printed = "", ""
        for part in line.split(" | "):
            words = shlex.split(part)
            if words[0] in ("echo", "printf"):
                text = " ".join(words[1:])
                passed = f"{text}\n" if words[0] == "echo" else text.replace("\\t", "\t").replace("\\n", "\n")
                continue
            assert words[0] == "atento", f"{place}: {line}"
            done = self.server.run(*words[1:], cwd=self.folder, stdin=passed, env=environment(words[1:], self.folder))
            assert done.status == 0, f"{place}: {line}\n{done.stderr[-3000:]}"
            passed, printed = done.stdout, printed + done.stdout + done.stderr
        if written:
            (self.folder / written.strip()).write_text(passed, encoding="utf-8")
        return printed


def absent(path: Path) -> list[str]:
    recipe = load_recipe(path, environment={}).recipe
    sources = [source for split in ("train", "valid", "test") for source in getattr(recipe.data, split)]
    named = [(one.file,) if one.file else (one.source, one.target) for one in sources if not one.world]
    files = [str(name) for names in named for name in names]
    models = [recipe.init.model] if recipe.init else []
    models += recipe.teacher.model if recipe.teacher else ()
    return [name for name in (*files, *models) if name not in shipped() and not (path.parent / name).exists()]


def environment(words: Sequence[str] = (), folder: Path = ROOT) -> dict[str, str]:
    """The variables that make recipes small: no sizes where `init` brings them, and less of the micro-world's data."""
    smaller = dict(SMALLER)
    recipe = next((word for word in words if word.endswith(".yaml") or word in shipped()), None)
    if recipe and not any(word.startswith("data.train=") for word in words) and words[0] != "recipes":
        written = load_recipe(folder / recipe if recipe.endswith(".yaml") else recipe, environment={}).recipe
        if written.init:
            smaller = {name: value for name, value in smaller.items() if not name.startswith(("NETWORK", "TOKENIZER"))}
        for split, count in {"train": "120", "valid": "6", "test": "6"}.items():
            if any(source.world for source in getattr(written.data, split)):
                smaller[f"DATA__{split.upper()}__COUNT"] = count
        if any(word.startswith("init.unfreeze") for word in words):
            smaller["TRAINING__STEPS"] = "8"  # four stages of two updates
    return {f"ATENTO_{name}": value for name, value in smaller.items()}


@pytest.fixture(scope="session")
def hub(scratch: Path) -> Path:
    """A folder with the released models that the pages name, as folders with random weights."""
    for name, family in HUB.items():
        (write_published if family in PUBLISHED else write_released)(family, scratch / "hub" / name)
    ranker = write_released("bert", scratch / "hub" / "cross-encoder/ms-marco-MiniLM-L6-v2")
    AutoModelForSequenceClassification.from_pretrained(ranker, num_labels=1).save_pretrained(ranker)
    return scratch / "hub"


@pytest.fixture(scope="session")
def demo(server: ForkServer, scratch: Path) -> Path:
    words = ("train", "micro-world-en-pt", "--out", "demo")
    server.good(*words, cwd=scratch, env=environment(words))
    return scratch / "demo"


@pytest.fixture
def session(server: ForkServer, scratch: Path, demo: Path, hub: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty folder, beside the released models of the hub: a page makes the files that it names."""
    place = Path(tempfile.mkdtemp(dir=scratch))
    for owner in hub.iterdir():
        (place / owner.name).symlink_to(owner)
    monkeypatch.chdir(place)
    for name, value in environment().items():
        if name != "ATENTO_TRAINING__STEPS":  # which would win over the recipes that are dicts; those say theirs
            monkeypatch.setenv(name, value)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Session(server, place, demo)
    torch.set_num_threads(before)
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.slow] * (page.name in SLOW))
        for page in PAGES
        if page.name != "python.md" and blocks(page)
    ],
)
def test_the_blocks_of_a_page_run_in_their_order(session: Session, page: Path) -> None:
    """In an empty folder, but for files of the README; all recipes name files that are there in the end."""
    if page.name == "README.md":
        pairs = {"train": write("train", 60), "valid": write("valid", 6), "test": write("combinations", 6)}
        sources, targets = [pair.source for pair in pairs["train"]], [pair.target for pair in pairs["train"]]
        files = {"train.en": sources, "train.pt": targets, "letter.en": sources[:3]}
        files |= {f"{split}.tsv": [f"{p.source}\t{p.target}" for p in pairs[split]] for split in ("valid", "test")}
        files |= {"reviews.tsv": [f"{text}\t{'positive' if 'a' in text else 'negative'}" for text in sources]}
        for name, lines in files.items():
            (session.folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for block in blocks(page):
        session.run(block, page.name)
    for recipe in session.recipes:
        assert not absent(recipe), f"{page.name}: {recipe.name} names {absent(recipe)}, which the page does not make"


def test_a_block_that_is_not_run_says_why() -> None:
    """Nine tenths and more of the blocks of code are run, here or by the test that the reason tells of."""
    of_code = [one for page in PAGES for one in BLOCK.finditer(page.read_text("utf-8")) if one["kind"] != "text"]
    skipped = [one["reason"] for one in of_code if (one["reason"] or "").startswith("not run: ")]
    nowhere = [reason for reason in skipped if not re.search(r"tests/|a test of its own", reason)]
    assert len(of_code) > 200 and len(nowhere) < len(of_code) / 10
    assert all(len(reason) > len("not run: ") + 10 for reason in skipped)


def test_what_the_python_page_shows(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    """Beyond running: what the names of docs/python.md hold in the end."""
    for block in blocks(ROOT / "docs" / "python.md"):
        session.run(block, "python.md")
    seen = session.names
    assert repr(seen["run"]).startswith("TrainedRun('runs/first', step 2")
    assert seen["model"].precision == "float32" and (session.folder / "first" / "model.safetensors").exists()
    assert seen["vectors"].shape == (2, 16) and set(seen["scores"]) == {"bleu", "chrf"}
    assert (session.folder / "page.html").stat().st_size > 10_000 and "iframe" in seen["trace"]._repr_html_()
    assert len(seen["given"].tokens) == len(seen["given"].log_probs)
    assert "unknown decoding option 'lenght_penalty'; did you mean 'length_penalty'?" in capsys.readouterr().out
    assert issubclass(atento.base.errors.UsageError, atento.AtentoError)


def test_the_notes_metrics_on_local_files(session: Session) -> None:
    """K5 in docs/metrics.md: NLTK and rouge_score give the same values."""
    nltk = pytest.importorskip("nltk.translate.bleu_score", reason="nltk is not installed (extra dev)")
    peer = pytest.importorskip("rouge_score.rouge_scorer", reason="rouge_score is not installed (extra dev)")
    (block,) = [block for block in blocks(ROOT / "docs" / "metrics.md") if "RougeScorer" in block.text]
    session.run(block, "metrics.md")
    names = session.names
    several, one = names["reference_tokens"], names["tokens"]
    assert names["by_sentence"] == pytest.approx(list(map(nltk.sentence_bleu, several, one)), rel=1e-9)
    assert 0.2 < names["corpus"] == pytest.approx(nltk.corpus_bleu(several, one), rel=1e-9)
    theirs = peer.RougeScorer(["rouge1", "rouge2", "rougeL"])
    for scores, references, hypothesis in zip(names["rouge"], names["references"], names["hypotheses"]):
        expected = theirs.score_multi(references, hypothesis)
        for name, score in scores.items():
            assert tuple(score) == pytest.approx(tuple(expected[name]))


def test_the_readme_shows_what_notes_prints(session: Session) -> None:
    """Line by line, but for `...` and seconds."""
    (block,) = [block for block in blocks(ROOT / "README.md") if "$ atento notes" in block.text]
    command, *lines = block.text.splitlines()
    done = session.server.run(*command.split()[2:], cwd=session.folder)
    shown = [re.sub(r"\d+\\\.\d+\\? s\b", r"[\\d.]+ s", re.escape(line)).replace(r"\.\.\.", ".*") for line in lines]
    printed = (done.stdout + done.stderr).splitlines()
    assert len(shown) == len(printed) and all(map(re.fullmatch, shown, printed)), (shown, printed)


TROUBLES = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^### `((?:error|warning): .+)`$", TROUBLES, flags=re.M)
FILES = {"three.en": b"a\nb\nc\n", "two.pt": b"x\ny\n", "latin.en": b"ok\nn\x81o\n", "broken.tsv": b"x\ty\nonly\n"}
FILES |= {"uneven.yaml": b"task: translation\ndata: {train: {source: three.en, target: two.pt}}\n"}
FILES |= {"absent.yaml": b"task: translation\ndata: {train: {source: no.en, target: no.pt}}\n"}
FILES |= {"latin.yaml": b"task: translation\ndata: {train: {source: latin.en, target: two.pt}}\n"}
FILES |= {"broken.yaml": b"task: translation\ndata: {train: {file: broken.tsv, source: 0, target: 1}}\n"}
FILES |= {"nodata.yaml": b"task: translation\n", "other/notes.txt": b"not a run\n"}
WORLD = ("train", "micro-world-en-pt")
COMMANDS = {"no recipe named": ("config", "check", "micro-world-en")}
COMMANDS |= {"unknown key": ("config", "check", "micro-world-en-pt", "training.stepz=3")}
COMMANDS |= {"data is missing": ("config", "check", "nodata.yaml")}
COMMANDS |= {"has no effect": ("config", "check", "micro-world-en-pt", "training.epochs=1", "training.steps=2")}
COMMANDS |= {"no such file": ("train", "absent.yaml"), "must correspond to line N": ("train", "uneven.yaml")}
COMMANDS |= {"not UTF-8": ("train", "latin.yaml"), "1 column separated": ("train", "broken.yaml")}
COMMANDS |= {"not a run;": (*WORLD, "--out", "other"), "no model at": ("translate", "nothing", "three.en")}
COMMANDS |= {"a run of another recipe": ("train", "tiny.yaml", "network.d_model=32", "--out", "run", "--threads", "1")}
COMMANDS |= {"cannot continue": ("generate", "run", "three.en"), "neither a run": ("translate", "other", "three.en")}


@pytest.mark.parametrize(("words", "command"), COMMANDS.items(), ids=COMMANDS)
def test_the_page_of_troubles_quotes_messages(server: ForkServer, here: Path, words: str, command: list[str]) -> None:
    for name, content in FILES.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_bytes(content)
    done = server.run(*command, cwd=here)
    (heading,) = [heading for heading in HEADINGS if words in heading]
    said = ".+".join(re.escape(part.strip()) for part in heading.split("…"))
    assert re.search(said, done.stderr, flags=re.S), f"{heading}\n{done.stderr}"
    assert done.status == (0 if heading.startswith("warning") else 2)
    assert len(re.findall(r"^### ", TROUBLES, flags=re.M)) >= 20

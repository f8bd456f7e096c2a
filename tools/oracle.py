"""Record what Atento computes, says and writes, to compare two versions of it on one machine, bit by bit.

    python tools/oracle.py record FOLDER     trains the micro-world recipes for 200 updates, and runs every command
    python tools/oracle.py compare A B       names what differs; status 1 if anything does

A record holds the losses of each update, a hash of each weight file, all other files that a run writes, and the output
and messages of every command. Times and versions of files are left out. About 15 minutes on two cores.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ATENTO = Path(sys.executable).with_name("atento")
ENGLISH = "the cat sees the dogs .\nthe teachers did not read the old book .\ndoes the girl like red flowers ?\n"
PORTUGUESE = (
    "o gato vê os cachorros .\nas professoras não leram o livro velho .\na menina gosta de flores vermelhas ?\n"
)
PAIRS = "o gato dorme .\to gato dormiu .\na menina lê .\tas meninas leem .\n"
QUESTIONS = "quem dorme ?\to gato dorme .\no que a menina lê ?\ta menina lê o livro .\n"
MASKED = "o [MASK] dorme .\na menina [MASK] o livro .\n"
TRANSLATE = (["translate"], ["translate", "--greedy"], ["translate", "--sample", "--n-best", "3", "--top-p", "0.9"])
WAYS: dict[str, tuple[str, tuple[list[str], ...]]] = {  # recipe -> standard input, and the commands that use its run
    "en-pt": (
        ENGLISH,
        (
            *TRANSLATE,
            ["translate", "--beam", "5", "--n-best", "5"],
            ["translate", "--mbr", "chrf"],
            ["translate", "--stream"],
        ),
    ),
    "rnn": (ENGLISH, TRANSLATE),
    "lm": (
        PORTUGUESE,
        (["generate"], ["generate", "--beam", "4"], ["generate", "--top-k", "5"], ["perplexity"], ["embed"]),
    ),
    "mlm": (MASKED, (["fill"], ["embed"], ["perplexity"])),
    "mixture": (MASKED, (["fill"], ["embed", "--pooling", "max"])),
    "negation": (PORTUGUESE, (["classify"],)),
    "entailment": (PAIRS, (["classify", "--pairs"],)),
    "number": (PORTUGUESE, (["classify"],)),
    "question": (PORTUGUESE, (["classify"],)),
    "tense": (PORTUGUESE, (["classify"],)),
    "entities": (PORTUGUESE, (["tag"],)),
    "pos": (PORTUGUESE, (["tag"],)),
    "similarity": (PAIRS, (["similarity"],)),
    "answers": (QUESTIONS, (["answer"],)),
    "elmo": (PORTUGUESE, (["embed"],)),
    "cbow": (PORTUGUESE, (["embed"],)),
}
ALONE = """
recipes list | recipes show micro-world-en-pt | --help | --version | config check nowhere.yaml
train | train nowhere | train micro-world-en-pt training.step=3 | train micro-world-en-pt network.n_heads=5
train micro-world-en-pt task=translations | train micro-world-en-pt data.train.0.world=nowhere
translate nowhere | classify runs/en-pt in.txt | translate runs/en-pt --beam 0 | fill runs/lm in.txt
translate runs/en-pt --num-beams 4 | evaluate runs/en-pt nowhere.tsv | tag runs/negation in.txt
score bleu in.txt in.txt | score rouge in.txt in.txt --json | score blue in.txt in.txt
evaluate runs/en-pt in.txt in.txt | attend runs/en-pt 'the cat sleeps .' --out page.html
attend runs/mlm 'o gato dorme .' --out page.json | convert runs/mlm --to huggingface --out released
embed released in.txt | data peek micro-world-en-pt | data stats micro-world-en-pt | runs | runs show runs/en-pt
plan micro-world-en-pt --json | notes --page | tokenizer info runs/en-pt | tokenizer encode runs/en-pt in.txt
train micro-world-en-pt training.steps=200 --out runs/en-pt | average runs/en-pt | glue nowhere runs/en-pt
"""  # commands without a run of their own, most of them refused
TIMES = re.compile(
    r"\d[\d,.]* ?(?:ms|s|seconds?|minutes?|min|h|hours?|[a-z]+/s|GB|GiB|MiB|MB|%)\b|\d+:\d\d(?::\d\d)?|"
    r'"(?:[a-z_]*seconds|tokens_per_second|time|created|date|started|finished|run_id|bytes|pid)": ?[^,}\n]+|'
    r"\d{4}-\d\d-\d\d[T ][\d:.+Z]*"
)
UNTOLD = {"optimizer.safetensors", "MANIFEST.json", ".lock"}  # follow the losses, the files, the process


def run(folder: Path, *arguments: str, text: str = "") -> dict[str, object]:
    """Run a command in a folder; return its status, output and messages without times and places."""
    done = subprocess.run(
        [str(ATENTO), *arguments],
        cwd=folder,
        input=text,
        text=True,
        capture_output=True,
        env=os.environ | {"COLUMNS": "120"},
    )
    return {
        "status": done.returncode,
        **{name: plain(said, folder) for name, said in (("output", done.stdout), ("messages", done.stderr))},
    }


def plain(text: str, folder: Path) -> str:
    """A text without times and places."""
    here = Path(__file__).resolve().parents[1]
    return TIMES.sub("#", text.replace(str(folder), "FOLDER").replace(str(here), "HOUSE"))


def trained(folder: Path, name: str, steps: int) -> dict[str, object]:
    """Train a recipe, and return its messages, its files, and what its commands say; what is recorded is kept."""
    out, kept = f"runs/{name}", folder / f"record-{name}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    changes = [f"training.steps={steps}", "training.log_every=1", f"training.validate_every={steps // 2}"]
    text, commands = WAYS[name]
    record: dict[str, object] = {
        "train": run(folder, "train", f"micro-world-{name}", *changes, "--out", out, "--threads", "1")
    }
    for path in sorted((folder / out).rglob("*")):
        if path.is_file() and path.name not in UNTOLD:
            record[str(path.relative_to(folder / out))] = content(path, folder)
    for command in commands:
        for json_or_not in ([], ["--json"]):
            words = [command[0], out, "-", *command[1:], "--seed", "1", "--threads", "1", *json_or_not]
            record[" ".join(words)] = run(folder, *words, text=text)
    kept.write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")
    print(name, flush=True)
    return record


def content(path: Path, folder: Path) -> str:
    """The hash of a file of weights; any other without times."""
    if path.suffix == ".safetensors":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return plain(path.read_text(encoding="utf-8", errors="replace"), folder)


def record(folder: Path, steps: int) -> None:
    """Record everything into FOLDER/record.json; two programs of one thread run at a time."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "in.txt").write_text(PORTUGUESE, encoding="utf-8")
    with ThreadPoolExecutor(2) as pool:
        runs = dict(zip(WAYS, pool.map(lambda name: trained(folder, name, steps), WAYS)))
    said = {line: run(folder, *shlex.split(line)) for line in re.split(r" *[|\n] *", ALONE.strip())}
    helps = {line.split()[1] for line in str(said["--help"]["output"]).splitlines() if re.match(r"│ [a-z]+ ", line)}
    said |= {f"{name} --help": run(folder, name, "--help") for name in sorted(helps)}
    (folder / "record.json").write_text(
        json.dumps({"runs": runs, "commands": said}, ensure_ascii=False, indent=1), encoding="utf-8"
    )


def differences(one: object, other: object, place: str = "") -> list[str]:
    """The places where two records differ, with the first lines that do."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            text
            for key in dict.fromkeys([*one, *other])
            for text in differences(one.get(key), other.get(key), f"{place} / {key}" if place else key)
        ]
    if one == other:
        return []
    lines = [str(one).splitlines() or [""], str(other).splitlines() or [""]]
    first = next(
        (pair for pair in zip(*lines) if pair[0] != pair[1]), (f"{len(lines[0])} lines", f"{len(lines[1])} lines")
    )
    return [f"{place}\n  - {first[0][:300]}\n  + {first[1][:300]}"]


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    if given.what == "record":
        record(given.folders[0], given.steps)
        return 0
    found = differences(*(json.loads((folder / "record.json").read_text(encoding="utf-8")) for folder in given.folders))
    print("\n".join(found) or "equal")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

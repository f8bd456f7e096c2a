"""Completion by the shell: the real environment variables, and bash itself (found.md: completion of names)."""

import os
import shutil
import subprocess
import sys
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest

from atento.config.presets import PRESETS
from atento.config.reading.recipe_layers import shipped
from atento.metrics import METRICS
from atento.metrics.mbr_utilities import UTILITIES
from atento.metrics.metric_table import LEARNED
from atento.models.shipped import shipped_models
from atento_cli.measurements import MEASUREMENTS
from atento_lab.notes.table import ROWS
from atento_lab.studies import BENCHES as STUDIES
from benchmarks import BENCHES
from conftest import ForkServer, each_refused
from test_cli_commands import LIGHT


def bash_variables(line: str) -> dict[str, str]:
    """What bash hands over for a line with the cursor at its end; it takes `=` for a word of its own."""
    words = line.replace("=", " = ").split(" ")
    words = [word for n, word in enumerate(words) if word or n == len(words) - 1]
    if words[-2:] == ["=", ""]:
        words.pop()
    return {"_ATENTO_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}


def offers(server: ForkServer, cwd: Path, line: str) -> list[str]:
    done = server.run(cwd=cwd, env=bash_variables(line))
    assert (done.status, done.stderr) == (0, ""), done
    return done.stdout.split()


def test_recipes_metrics_measurements_rows_and_presets_are_offered(server: ForkServer, data: Path) -> None:
    assert offers(server, data, "atento train mic") == [name for name in shipped() if name.startswith("mic")]
    assert offers(server, data, "atento train ") == [*shipped(), "tiny.yaml"]
    assert offers(server, data, "atento config show ti") == ["tiny.yaml"]
    assert offers(server, data, "atento recipes copy ") == list(shipped())
    assert offers(server, data, "atento score ") == [*METRICS, *LEARNED]
    assert offers(server, data, "atento evaluate m d --metrics bleu,ch") == ["bleu,chrf"]
    assert offers(server, data, "atento evaluate m d --fail-under bl") == ["bleu="]
    learned = [f"{name}:" for name in LEARNED]
    assert offers(server, data, "atento translate m --mbr ") == [*UTILITIES, "embeddings:", *learned]
    assert offers(server, data, "atento bench de") == ["decoding"]
    assert offers(server, data, "atento notes ") == list(ROWS)
    assert offers(server, data, "atento translate m --precision ") == ["float32", "bfloat16", "int8", "float64"]
    assert offers(server, data, "atento tra") == ["train", "translate"]
    assert offers(server, data, "atento translate m --len") == ["--length-penalty"]


def test_keys_of_a_recipe_and_their_values(server: ForkServer, data: Path) -> None:
    assert offers(server, data, "atento train tiny.yaml training.warm") == ["training.warmup="]
    assert sorted(offers(server, data, "atento train tiny.yaml network.preset=")) == sorted(PRESETS)
    tiny = [name for name in PRESETS if name.startswith("t5")]
    assert sorted(offers(server, data, "atento train tiny.yaml training.steps=5 network.preset=t5")) == sorted(tiny)
    assert offers(server, data, "atento config check tiny.yaml network.norm=p") == ["pre", "post"]
    assert offers(server, data, "atento config explain training.warm") == ["training.warmup"]
    assert offers(server, data, "atento train tiny.yaml no.such.key=a") == []
    joined = {"_ATENTO_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "atento train tiny.yaml network.norm=p"}
    done = server.run(cwd=data, env=joined)  # which keeps the word whole
    assert '"network.norm=pre"' in done.stdout and '"network.norm=post"' in done.stdout


def test_models_and_runs_are_offered_and_what_is_none_is_not(server: ForkServer, place: Path, trained: Path) -> None:
    (place / "runs").mkdir()
    (place / "runs" / "one").symlink_to(trained)
    (place / "runs" / "notes").mkdir()
    (place / "model").mkdir()
    (place / "model" / "config.json").touch()
    for command in ("translate", "embed", "evaluate", "attend", "convert"):
        assert offers(server, place, f"atento {command} ") == ["model", "runs/one", *shipped_models()], command
    assert offers(server, place, "atento average ") == ["runs/one"]
    assert offers(server, place, "atento runs ") == ["show", "compare", "plot", "positions"]
    assert offers(server, place, "atento runs compare runs/one ") == ["runs/one"]
    assert offers(server, place, "atento translate runs/") == ["runs/one"]
    assert offers(server, place, f"atento translate {place}/m") == [f"{place}/model"]
    assert offers(server, place, "atento translate nowhere/") == []


def test_bench_without_a_name_lists_the_measurements_and_these_run(server: ForkServer, data: Path) -> None:
    studies = [name for name, measurement in MEASUREMENTS.items() if measurement.study]
    assert sorted(studies) == sorted(STUDIES) and sorted(MEASUREMENTS.keys() - studies) == sorted(BENCHES)
    for argv in (["bench"], ["bench", "--list"]):
        done = server.run(*argv, cwd=data)
        assert done.status == 0 and [line.split()[0] for line in done.stdout.splitlines()] == list(MEASUREMENTS)
        assert all(" min  " in line for line in done.stdout.splitlines())
        assert done.stderr.startswith("run one: atento bench NAME; run all, about ")
    done = server.run("bench", "--list", "--json", cwd=data)
    assert len(done.stdout.splitlines()) == len(MEASUREMENTS) and '"minutes": ' in done.stdout
    refusals = {
        "bench trainig": "unknown measurement 'trainig'; did you mean 'training'?",
        "bench mbr --all": "--all runs every measurement: got the name 'mbr' as well",
        "bench agreement": "give --model, --sources, --references",
    }
    each_refused(server, data, refusals)


@pytest.mark.parametrize("line", ["atento train m", "atento train r network.pre", "atento notes A", "atento score b"])
def test_nothing_heavy_is_loaded_for_it(data: Path, line: str) -> None:
    options: Any = {"env": {**os.environ, **bash_variables(line)}, "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run([sys.executable, "-c", LIGHT.format(argv=[])], cwd=data, **options)
    assert done.returncode == 0 and done.stdout.split(), done.stderr
    assert set(literal_eval(done.stderr.splitlines()[-1])) <= {"numpy", "pydantic"}


def test_bash_completes_what_show_completion_prints(data: Path, tmp_path: Path) -> None:
    """The script is loaded by bash, and its function asked as TAB would."""
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    script = tmp_path / "atento"
    script.write_text(f"#!{sys.executable}\nfrom atento_cli.main import main\nmain()\n", encoding="utf-8")
    script.chmod(0o755)
    asked = """
source <(_ATENTO_COMPLETE=source_bash atento)
complete -p atento
COMP_WORDS=(atento recipes show multi); COMP_CWORD=3
_atento_completion atento multi show
echo "${COMPREPLY[@]}"
"""
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    options: Any = {"env": path, "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run(["bash", "--norc", "-c", asked], cwd=data, **options)
    offered = "multi30k-en-de multi30k-en-de-bidirectional multi30k-en-de-features"
    assert done.stdout.splitlines() == ["complete -o default -F _atento_completion atento", offered], done

"""`atento translate` with `--source-language` and `--target-language` on multilingual translators."""

import json
from pathlib import Path

import pytest

import atento
from atento.metrics import metric_named
from conftest import ForkServer, refused

pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")
from translator_folders import LIMIT, SOME, TRANSLATORS, expected, write_translator


@pytest.mark.parametrize("name", TRANSLATORS)
def test_the_command_writes_what_transformers_and_python_write(name: str, server: ForkServer, tmp_path: Path) -> None:
    tokenizer, network = write_translator(name, tmp_path / "model")
    row = TRANSLATORS[name]
    (tmp_path / "lines.txt").write_text("\n".join([*SOME, "", SOME[0]]) + "\n", encoding="utf-8")
    flags = ["--greedy", "--max-new-tokens", str(LIMIT), "--source-language", row.source]
    command = ["translate", "model", "lines.txt", *flags, "--target-language"]
    lines = server.good(*command, row.target, cwd=tmp_path).stdout.removesuffix("\n").split("\n")
    assert len(lines) == len(SOME) + 2 and lines[len(SOME)] == "" and lines[-1] == lines[0]
    found = lines[: len(SOME)]
    assert [line.strip() for line in found] == expected(name, tokenizer, network, row.source, row.target, SOME)
    options = {"source_language": row.source, "target_language": row.target}
    assert atento.load(tmp_path / "model").translate(SOME, greedy=True, max_new_tokens=LIMIT, **options) == found
    shown = server.run(*command, row.target, "--json", cwd=tmp_path)
    assert json.loads(shown.stdout.splitlines()[0])["translations"][0]["text"] == found[0]
    wrong = f"{row.target[:-1]}q"
    refused(server.run(*command, wrong, cwd=tmp_path), f"`target_language`: the model has no language {wrong!r}")

    (tmp_path / "pairs.tsv").write_text("".join(f"{text}\t{text}\n" for text in SOME), encoding="utf-8")
    scored = ["--task", "translation", "--metrics", "chrf", "--json", *flags]
    done = server.good("evaluate", "model", "pairs.tsv", *scored, "--target-language", row.target, cwd=tmp_path)
    right = metric_named("chrf")(found, list(SOME)).value
    assert json.loads(done.stdout)["chrf"]["value"] == pytest.approx(right)

"""Perplexity of texts by each kind of network, beside loops over single tokens; windows, batches, refusals."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from atento.base.errors import AtentoError, CapabilityError, DataError, UsageError
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig, network_to_dict
from atento.config.sections.recurrent import ELMoConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches.batch import MemoryStore, Ragged
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.causal import Causal
from atento.metrics import perplexity
from atento.model import Model
from atento.networks import build_network
from atento.tasks.split_evaluation import mean_losses
from atento.tasks.text_perplexity import Windows
from atento.text.tokenizer_training import train_tokenizer
from atento_cli.commands.perplexity import register
from atento_world import write
from failing import fails

PAIRS = write("train", 40)
TEXTS = [pair.source for pair in PAIRS[:6]]
TOKENIZER = train_tokenizer(
    TokenizerConfig(kind="bpe", vocab_size=330), (text for pair in PAIRS for text in (pair.source, pair.target))
)
WORDS = train_tokenizer(TokenizerConfig(kind="word", vocab_size=60), (pair.source for pair in PAIRS))


def model(architecture: str, *, task: str = "language-modeling", tokenizer: Any = TOKENIZER, **changes: Any) -> Model:
    """A small random model in double precision, so that only the order of sums differs."""
    torch.manual_seed(1)
    sizes = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 2, "vocab_size": tokenizer.vocab_size}
    network = build_network(NetworkConfig(**{"architecture": architecture} | sizes | changes)).eval().double()
    stored = {"task": task, "network": network_to_dict(network.config)}
    return Model(network, tokenizer, stored | changes.pop("config", {}), None, precision="float64")


def decoder(template: str | None = "bos", **changes: Any) -> Model:
    loaded = model("decoder", **changes)
    loaded.config["template"] = template
    return loaded


def masked(**changes: Any) -> Model:
    heads = (HeadConfig(kind="masked-language-model"),)
    loaded = model("encoder", task="masked-language-modeling", heads=heads, **changes)
    loaded.config["template"] = "bos-eos"
    return loaded


@torch.no_grad()
def by_loop(loaded: Model, row: list[int]) -> float:
    """The sum of log p of each token of a row given those before it, one call a token."""
    total = 0.0
    for at in range(1, len(row)):
        logits = loaded.network(ids=torch.tensor([row[:at]])).logits[0, -1]
        total += float(torch.log_softmax(logits, dim=-1)[row[at]])
    return total


def test_i6_a_language_model_scores_each_token_and_eos_and_without_bos_not_the_first() -> None:
    for architecture in ("decoder", "recurrent-lm"):
        loaded = model(architecture)
        loaded.config["template"] = "bos"
        rows = [[TOKENIZER.bos_id, *TOKENIZER.encode(text), TOKENIZER.eos_id] for text in TEXTS]
        total = sum(by_loop(loaded, row) for row in rows)
        tokens = sum(len(row) - 1 for row in rows)
        score = loaded.perplexity(TEXTS)
        assert score.value == pytest.approx(math.exp(-total / tokens), rel=1e-10)
        assert score.parts["tokens"] == tokens and score.name == "perplexity"
        assert score.settings.startswith("weighted:tokens|kind:causal|window:") and score.settings.endswith(
            "eos:scored"
        )
    # One that was trained here scores the end of a text, as in its training; a released one does not
    for ended in (True, False):
        loaded = decoder("none" if ended else None)
        rows = [[*TOKENIZER.encode(text), *([TOKENIZER.eos_id] if ended else [])] for text in TEXTS]
        score = loaded.perplexity(TEXTS)
        total = sum(by_loop(loaded, row) for row in rows)
        assert score.value == pytest.approx(math.exp(-total / sum(len(row) - 1 for row in rows)), rel=1e-10)
        assert score.settings.endswith("eos:scored" if ended else "eos:none")


def test_i6_perplexity_does_not_depend_on_the_batch_and_long_texts_are_read_in_windows(monkeypatch) -> None:
    """Alone, together with others, in another order, in batches of another size."""
    for loaded in (decoder(), model("recurrent-lm"), masked()):
        whole = loaded.perplexity(TEXTS)
        alone = [loaded.perplexity(text) for text in TEXTS]
        assert whole.per_sentence() == pytest.approx([score.value for score in alone], rel=1e-12)
        assert loaded.perplexity(TEXTS[::-1]).value == pytest.approx(whole.value, rel=1e-13)
        with monkeypatch.context() as patch:
            patch.setattr("atento.tasks.text_perplexity._TOKENS", 30)
            patch.setattr("atento.tasks.text_perplexity._LOGITS", 700)
            assert loaded.perplexity(TEXTS).value == pytest.approx(whole.value, rel=1e-12)
    loaded = decoder()
    rows = Ragged([[TOKENIZER.bos_id, *TOKENIZER.encode(text), TOKENIZER.eos_id] for text in TEXTS])
    batches = PlannedBatches(MemoryStore({"ids": rows}), Causal(TOKENIZER.pad_id), budget=64, seed=1)
    (mean,) = mean_losses(loaded.network, batches.in_order(64)).values()
    assert loaded.perplexity(TEXTS).value == pytest.approx(math.exp(mean), rel=1e-9)
    # A window of 8 and a stride of 3: each token with the context that its window leaves it
    loaded = decoder()
    text = " ".join(TEXTS)
    row = [TOKENIZER.bos_id, *TOKENIZER.encode(text), TOKENIZER.eos_id]
    total, scored = 0.0, 1
    for begin in range(0, len(row), 3):
        piece = row[begin : begin + 9]
        for at in range(scored, min(begin + 9, len(row))):
            with torch.no_grad():
                logits = loaded.network(ids=torch.tensor([piece[: at - begin]])).logits[0, -1]
            total += float(torch.log_softmax(logits, dim=-1)[row[at]])
            scored = at + 1
    score = loaded.perplexity(text, window=8, stride=3)
    assert score.value == pytest.approx(math.exp(-total / (len(row) - 1)), rel=1e-10)
    assert "window:8|stride:3" in score.settings
    assert loaded.perplexity(text, window=200).value != pytest.approx(score.value, rel=1e-6)
    for two_sided in (True, False):
        for length in range(30):
            for size in range(1, 12):
                for stride in range(1, size + 1):
                    scored = []
                    for begin, end, first, last in Windows(size, stride).of(length, two_sided=two_sided):
                        assert begin <= first < last <= end <= min(length, begin + size)
                        scored += range(first, last)
                    assert scored == list(range(length))


def test_a_masked_model_masks_each_token_in_turn() -> None:
    """Salazar et al. 2020: special tokens are read and not scored."""
    loaded = masked()

    @torch.no_grad()
    def by_loop(ids: list[int], windows: Iterable[tuple[int, int, int, int]]) -> float:
        total = 0.0
        for begin, end, first, last in windows:
            row = [TOKENIZER.bos_id, *ids[begin:end], TOKENIZER.eos_id]
            for at in range(first, last):
                column = at - begin + 1
                hidden = torch.tensor([[*row[:column], TOKENIZER.mask_id, *row[column + 1 :]]])
                logits = loaded.network.read("vocabulary", loaded.network(ids=hidden))[0, column]
                total += float(torch.log_softmax(logits, dim=-1)[ids[at]])
        return total

    rows = [TOKENIZER.encode(text) for text in TEXTS]
    total, tokens = sum(by_loop(ids, [(0, len(ids), 0, len(ids))]) for ids in rows), sum(map(len, rows))
    score = loaded.perplexity(TEXTS)
    assert score.value == pytest.approx(math.exp(-total / tokens), rel=1e-10)
    assert score.name == "pseudo-perplexity" and score.parts["tokens"] == tokens
    # Long texts are read in windows with special tokens
    loaded = masked(max_len=10)
    ids = TOKENIZER.encode(" ".join(TEXTS[:2]))
    assert len(ids) > 12
    total = by_loop(ids, Windows(6, 4).of(len(ids), two_sided=True))
    score = loaded.perplexity(" ".join(TEXTS[:2]), window=8, stride=4)
    assert score.value == pytest.approx(math.exp(-total / len(ids)), rel=1e-10)


def test_pairs_are_scored_as_by_model_score_and_elmo_predicts_words_both_ways() -> None:
    for architecture in ("encoder-decoder", "recurrent-seq2seq"):
        loaded = model(architecture, task="translation")
        sources, targets = [pair.source for pair in PAIRS[:4]], [pair.target for pair in PAIRS[:4]]
        scores = loaded.score(sources, targets)
        tokens = sum(len(each.tokens) for each in scores)
        expected = math.exp(-sum(each.total for each in scores) / tokens)
        score = loaded.perplexity([*sources, ""], [*targets, " "])
        assert score.value == pytest.approx(expected, rel=1e-9) and score.parts["tokens"] == tokens
        assert score.segments[-1] == [0, 0]
    elmo = ELMoConfig(characters=None, d_cell=12)
    loaded = model("elmo", task="bidirectional-language-modeling", tokenizer=WORDS, elmo=elmo)
    total, targets = 0.0, 0
    for text in TEXTS:
        ids = torch.tensor([[WORDS.bos_id, *WORDS.encode(text), WORDS.eos_id]])
        with torch.no_grad():
            loss = loaded.network.loss(ids, ids)  # type: ignore[operator]
        total, targets = total + float(loss.total), targets + loss.targets
    score = loaded.perplexity(["", *TEXTS])
    assert score.value == pytest.approx(math.exp(total / targets), rel=1e-10)
    assert score.parts["tokens"] == targets and score.segments[0] == [0, 0]


def test_what_is_refused() -> None:
    loaded = decoder(max_len=12)
    loaded.config["max_len"] = 12
    for options, message in (
        ({"window": 1}, r"`window` must be at least 2.*: got 1"),
        ({"stride": 0}, r"`stride` must lie between 1 and the window, 12: got 0"),
        ({"stride": 13}, r"`stride` must lie between 1 and the window, 12: got 13"),
    ):
        fails(UsageError, message, loaded.perplexity, TEXTS, **options)
    fails(UsageError, "there is nothing to score: got 0 tokens", loaded.perplexity, ["", " "])
    fails(UsageError, "`targets` are for an encoder-decoder: this network is a Decoder", loaded.perplexity, "a", "b")
    fails(UsageError, "`stride` needs a `window`", model("recurrent-lm").perplexity, "a", stride=4)
    fails(CapabilityError, r"this network \(Encoder\) has no head for them", model("encoder").perplexity, "a")
    translator = model("encoder-decoder", task="translation")
    with pytest.raises(UsageError, match="an encoder-decoder predicts targets from sources: give `targets` too"):
        translator.perplexity(TEXTS)
    fails(UsageError, "give as many sources as targets: got 2 and 1", translator.perplexity, ["a", "b"], ["c"])
    with pytest.raises(UsageError, match="`window` and `stride` are for texts, not for pairs"):
        translator.perplexity(["a"], ["c"], window=4)


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    decoder().save(folder / "decoder")
    model("encoder-decoder", task="translation").save(folder / "translator")
    (folder / "texts").write_text("".join(f"{text}\n" for text in (*TEXTS[:2], "", TEXTS[2])), encoding="utf-8")
    (folder / "pairs").write_text(f"{PAIRS[0].source}\t{PAIRS[0].target}\n\n", encoding="utf-8")
    (folder / "sources").write_text(f"{PAIRS[0].source}\n\n", encoding="utf-8")
    (folder / "targets").write_text(f"{PAIRS[0].target}\n\n", encoding="utf-8")
    (folder / "bad").write_text("a\tb\na b\n", encoding="utf-8")
    (folder / "half").write_text("a\t \n", encoding="utf-8")
    (folder / "blank").write_text("\n \n", encoding="utf-8")
    return folder


def run(*arguments: str | Path, stdin: str | None = None) -> Result:
    app = typer.Typer()

    @app.callback()
    def main() -> None:
        """Stands for the whole command line."""

    register(app)
    result = CliRunner().invoke(app, ["perplexity", *map(str, arguments), "--precision", "float64"], input=stdin)
    if isinstance(result.exception, AtentoError):
        raise result.exception
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_the_command_prints_lines_texts_or_json_holds_gates_and_reads_pairs_from_one_file_or_two(folders: Path) -> None:
    expected = decoder().perplexity([*TEXTS[:2], "", TEXTS[2]])
    assert run(folders / "decoder", folders / "texts").stdout == f"{expected}\n"
    lines = run(folders / "decoder", folders / "texts", "--per-text").stdout.split("\n")
    assert lines[2] == "" and float(lines[3]) == pytest.approx(expected.per_sentence()[3], abs=1e-4)
    printed = run(folders / "decoder", "-", "--json", "--interval", stdin=f"{TEXTS[0]}\n\n").stdout
    assert "-0.0" not in printed and str(perplexity([0.0, -0.0], [1, 1]).parts["nll"]) == "0.0"
    record = json.loads(printed)
    assert record["value"] == pytest.approx(expected.per_sentence()[0], rel=1e-9)
    assert record["texts"][1] == {"perplexity": None, "nll": 0, "tokens": 0}
    assert record["interval"]["low"] <= record["value"] <= record["interval"]["high"]
    assert run(folders / "decoder", folders / "texts", "--fail-under", "perplexity=1e9").exit_code == 0
    missed = run(folders / "decoder", folders / "texts", "--fail-under", "bits=1")
    assert missed.exit_code == 3 and "gate missed: bits" in missed.stderr and missed.stdout.startswith("perplexity ")
    with pytest.raises(UsageError, match="--fail-under takes perplexity, nll or bits: got 'bleu'"):
        run(folders / "decoder", folders / "texts", "--fail-under", "bleu=1")
    # Lines of one width, two paragraphs: scored as two texts; not joined unless that is asked for
    wrapped = f"{TEXTS[0]}\n{TEXTS[1]}\n\n{TEXTS[2]}\n"
    (folders / "wrapped").write_text(wrapped, encoding="utf-8")
    joined = run(folders / "decoder", folders / "wrapped", "--paragraphs")
    assert joined.stdout == f"{decoder().perplexity([f'{TEXTS[0]} {TEXTS[1]}', TEXTS[2]])}\n"
    assert "4 lines joined into 2 paragraphs" in joined.stderr
    by_line = f"{decoder().perplexity([*TEXTS[:2], '', TEXTS[2]])}\n"
    for flags in ((), ("--lines",)):
        assert run(folders / "decoder", folders / "wrapped", *flags).stdout == by_line != joined.stdout
    together = run(folders / "translator", folders / "pairs").stdout
    assert together.startswith("perplexity ") and "kind:pairs" in together
    assert run(folders / "translator", folders / "sources", folders / "targets").stdout == together
    for files, message in (
        (("texts",), r"texts:1: the model reads pairs: .* this line has 0 tabs"),
        (("bad",), r"bad:2: the model reads pairs"),
        (("half",), r"half:1: the target of this pair is blank"),
        (("blank",), "there is nothing to score: the file has no text"),
        (("sources", "texts"), r"line N of .*texts must correspond to line N of .*sources: got 4 and 2 lines"),
    ):
        fails(DataError, message, run, folders / "translator", *(folders / name for name in files))
    mixed = folders / "mixed"
    mixed.write_bytes((folders / "pairs").read_bytes() + b"no tab\n\xff\nhalf\t\n")
    skipped = run(folders / "translator", mixed, "--skip-bad")
    assert skipped.stdout == together and "warning: 3 bad lines skipped, first: " in skipped.stderr
    assert run(folders / "translator", mixed, "--skip-bad", "--per-text").stdout.endswith("\n\n\n\n")
    table = folders / "pairs.csv"  # a row is named by its line in the file
    table.write_text('s,t\n"The cat\nsleeps.","O gato\ndorme."\n"a",\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"pairs\.csv:5: the target of this pair is blank"):
        run(folders / "translator", table, "--columns", "s,t")
    with pytest.raises(UsageError, match="TARGETS are for an encoder-decoder"):
        run(folders / "decoder", folders / "sources", folders / "targets")

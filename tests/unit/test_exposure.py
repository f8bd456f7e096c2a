"""The exposure laboratory: losses after each kind of prefix against plain loops, a real small run, its report."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.recurrent import RecurrentConfig
from atento.data.batches.batch import Batch
from atento.data.objectives.sequence_to_sequence import HEAD
from atento.networks import build_network
from atento.tasks.prefixes import free_running, losses_by_step, shifted
from atento_cli.commands.bench import show
from atento_lab.studies import REPORTS
from atento_lab.studies.exposure import PLANTED_AT, TEACHER_FORCING, Size, exposure, measure, world, wrong_words
from atento_lab.studies.exposure_report import panels, schedules

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

"""Decoding speed compared with `transformers` and CTranslate2: the same weights, in turns in one run.

Transformer-base (Vaswani et al. 2017) of random weights, sources of 32 tokens, exactly 48 tokens written for each: the
four cells of 1 and 16 sentences, greedy and beam 4. Each side runs in a process of its own with the same number of
threads. The end is impossible in the weights, and what all sides write is compared, so all do the same work.
"""

import importlib.util
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from atento.bench.ctranslate2_side import Conversion, CTranslate2
from atento.bench.decoding_sides import Ours, Transformers, Work, write_weights
from atento.bench.processes import Contender, Side, Turn, about, best, middle, peak, take_turns
from atento.config import presets
from atento.config.network import NetworkConfig
from atento.errors import AtentoError, CapabilityError
from atento.networks.steps.packed_linear import Precision

_IDS: dict[str, Any] = {"ids": {"pad": 0, "unk": 1, "bos": 2, "start": 2, "eos": 3}}
_KIND: dict[str, Any] = {"feed_forward": {"activation": "relu"}, "initializer": "xavier", **_IDS}
SIZES: dict[str, NetworkConfig] = {
    "transformer-base": presets.marian(vocab_size=32000, **_KIND),
    "tiny": presets.marian(vocab_size=200, d_model=32, d_ff=64, n_heads=4, n_layers=2, max_len=64, **_KIND),
}
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")  # of our fast twin
CELLS = tuple(Work((32,) * sentences, beam, 48) for beam in (1, 4) for sentences in (1, 16))
_SAME = 0.9  # of greedy's tokens: exact sides part only where two tokens stand within rounding, and then for good

# what is compared with what, and the ratios to reach with one sentence and with several; "fastest" of our precisions
Comparison = tuple[str, str, tuple[float, float] | None]
COMPARISONS: tuple[Comparison, ...] = (
    ("fastest", "transformers float32", (5.0, 3.0)),
    ("fastest", "ctranslate2 int8", (2.0, 1.2)),
    ("atento float32", "transformers float32", (2.0, 2.0)),
    ("atento float32", "ctranslate2 float32", (1.2, 1.2)),
)

Contenders = Mapping[str, tuple[type[Contender], tuple[Any, ...]]]


def measure_decoding(
    seconds: float,
    *,
    size: str = "transformer-base",
    cells: Sequence[Work] = CELLS,
    precisions: Sequence[str] = PRECISIONS,
    rounds: int = 3,
) -> Iterator[dict[str, Any]]:
    """Rows of tokens a second (of the best round, and of the middle one) and peak MiB; the last rows are the ratios.

    Each side is measured for about `seconds` over all cells, `rounds` rounds at least.
    """
    config = SIZES[size]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_weights(folder / "weights", config)
        sides: dict[str, tuple[type[Contender], tuple[Any, ...]]] = {
            "transformers float32": (Transformers, (folder / "weights",)),
            "atento plain": (Ours, (folder / "weights", "plain")),
        }
        if importlib.util.find_spec("ctranslate2") is None:
            yield {"bench": "decoding", "who": "ctranslate2", "skipped": "pip install ctranslate2"}
        else:
            with Side(Conversion) as conversion:
                for kind in ("float32", "int8"):
                    conversion.run((folder / "weights", folder / kind, config, kind))
                    sides[f"ctranslate2 {kind}"] = (CTranslate2, (folder / kind, kind))
        for precision in precisions:
            sides[f"atento {precision}"] = (Ours, (folder / "weights", precision))
        yield about("decoding", size, ("transformers", "ctranslate2"))
        yield from compare("decoding", sides, cells, seconds / len(cells), rounds, COMPARISONS)


def compare(
    bench: str,
    contenders: Contenders,
    cells: Sequence[Work],
    seconds: float,
    rounds: int,
    comparisons: Sequence[Comparison],
) -> Iterator[dict[str, Any]]:
    """All contenders on all cells, then the ratios. The first contender is the one whose tokens are expected.

    Raises:
        AtentoError: a side writes fewer tokens than asked, or a side that should be exact writes others.
    """
    measured: list[tuple[Work, dict[str, list[Turn]]]] = []
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name, (kind, given) in contenders.items():
            try:
                sides[name] = stack.enter_context(Side(kind, *given))
            except CapabilityError as error:
                yield {"bench": bench, "who": name, "skipped": str(error)}
        for work in cells:
            turns = take_turns(sides, work, seconds, rounds)
            measured.append((work, turns))
            yield from _rows(bench, work, turns)
    _check_same(measured)
    for work, turns in measured:
        yield from _ratios(bench, work, turns, comparisons)


def _cell(bench: str, work: Work) -> dict[str, Any]:
    return {"bench": bench, "sentences": len(work.lengths), "beam": work.beam}


def _rows(bench: str, work: Work, turns: Mapping[str, list[Turn]]) -> Iterator[dict[str, Any]]:
    expected = next(iter(turns.values()))[0].result
    for name, own in turns.items():
        written = own[0].result
        if [len(row) for row in written] != [work.new_tokens] * len(work.lengths):
            lengths = [len(row) for row in written]
            raise AtentoError(f"{name} was to write {work.new_tokens} tokens a sentence: {lengths}")
        yield _cell(bench, work) | {
            "who": name,
            "tokens_per_second": round(work.tokens / best(own)),
            "middle_round": round(work.tokens / middle(own)),
            "rounds": len(own),
            "peak_mib": peak(own),
            "same_sentences": f"{sum(a == b for a, b in zip(written, expected))}/{len(expected)}",
            "same_tokens": round(same_tokens(written, expected), 4),
        }


def same_tokens(written: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> float:
    """The share of expected tokens that stand in their place in what was written."""
    found = sum(a == b for one, two in zip(written, expected) for a, b in zip(one, two))
    return found / sum(len(row) for row in expected)


def _check_same(measured: Sequence[tuple[Work, Mapping[str, list[Turn]]]]) -> None:
    """Greedy at float32: what is timed must be one and the same thing."""
    greedy = [turns for work, turns in measured if work.beam == 1]
    for name in greedy[0] if greedy else ():
        if name.endswith(("float32", "plain")):
            written = [row for turns in greedy for row in turns[name][0].result]
            first = next(iter(greedy[0]))
            expected = [row for turns in greedy for row in turns[first][0].result]
            share = same_tokens(written, expected)
            if share < _SAME:
                raise AtentoError(f"{name} writes {share:.0%} of the tokens of {first}: it does other work")


def _ratios(
    bench: str, work: Work, turns: Mapping[str, list[Turn]], comparisons: Sequence[Comparison]
) -> Iterator[dict[str, Any]]:
    """How many times the peer's tokens a second, by best rounds and by middle ones, beside the ratio to reach."""
    fast = [name for name in turns if name.startswith("atento ") and name != "atento plain"]
    for ours, peer, goals in comparisons:
        name = min(fast, key=lambda one: best(turns[one])) if ours == "fastest" and fast else ours
        if name not in turns or peer not in turns:
            continue
        row = _cell(bench, work) | {
            "who": name + (" (fastest)" if ours == "fastest" else ""),
            "ratio_to": peer,
            "ratio": round(best(turns[peer]) / best(turns[name]), 2),
            "by_middle_rounds": round(middle(turns[peer]) / middle(turns[name]), 2),
        }
        yield row if goals is None else row | {"goal": goals[len(work.lengths) > 1]}

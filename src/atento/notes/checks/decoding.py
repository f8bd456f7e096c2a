"""Checks of searches on chains small enough for exhaustive search (docs/notes.md#h1, #h6 to #h12)."""

import math
from itertools import pairwise, product
from typing import Any

import torch

from atento.config.positions import PositionConfig
from atento.config.recurrent import RecurrentConfig
from atento.decoding import Beam, Greedy, Hypothesis, generate
from atento.networks import EncoderDecoder
from atento.notes.checks.attention import EXACT, apart
from atento.notes.checks.families import tiny
from atento.notes.checks.tiny import some_ids, tiny_network
from atento.notes.checks.toys import EOS, Chain, random_chain, table_chain
from atento.notes.finding import AtLeast, AtMost, Finding, compare

Sequence = tuple[int, ...]


def sources(count: int) -> torch.Tensor:
    """As many different one-token sources, each of which makes another chain of a random one."""
    return torch.arange(count).unsqueeze(1)


def greedy_by_hand(chain: Chain, source: int, most: int) -> list[int]:
    """argmax until EOS, one sentence at a time."""
    written: list[int] = []
    while len(written) < most:
        token = int(chain.log_probs((source,), tuple(written)).argmax())
        if token == EOS:
            break
        written.append(token)
    return written


def all_outputs(chain: Chain, source: int, most: int) -> dict[Sequence, float]:
    """Every output that ends within `most` tokens, EOS counted, with its log-probability."""
    found = {}
    others = range(1, chain.vocab_size)
    for length in range(most):
        for output in product(others, repeat=length):
            found[output] = chain.log_prob((source,), (*output, EOS))
    return found


def beam_by_hand(
    chain: Chain, source: int, width: int, most: int, penalty: float, until: str = "filled"
) -> list[tuple[Sequence, float]]:
    """Beam search with its rule spelt out: of the continuations, those among the best `width` that end are outputs,
    the best `width` of the others go on. Outputs by log-prob / length ** penalty.

    Once `width` outputs are found it ends: at once ("filled"), or when the best beginning, divided by its own length
    ("likely") or by the greatest length allowed ("sure"), would rank behind them all.
    """
    live: list[tuple[float, Sequence]] = [(0.0, ())]
    done: list[tuple[Sequence, float]] = []
    for length in range(1, most + 1):
        grown = [
            (score + float(chain.log_probs((source,), written)[token]), (*written, token))
            for score, written in live
            for token in range(chain.vocab_size)
        ]
        grown.sort(key=lambda item: -item[0])
        done += [(w[:-1], score / len(w) ** penalty) for score, w in grown[:width] if w[-1] == EOS]
        live = [(score, w) for score, w in grown if w[-1] != EOS][:width]
        done = sorted(done, key=lambda item: -item[1])[:width]
        reach = {"filled": math.inf, "likely": length**penalty, "sure": most**penalty}[until]
        if len(done) >= width and (until == "filled" or live[0][0] / reach <= done[-1][1]):
            break
    return done


def greedy_search() -> Finding:
    """H1: the best token at every step until EOS, a batch at a time; as a beam of 1; ids come without EOS."""
    chain = random_chain(vocab_size=6)
    found = generate(chain, sources(40), Greedy(), max_new_tokens=8)
    beam_of_one = generate(chain, sources(40), Beam(1), max_new_tokens=8)
    value = {
        "unlike the loop": sum(one[0].ids != greedy_by_hand(chain, i, 8) for i, one in enumerate(found)),
        "unlike a beam of 1": sum(a[0].ids != b[0].ids for a, b in zip(found, beam_of_one)),
        "EOS left in": sum(EOS in one[0].ids for one in found),
        "unfinished ones shorter than the limit": sum(not h.finished and len(h.ids) < 8 for (h,) in found),
    }
    return compare(value, dict.fromkeys(value, 0), remark="40 random chains; stopped by the limit means unfinished")


def beam_search() -> Finding:
    """H6: wide enough it finds the true optimum; narrow it equals the slow search; company changes nothing."""
    chain, count, most = random_chain(vocab_size=3), 30, 4
    whole = generate(chain, sources(count), Beam(3**most, length_penalty=0.0), max_new_tokens=most)
    missed = 0
    for source, found in enumerate(whole):
        outputs = all_outputs(chain, source, most)
        missed += tuple(found[0].ids) != max(outputs, key=lambda output: outputs[output])
    bigger = random_chain(vocab_size=7)
    narrow = generate(bigger, sources(count), Beam(3, n_best=3), max_new_tokens=6)
    unlike = alone = 0
    for source, best in enumerate(narrow):
        slow = beam_by_hand(bigger, source, 3, 6, 1.0)[:3]
        fast = [(tuple(h.ids), h.score) for h in best if h.finished]
        unlike += [ids for ids, _ in fast] != [ids for ids, _ in slow]
        unlike += any(abs(a[1] - b[1]) > 1e-6 for a, b in zip(fast, slow))
        single = generate(bigger, sources(count)[source : source + 1], Beam(3, n_best=3), max_new_tokens=6)[0]
        alone += [h.ids for h in single] != [h.ids for h in best]
    value = {"optimum missed at k = V^T": missed, "unlike the slow search": unlike, "changed by company": alone}
    return compare(value, dict.fromkeys(value, 0), remark=f"{count} random chains each")


# Half of the beginnings with "a" end at once; "a x" is behind "b x" but ends surely.
TWO_RULES = {
    (): {"a": 0.5, "b": 0.4, "x": 0.1},
    ("a",): {"</s>": 0.5, "x": 0.3, "a": 0.1, "b": 0.1},
    ("b",): {"x": 0.9, "a": 0.1},
    ("a", "x"): {"</s>": 1.0},
    ("b", "x"): {"</s>": 0.3, "a": 0.25, "b": 0.25, "x": 0.2},
}


def two_stopping_rules() -> Finding:
    """H7: k stays until k outputs have ended (S3), or shrinks with each (S2); here they choose differently. And when a
    search is over: as soon as k outputs have ended, or when no beginning could rank among them."""
    chain = table_chain(TWO_RULES)
    value: dict[str, Any] = {
        rule: chain.text(generate(chain, sources(1), Beam(2, stopping=rule), max_new_tokens=4)[0][0].ids)
        for rule in ("fixed", "shrinking")
    }
    ends = ("filled", "likely", "sure")
    random, count, most, penalty = random_chain(vocab_size=4), 40, 8, 2.0
    best, unlike = {}, {}
    for until in ends:
        strategy = Beam(2, length_penalty=penalty, until=until)  # type: ignore[arg-type]
        found = generate(random, sources(count), strategy, max_new_tokens=most)
        best[until] = [tuple(one[0].ids) if one[0].finished else None for one in found]
        slow = [beam_by_hand(random, source, 2, most, penalty, until) for source in range(count)]
        unlike[until] = sum(a != (b[0][0] if b else None) for a, b in zip(best[until], slow))
    changed = [sum(a != b for a, b in zip(best[one], best[other])) for one, other in pairwise(ends)]
    value |= {"unlike the slow search": unlike, "least outputs that a later end changes": min(changed)}
    return compare(
        value,
        {
            "fixed": "a x",
            "shrinking": "a",
            "unlike the slow search": dict.fromkeys(ends, 0),
            "least outputs that a later end changes": AtLeast(1),
        },
        remark='"a" ends at the second step and takes a place with it: "a x" (mean log-probability -0.63) is then no '
        'longer followed, and "a" (-0.69) is left the best',
    )


# "sim" has probability .2 in two steps, "de certo modo" .189 in four.
LENGTH_BIAS = {
    (): {"sim": 0.4, "de": 0.5, "modo": 0.1},
    ("sim",): {"</s>": 0.5, "certo": 0.25, "modo": 0.25},
    ("de",): {"certo": 0.9, "modo": 0.1},
    ("de", "certo"): {"modo": 0.6, "sim": 0.3, "</s>": 0.1},
    ("de", "certo", "modo"): {"</s>": 0.7, "sim": 0.3},
}


def length_bias() -> Finding:
    """H8: a plain sum of log-probabilities favours what is short; divided by length it need not."""
    chain = table_chain(LENGTH_BIAS)

    def best(penalty: float) -> dict[str, object]:
        found = generate(chain, sources(1), Beam(2, length_penalty=penalty), max_new_tokens=6)[0][0]
        return {"text": chain.text(found.ids), "score": found.score}

    short, long = math.log(0.4 * 0.5), math.log(0.5 * 0.9 * 0.6 * 0.7)
    return compare(
        {"sum": best(0.0), "by length": best(1.0)},
        {"sum": {"text": "sim", "score": short}, "by length": {"text": "de certo modo", "score": long / 4}},
        notes={"text": "sim"},
        remark="no length normalisation there (error 28)",
    )


def forced(network: EncoderDecoder, source: torch.Tensor, found: Hypothesis) -> torch.Tensor:
    """log p of each token of an output, by one pass over the whole of it."""
    config = network.config
    target = [*found.ids, *([config.eos_id] if found.finished else [])]
    shifted = torch.tensor([[config.start_id, *target[:-1]]])
    log_probs = torch.log_softmax(network(source, shifted).logits[0], dim=-1)
    return log_probs[range(len(target)), target].detach()


def n_best() -> Finding:
    """H9: several outputs, best first, every score recomputable by giving the network the output to read."""
    network, source = tiny_network(output={"tied": False}), some_ids(1, 6)
    found = generate(network, source, Beam(5, n_best=5), max_new_tokens=7)[0]
    away = [abs(float(forced(network, source, h).sum()) / max(1, len(h.token_scores)) - h.score) for h in found]
    chain = random_chain(vocab_size=5)
    many = generate(chain, sources(20), Beam(4, n_best=4), max_new_tokens=12)
    ended = [[h.score for h in one if h.finished] for one in many]
    value = {
        "outputs": len(found),
        "all different": len({tuple(h.ids) for h in found}) == len(found),
        "scores away from forced ones": max(away),
        "of 20 chains, not best first": sum(one != sorted(one, reverse=True) for one in ended),
        "outputs that ended": sum(map(len, ended)),
    }
    return compare(
        value,
        {
            "outputs": 5,
            "all different": True,
            "scores away from forced ones": AtMost(1e-5),
            "of 20 chains, not best first": 0,
            "outputs that ended": AtLeast(60),
        },
    )


def sentence_probability() -> Finding:
    """H11: the probability of an output is the product over its steps; here the forced score, step by step."""
    network, source = tiny_network(output={"tied": False}), some_ids(1, 6)
    found = generate(network, source, Greedy(), max_new_tokens=6, min_new_tokens=6)[0][0]
    steps = forced(network, source, found)
    value = {
        "log-probability": found.log_prob,
        "product of the steps": math.prod(math.exp(score) for score in found.token_scores),
        "steps away": apart(torch.tensor(found.token_scores), steps),
    }
    return compare(
        value,
        {
            "log-probability": float(steps.sum()),
            "product of the steps": float(steps.exp().prod()),
            "steps away": AtMost(1e-5),
        },
        within=1e-5,
    )


def cached_away(network: Any) -> float:
    """How far logits, written token by token with a kept state, are from those of one pass over the whole.

    A state that no longer fits its network is infinitely far.
    """
    source, target = some_ids(2, 5), some_ids(2, 6)
    inputs = (source,) if hasattr(network, "encode") else ()
    whole, state, steps = network(*inputs, target).logits, network.begin(), []
    for place in range(6):
        try:
            output = network(*inputs, target[:, place : place + 1], state=state)
        except RuntimeError:
            return math.inf
        state = output.state
        steps.append(output.logits)
    return apart(torch.cat(steps, dim=1), whole)


def families_cached() -> dict[str, float]:
    """The same for one small network of each family that writes."""
    relative = PositionConfig(kind="t5", n_buckets=8, max_distance=16)
    makes: dict[str, tuple[str, dict[str, Any]]] = {
        "GPT": ("decoder", {"positions": PositionConfig(kind="learned"), "max_len": 16}),
        "Llama": ("decoder", {"positions": PositionConfig(kind="rotary"), "attention": {"n_kv_heads": 1, "d_head": 4}}),
        "T5": ("encoder-decoder", {"positions": relative}),
        "LSTM": ("recurrent-lm", {"recurrent": RecurrentConfig(cell="lstm")}),
        "GRU with attention": ("recurrent-seq2seq", {"recurrent": RecurrentConfig(cell="gru", attention="additive")}),
    }
    with torch.no_grad():
        return {name: cached_away(tiny(kind, **changes)) for name, (kind, changes) in makes.items()}


def cached_loop() -> Finding:
    """H12: the loop begins at the start token and ends at EOS; with kept keys and values it is the same loop, in every
    family that writes."""
    network, source = tiny_network(output={"tied": False}), some_ids(1, 6)
    state, start = network.begin(), network.config.start_id
    encoded = network.encode(source)
    target, away = [start], 0.0
    with torch.no_grad():
        for _ in range(7):
            step = network(None, torch.tensor([target[-1:]]), encoded=encoded, state=state)
            whole = network(source, torch.tensor([target]))
            away = max(away, apart(step.logits[:, -1], whole.logits[:, -1]))
            target.append(int(whole.logits[0, -1].argmax()))
    written = target[1:]
    without_end = generate(network, source, Greedy(), max_new_tokens=7, eos_id=())[0][0].ids
    end = max(written, key=written.index)  # the token that appears last of all
    ended = generate(network, source, Greedy(), max_new_tokens=7, eos_id=end)[0][0].ids
    others = families_cached()
    return compare(
        {
            "cached away from uncached": {"Transformer": away} | others,
            "generated": without_end,
            f"generated if {end} is EOS": ended,
        },
        {
            "cached away from uncached": dict.fromkeys(("Transformer", *others), EXACT),
            "generated": written,
            f"generated if {end} is EOS": written[: written.index(end)],
        },
    )

"""Checks of search algorithms on chains small enough for exhaustive search (docs/notes.md#h1, #h6 to #h12)."""

import math
from itertools import pairwise, product
from typing import Any, Literal

import torch

from atento.config.sections.position_scheme import PositionConfig
from atento.config.sections.recurrent import RecurrentConfig
from atento.decoding import Beam, Greedy, Hypothesis, generate
from atento.networks import EncoderDecoder
from atento_lab.notes.checks.attention import EXACT, apart
from atento_lab.notes.checks.families import tiny
from atento_lab.notes.checks.tiny import some_ids, tiny_network
from atento_lab.notes.checks.toys import EOS, Chain, random_chain, table_chain
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare

Sequence = tuple[int, ...]


def sources(count: int) -> torch.Tensor:
    """Return `count` different one-token sources; a random chain has different distributions for each."""
    return torch.arange(count).unsqueeze(1)


def greedy_by_hand(chain: Chain, source: int, max_tokens: int) -> list[int]:
    """Return the argmax tokens until EOS, for one sentence."""
    written: list[int] = []
    while len(written) < max_tokens:
        token = int(chain.log_probs((source,), tuple(written)).argmax())
        if token == EOS:
            break
        written.append(token)
    return written


def all_outputs(chain: Chain, source: int, max_tokens: int) -> dict[Sequence, float]:
    """Return every output that ends within `max_tokens` tokens including EOS, with its log-probability."""
    log_probs = {}
    words = range(1, chain.vocab_size)
    for length in range(max_tokens):
        for output in product(words, repeat=length):
            log_probs[output] = chain.log_prob((source,), (*output, EOS))
    return log_probs


def beam_by_hand(
    chain: Chain, source: int, width: int, max_tokens: int, penalty: float, until: str = "filled"
) -> list[tuple[Sequence, float]]:
    """Return the outputs of a beam search for one sentence, by log-prob / length ** penalty.

    At each step, the continuations among the best `width` that end are outputs; the best `width` of the others
    continue. Once there are `width` outputs, the search ends: immediately ("filled"), or when the best prefix, divided
    by its own length ("likely") or by the maximum length ("sure"), would rank behind all of them.
    """
    live: list[tuple[float, Sequence]] = [(0.0, ())]
    outputs: list[tuple[Sequence, float]] = []
    for length in range(1, max_tokens + 1):
        continuations = [
            (score + float(chain.log_probs((source,), written)[token]), (*written, token))
            for score, written in live
            for token in range(chain.vocab_size)
        ]
        continuations.sort(key=lambda item: -item[0])
        outputs += [(w[:-1], score / len(w) ** penalty) for score, w in continuations[:width] if w[-1] == EOS]
        live = [(score, w) for score, w in continuations if w[-1] != EOS][:width]
        outputs = sorted(outputs, key=lambda item: -item[1])[:width]
        reach = {"filled": math.inf, "likely": length**penalty, "sure": max_tokens**penalty}[until]
        if len(outputs) >= width and (until == "filled" or live[0][0] / reach <= outputs[-1][1]):
            break
    return outputs


def greedy_search() -> Finding:
    """H1: the best token until EOS, which the ids lack; equal to a beam of 1."""
    chain = random_chain(vocab_size=6)
    outputs = generate(chain, sources(40), Greedy(), max_new_tokens=8)
    beam_of_one = generate(chain, sources(40), Beam(1), max_new_tokens=8)
    value = {
        "unlike the loop": sum(
            hypotheses[0].ids != greedy_by_hand(chain, i, 8) for i, hypotheses in enumerate(outputs)
        ),
        "unlike a beam of 1": sum(a[0].ids != b[0].ids for a, b in zip(outputs, beam_of_one)),
        "EOS left in": sum(EOS in hypotheses[0].ids for hypotheses in outputs),
        "unfinished ones shorter than the limit": sum(not h.finished and len(h.ids) < 8 for (h,) in outputs),
    }
    return compare(
        value, dict.fromkeys(value, 0), remark="40 random chains; an output stopped by the limit is unfinished"
    )


def beam_search() -> Finding:
    """H6: as wide as the search space it finds the optimum; the batch has no effect."""
    chain, count, max_tokens = random_chain(vocab_size=3), 30, 4
    exhaustive = generate(chain, sources(count), Beam(3**max_tokens, length_penalty=0.0), max_new_tokens=max_tokens)
    missed = 0
    for source, hypotheses in enumerate(exhaustive):
        outputs = all_outputs(chain, source, max_tokens)
        missed += tuple(hypotheses[0].ids) != max(outputs, key=lambda output: outputs[output])
    bigger = random_chain(vocab_size=7)
    narrow = generate(bigger, sources(count), Beam(3, n_best=3), max_new_tokens=6)
    different = changed = 0
    for source, hypotheses in enumerate(narrow):
        slow = beam_by_hand(bigger, source, 3, 6, 1.0)[:3]
        fast = [(tuple(h.ids), h.score) for h in hypotheses if h.finished]
        different += [ids for ids, _ in fast] != [ids for ids, _ in slow]
        different += any(abs(a[1] - b[1]) > 1e-6 for a, b in zip(fast, slow))
        single = generate(bigger, sources(count)[source : source + 1], Beam(3, n_best=3), max_new_tokens=6)[0]
        changed += [h.ids for h in single] != [h.ids for h in hypotheses]
    value = {"optimum missed at k = V^T": missed, "unlike the slow search": different, "changed by company": changed}
    return compare(value, dict.fromkeys(value, 0), remark=f"{count} random chains each")


# After "a", the output ends with probability .5; "a x" is less probable than "b x" but then always ends.
TWO_RULES = {
    (): {"a": 0.5, "b": 0.4, "x": 0.1},
    ("a",): {"</s>": 0.5, "x": 0.3, "a": 0.1, "b": 0.1},
    ("b",): {"x": 0.9, "a": 0.1},
    ("a", "x"): {"</s>": 1.0},
    ("b", "x"): {"</s>": 0.3, "a": 0.25, "b": 0.25, "x": 0.2},
}


def two_stopping_rules() -> Finding:
    """H7: the width stays k until k outputs have ended (S3), or shrinks with each (S2); results differ. It also stops
    when no prefix could rank among them.
    """
    chain = table_chain(TWO_RULES)
    value: dict[str, object] = {
        rule: chain.text(generate(chain, sources(1), Beam(2, stopping=rule), max_new_tokens=4)[0][0].ids)
        for rule in ("fixed", "shrinking")
    }
    conditions: tuple[Literal["filled", "likely", "sure"], ...] = ("filled", "likely", "sure")
    random, count, max_tokens, penalty = random_chain(vocab_size=4), 40, 8, 2.0
    best, different = {}, {}
    for until in conditions:
        strategy = Beam(2, length_penalty=penalty, until=until)
        outputs = generate(random, sources(count), strategy, max_new_tokens=max_tokens)
        best[until] = [tuple(hypotheses[0].ids) if hypotheses[0].finished else None for hypotheses in outputs]
        slow = [beam_by_hand(random, source, 2, max_tokens, penalty, until) for source in range(count)]
        different[until] = sum(a != (b[0][0] if b else None) for a, b in zip(best[until], slow))
    changed = [sum(a != b for a, b in zip(best[first], best[second])) for first, second in pairwise(conditions)]
    value |= {"unlike the slow search": different, "least outputs that a later end changes": min(changed)}
    return compare(
        value,
        {
            "fixed": "a x",
            "shrinking": "a",
            "unlike the slow search": dict.fromkeys(conditions, 0),
            "least outputs that a later end changes": AtLeast(1),
        },
        remark='"a" ends at the second step and shrinks the beam: "a x" (mean log-probability -0.63) is then dropped, '
        'and "a" (-0.69) is the best remaining output',
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
    """H8: division by the length corrects it."""
    chain = table_chain(LENGTH_BIAS)

    def best(penalty: float) -> dict[str, object]:
        hypothesis = generate(chain, sources(1), Beam(2, length_penalty=penalty), max_new_tokens=6)[0][0]
        return {"text": chain.text(hypothesis.ids), "score": hypothesis.score}

    short, long = math.log(0.4 * 0.5), math.log(0.5 * 0.9 * 0.6 * 0.7)
    return compare(
        {"sum": best(0.0), "by length": best(1.0)},
        {"sum": {"text": "sim", "score": short}, "by length": {"text": "de certo modo", "score": long / 4}},
        notes={"text": "sim"},
        remark="the notes have no length normalisation (error 28)",
    )


def forced(network: EncoderDecoder, source: torch.Tensor, hypothesis: Hypothesis) -> torch.Tensor:
    """Return log p of each token of an output, from one forward pass over the whole output."""
    config = network.config
    target = [*hypothesis.ids, *([config.eos_id] if hypothesis.finished else [])]
    shifted = torch.tensor([[config.start_id, *target[:-1]]])
    log_probs = torch.log_softmax(network(source, shifted).logits[0], dim=-1)
    return log_probs[range(len(target)), target].detach()


def n_best() -> Finding:
    """H9: best first; a forward pass reproduces each score."""
    network, source = tiny_network(output={"tied": False}), some_ids(1, 6)
    hypotheses = generate(network, source, Beam(5, n_best=5), max_new_tokens=7)[0]
    differences = [
        abs(float(forced(network, source, h).sum()) / max(1, len(h.token_scores)) - h.score) for h in hypotheses
    ]
    chain = random_chain(vocab_size=5)
    outputs = generate(chain, sources(20), Beam(4, n_best=4), max_new_tokens=12)
    ended = [[h.score for h in scores if h.finished] for scores in outputs]
    value = {
        "outputs": len(hypotheses),
        "all different": len({tuple(h.ids) for h in hypotheses}) == len(hypotheses),
        "scores away from forced ones": max(differences),
        "of 20 chains, not best first": sum(scores != sorted(scores, reverse=True) for scores in ended),
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
    """H11: the product over its steps, as by one forward pass."""
    network, source = tiny_network(output={"tied": False}), some_ids(1, 6)
    hypothesis = generate(network, source, Greedy(), max_new_tokens=6, min_new_tokens=6)[0][0]
    steps = forced(network, source, hypothesis)
    value = {
        "log-probability": hypothesis.log_prob,
        "product of the steps": math.prod(math.exp(score) for score in hypothesis.token_scores),
        "steps away": apart(torch.tensor(hypothesis.token_scores), steps),
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
    """Return the largest difference between logits computed token by token with a cache and logits of one forward pass.

    The result is infinite if the cache does not fit the network.
    """
    source, target = some_ids(2, 5), some_ids(2, 6)
    inputs = (source,) if hasattr(network, "encode") else ()
    uncached, state, steps = network(*inputs, target).logits, network.begin(), []
    for position in range(6):
        try:
            output = network(*inputs, target[:, position : position + 1], state=state)
        except RuntimeError:
            return math.inf
        state = output.state
        steps.append(output.logits)
    return apart(torch.cat(steps, dim=1), uncached)


def families_cached() -> dict[str, float]:
    """Return that difference for one small network of each generating family."""
    relative = PositionConfig(kind="t5", n_buckets=8, max_distance=16)
    makes: dict[str, tuple[str, dict[str, object]]] = {
        "GPT": ("decoder", {"positions": PositionConfig(kind="learned"), "max_len": 16}),
        "Llama": ("decoder", {"positions": PositionConfig(kind="rotary"), "attention": {"n_kv_heads": 1, "d_head": 4}}),
        "T5": ("encoder-decoder", {"positions": relative}),
        "LSTM": ("recurrent-lm", {"recurrent": RecurrentConfig(cell="lstm")}),
        "GRU with attention": ("recurrent-seq2seq", {"recurrent": RecurrentConfig(cell="gru", attention="additive")}),
    }
    with torch.no_grad():
        return {name: cached_away(tiny(kind, **changes)) for name, (kind, changes) in makes.items()}


def cached_loop() -> Finding:
    """H12: from the start token to EOS; the cache changes no token, in every generating family."""
    network, source = tiny_network(output={"tied": False}), some_ids(1, 6)
    state, start = network.begin(), network.config.start_id
    encoded = network.encode(source)
    target, difference = [start], 0.0
    with torch.no_grad():
        for _ in range(7):
            step = network(None, torch.tensor([target[-1:]]), encoded=encoded, state=state)
            uncached = network(source, torch.tensor([target]))
            difference = max(difference, apart(step.logits[:, -1], uncached.logits[:, -1]))
            target.append(int(uncached.logits[0, -1].argmax()))
    tokens = target[1:]
    without_end = generate(network, source, Greedy(), max_new_tokens=7, eos_id=())[0][0].ids
    eos_id = max(tokens, key=tokens.index)  # the token whose first occurrence is the latest
    ended = generate(network, source, Greedy(), max_new_tokens=7, eos_id=eos_id)[0][0].ids
    families = families_cached()
    return compare(
        {
            "cached away from uncached": {"Transformer": difference} | families,
            "generated": without_end,
            f"generated if {eos_id} is EOS": ended,
        },
        {
            "cached away from uncached": dict.fromkeys(("Transformer", *families), EXACT),
            "generated": tokens,
            f"generated if {eos_id} is EOS": tokens[: tokens.index(eos_id)],
        },
    )

"""The n best outputs of a text are different texts, whatever pieces spell them (W17)."""

from collections.abc import Callable
from itertools import product

import torch

from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import SpecialIds
from atento.decoding import MBR, Beam, Sample, generate
from atento.tasks.text_generation import GeneratedText, TextGenerator
from test_decoding_chains import EOS, Chain

CONFIG = NetworkConfig(vocab_size=6, ids=SpecialIds(eos=EOS))
SOURCES = [[0], [1], [2]]
LONGEST = 4


def spelled(ids: list[int]) -> str:
    """Tokens 2 and 3 are the letter b, 4 and 5 the letter c, 0 an a: most texts can be spelled in several ways."""
    return "".join("aabbcc"[token] for token in ids)


def written(chain: Chain, text: Callable[[list[int]], str] = spelled, **options: int) -> list[list[GeneratedText]]:
    decoding = DecodingConfig(max_new_tokens=LONGEST, **options)  # type: ignore[arg-type]
    return TextGenerator(chain, CONFIG, decoding, text, torch.device("cpu")).write(SOURCES)


def ranked_texts(chain: Chain, sentence: int) -> list[str]:
    """Every text that an output of at most `LONGEST` tokens spells, by its best spelling, found by listing all."""
    scores: dict[str, float] = {}
    for length in range(LONGEST):
        for ids in product([0, 2, 3, 4, 5], repeat=length):
            history, total = [chain.start_id], 0.0
            for token in (*ids, EOS):
                total += chain.log_probs(sentence, history)[token]
                history.append(token)
            one = total / (length + 1)
            scores[spelled(list(ids))] = max(scores.get(spelled(list(ids)), one), one)
    return sorted(scores, key=lambda text: -scores[text])


def test_w17_no_text_stands_twice_and_the_first_is_that_of_one_output() -> None:
    alike = 0
    for seed in range(20):
        chain = Chain.random(seed, 3, 6)
        plain = generate(chain, torch.tensor(SOURCES), Beam(4, n_best=4), max_new_tokens=LONGEST)
        for row, outputs in enumerate(written(chain, beam=4, n_best=4)):
            texts = [one.text for one in outputs]
            before = [spelled(one.ids) for one in plain[row]]
            assert len(set(texts)) == len(texts) == 4
            assert texts[0] == before[0] and set(before) <= set(texts)  # what the beam found stays, its best first
            ranks = [(one.hypothesis.finished, one.hypothesis.score) for one in outputs[1:]]
            assert ranks == sorted(ranks, reverse=True)  # the others by their scores, whichever beam found them
            assert [one.text for one in outputs] == [spelled(one.hypothesis.ids) for one in outputs]
            alike += len(set(before)) < 4
        assert [row[0] for row in written(chain, beam=4, n_best=4)] == [row[0] for row in written(chain, beam=4)]
    assert alike > 3  # the beam alone found one text twice


def test_w17_a_wide_beam_and_least_risk_give_different_texts_and_fewer_where_there_are_no_more() -> None:
    for seed in range(4):
        chain = Chain.random(seed, 3, 6)
        for row, outputs in enumerate(written(chain, beam=1024, n_best=10)):
            finished = [one.text for one in outputs if one.hypothesis.finished]
            assert finished == ranked_texts(chain, row)[: len(finished)] and len(finished) == 10
    chain = Chain.random(1, 3, 6)
    for outputs in written(chain, lambda ids: "same", beam=4, n_best=3):
        assert [one.text for one in outputs] == ["same"]
    chain = Chain.random(2, 3, 6)
    outputs = written(chain, beam=4, n_best=12, sample=True)
    drawn = generate(chain, torch.tensor(SOURCES), Sample(n=12), max_new_tokens=LONGEST, seed=1)
    assert [[one.hypothesis.ids for one in row] for row in outputs] == [[one.ids for one in row] for row in drawn]
    assert any(len({one.text for one in row}) < 12 for row in outputs)
    for weights in ("uniform", "model"):
        chain = Chain.random(3, 3, 6)
        strategy = MBR("chrf", Sample(n=24), text=spelled, n_best=24, weights=weights)  # type: ignore[arg-type]
        for row in generate(chain, torch.tensor(SOURCES), strategy, max_new_tokens=LONGEST, seed=2):
            texts = [spelled(one.ids) for one in row]
            assert len(set(texts)) == len(texts) > 3
            assert [one.score for one in row] == sorted((one.score for one in row), reverse=True)

"""A row of a network that no piece of its tokenizer has (Qwen, T5, ModernBERT) is decoded to nothing, and wins here."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atento.base.errors import TokenizerError
from atento.config.sections.network_parts import InputConfig, OutputConfig
from atento.config.sections.recurrent import RecurrentConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.model import Model
from atento.tasks.mask_filling import fill_each
from atento.text.specials import SpecialTokens
from atento.text.tokenizer import Tokenizer
from atento_serve.engine.verbs import values_of, verbs_of
from atento_serve.jobs import Failed, Job, Result
from failing import fails
from http_service import CHAT, LABELS, TAGS, served
from serving import TEXTS, alone, random_job, small_model, small_tokenizer, written, wrong

ROWS = 7  # behind the tokenizer
NAMED = [HeadConfig("masked-language-model"), HeadConfig("classification", LABELS), HeadConfig("tagging", TAGS)]
HEADS = (*NAMED, HeadConfig("answer"))
RECURRENT = {"output": OutputConfig(tied=False, bias=True), "recurrent": RecurrentConfig(), "n_heads": 1}
ARCHITECTURES: dict[str, dict[str, Any]] = {"encoder": {"heads": HEADS, "embedding": InputConfig(segments=2)}}
ARCHITECTURES |= {name: {"output": OutputConfig(bias=True)} for name in ("decoder", "encoder-decoder")}
ARCHITECTURES |= dict.fromkeys(("recurrent-seq2seq", "recurrent-lm"), RECURRENT)
WRITES = {"decoder": "generate", "recurrent-lm": "generate"}
# every search, and what is laid over it
OPTIONS: dict[str, dict[str, Any]] = {"greedy": {"greedy": True}, "sample": {"sample": True, "seed": 1}}
OPTIONS |= {"samples": {"temperature": 0.7, "n_best": 3, "seed": 1}, "beam": {"beam": 3, "n_best": 2}}
OPTIONS |= {"groups": {"beam": 4, "groups": 2, "diversity": 0.5}}
OPTIONS |= {"required words": {"beam": 3, "required_words": ["gato"]}}
OPTIONS |= {"minimum Bayes risk": {"mbr": "chrf", "candidates": 3, "seed": 1}}
OPTIONS |= {"exact": {"exact": True, "beam": 2, "max_new_tokens": 2, "exact_limit": 30}}
OPTIONS |= {"stop strings": {"greedy": True, "stop": ["e"]}, "stop strings of a beam": {"beam": 2, "stop": ["e"]}}
OPTIONS |= {"draft": {"greedy": True, "draft": "ngrams"}}
OPTIONS |= {"penalties": {"greedy": True, "repetition_penalty": 1.2, "no_repeat_ngrams": 3, "presence_penalty": 0.5}}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


def padded(tokenizer: Tokenizer, architecture: str, bias: float = 1e3) -> Model:
    """A model whose last row, which no piece has, wins everywhere."""
    model = small_model(tokenizer, architecture, vocab_size=tokenizer.vocab_size + ROWS, **ARCHITECTURES[architecture])
    names = [name for name, _ in model.network.named_parameters() if name.endswith("vocabulary.output.bias")]
    model.network.get_parameter(names[0])[-1] = bias
    if architecture == "encoder":
        model.config |= {"task": "masked-language-modeling", "template": "bos-eos"}
    return model


def last_row(model: Model) -> int:
    return model.network.config.vocab_size - 1


def test_an_id_without_a_piece_has_no_text_and_ordinary_ids_are_all_but_special_ones(tokenizer: Tokenizer) -> None:
    """As the library of `transformers` decodes them; ids of no row are refused as before."""
    for kind in ("unigram", "bpe", "wordpiece", "word", "character", "byte"):
        pieces = {"byte": [], "character": ["a", "b"]}.get(kind, ["▁", "a", "b"])
        ours = Tokenizer.from_vocabulary(kind, pieces, scores=[-1.0] * len(pieces) if kind == "unigram" else [])
        size, ids = ours.vocab_size, ours.encode("ab")
        fails(TokenizerError, "an id must lie in", ours.decode, [size])
        ours.pad_to(size + 3, size + 3)
        for at in range(len(ids) + 1):
            mixed = [*ids[:at], size, size + 2, *ids[at:]]
            assert ours.decode(mixed) == ours.decode(ids) == ours.decode(mixed, skip_special=False)
            assert ours.words(mixed).words == ours.words(ids).words or at not in (0, len(ids))
        assert ours.tokens([size]) == [""] and ours.spelling(size) is None
        fails(TokenizerError, rf"^an id must lie in 0 \.\.\. {size + 2}: got {size + 3}$", ours.tokens, [size + 3])
    assert tokenizer.ordinary_ids == [*range(len(set(tokenizer.specials.ids.values())), tokenizer.vocab_size)]
    assert tokenizer.other_ids(tokenizer.vocab_size + 2) == [*range(5), tokenizer.vocab_size, tokenizer.vocab_size + 1]
    specials = SpecialTokens({"unk": "<unk>", "mask": "a"}, {"<unk>": 1, "a": 300})
    scattered = Tokenizer(tokenizer.definition, "bpe", specials)
    assert scattered.other_ids(scattered.vocab_size) == [1, 300]
    assert set(scattered.ordinary_ids) == set(range(scattered.vocab_size)) - {1, 300}


@pytest.mark.covering
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "encoder"])
@pytest.mark.filterwarnings("ignore:the exact search", "ignore:.*outputs? .*different")
def test_h1_every_search_writes_them_as_nothing(tokenizer: Tokenizer, architecture: str, options: str) -> None:
    model, given = padded(tokenizer, architecture), {"max_new_tokens": 7} | OPTIONS[options]
    if architecture.startswith("recurrent") and "draft" in given:
        pytest.skip("a recurrent network gives no tokens back, so it has no draft")
    n_best = given.pop("n_best", None)
    method = model.generations if architecture in WRITES else model.translations
    written = [output for row in method(TEXTS[:2], n_best=n_best, **given) for output in row]
    assert any(last_row(model) in output.hypothesis.ids for output in written) or options in ("samples", "groups")
    for output in written:
        pieces = [token for token in output.hypothesis.ids if token < tokenizer.vocab_size]
        assert output.text == tokenizer.decode(pieces)


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_streams_scores_and_maps_name_ids_without_a_piece(tokenizer: Tokenizer, architecture: str) -> None:
    model = padded(tokenizer, architecture)
    if architecture in WRITES:
        assert "".join(model.stream(TEXTS[0], max_new_tokens=4)) == ""
    scores = model.score(TEXTS[0], TEXTS[1], top=20)
    assert all(place[0] == ("", pytest.approx(0.0, abs=1e-6)) for place in scores.top)
    assert [ids[0] for ids in scores.top_ids] == [last_row(model)] * len(scores.tokens)
    assert model.attend(TEXTS[0]).tokens
    traced, trace = model.traced(TEXTS[0], beam=2, max_new_tokens=3)
    assert traced is not None and trace is not None


def test_a_mask_is_filled_with_words_alone_and_a_draft_may_have_other_rows(tokenizer: Tokenizer) -> None:
    """Every candidate has a piece; Qwen2 has 151,936 rows, its larger sizes 152,064: a proposal is an id of both."""
    model = padded(tokenizer, "encoder")
    text = f"O gato {tokenizer.specials.roles['mask']} no {tokenizer.specials.roles['mask']} ."
    one_pass, several = model.fill(text, top=20), model.fill(text, iterations=3)
    for candidates in (one_pass, several, *fill_each(model, [text], top=10_000)[0]):
        assert candidates and all(set(one.ids) <= set(tokenizer.ordinary_ids) for one in candidates)
    model, plain = padded(tokenizer, "decoder", bias=6.0), small_model(tokenizer, "decoder", n_layers=1)
    for target, draft in ((model, plain), (plain, model)):
        target._drafting = {"draft": draft}
        for options in ({"greedy": True}, {"sample": True, "seed": 3}):
            outputs = target.generations(TEXTS[:3], max_new_tokens=12, draft="draft", **options)
            assert all(row[0].hypothesis.ids for row in outputs)
        alone = target.generate(TEXTS[:3], max_new_tokens=12, greedy=True)
        assert alone == target.generate(TEXTS[:3], max_new_tokens=12, greedy=True, draft="draft")


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder", "encoder"])
def test_every_verb_of_the_service_answers(tokenizer: Tokenizer, architecture: str) -> None:
    """The verbs that a model has, by its own account; a new one needs items here."""
    mask = f"O {tokenizer.specials.roles['mask']} dorme ."
    items: dict[str, list[Any]] = {"fill": [mask], "answer": [("Quem dorme ?", "O gato dorme .")]}
    items |= {"similarity": [("O gato", "A casa")], "detokenize": [[5, tokenizer.vocab_size + 1]]}
    items |= {key: [("O gato", "dorme")] for key in ("score", "align")}
    model = padded(tokenizer, architecture)
    for verb in verbs_of(model):
        if verb in ("translate", "generate", "summarize"):
            continue  # these are written by searches
        options = {"top": 20} if verb in ("score", "fill") else {}
        values = values_of(model, verb, items.get(verb, ["O gato dorme ."]), options)
        assert len(values) == 1 and (values[0] is not None), verb


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
@pytest.mark.filterwarnings("ignore:the exact search")
def test_v9_jobs_beside_one_another_write_what_they_write_alone(tokenizer: Tokenizer, architecture: str) -> None:
    """Random jobs of every strategy, with log-probabilities and streams, of a model that often writes such ids."""
    model, rng = padded(tokenizer, architecture, bias=6.0).to(precision="float64"), random.Random(1)
    verb = WRITES.get(architecture, "translate")
    jobs = [replace(random_job(rng, number, verb, TEXTS), log_probs=rng.choice([None, 0, 20])) for number in range(20)]
    sent = written(model, jobs)
    without = {job.id: wrong(alone(model, job), sent.events[job.id], 1e-10) for job in jobs}
    assert {job_id: fault for job_id, fault in without.items() if fault} == {}
    ids = [token for events in sent.events.values() for event in events if isinstance(event, Result)
           for value in event.value for token in value["ids"]]  # fmt: skip
    assert max(ids) == last_row(model)


BROKEN: list[dict[str, Any]] = [
    {"greedy": True},
    {"greedy": True, "stop": ["zzz"]},
    {"sample": True, "n_best": 2, "seed": 1},
    {"beam": 2},
    {"beam": 2, "stop": ["zzz"]},
    {"beam": 2, "n_best": 2},
    {"mbr": "chrf", "candidates": 2, "seed": 1},
]


@pytest.mark.covering
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("options", BROKEN, ids=str)
def test_a_fault_of_one_text_fails_that_job_alone(
    tokenizer: Tokenizer, options: dict[str, Any], stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever turns ids into text: here decoding breaks at an id that one request is forced to begin with."""
    model = small_model(tokenizer, "encoder-decoder")
    bad = tokenizer.encode("gato")[-1]
    decode = Tokenizer.decode

    def broken(self: Tokenizer, ids: Any, skip_special: bool = True) -> str:
        if bad in ids:
            raise RuntimeError("a fault of decoding")
        return decode(self, ids, skip_special)

    beside = {"max_new_tokens": 8, "banned_tokens": tokenizer.tokens([bad])}
    others = [beside | {"greedy": True}, beside | {"beam": 2}, beside | {"beam": 2, "stop": ["zzz"]}]
    jobs = [Job("bad", "small", "translate", [TEXTS[0]], options | {"max_new_tokens": 8}, stream=stream)]
    jobs[0].options["forced_bos"] = tokenizer.tokens([bad])[0]
    jobs += [Job(str(n), "small", "translate", [TEXTS[n]], given) for n, given in enumerate(others, 1)]
    monkeypatch.setattr(Tokenizer, "decode", broken)
    sent = written(model, jobs)
    assert type(sent.events["bad"][-1]) is Failed
    assert not any(isinstance(event, Failed) for n in ("1", "2", "3") for event in sent.events[n])
    assert all(any(isinstance(event, Result) for event in sent.events[n]) for n in ("1", "2", "3"))


MASK = "O <mask> dorme ."
CHATTING = {"model": "lm", "messages": [{"role": "user", "content": TEXTS[0]}], "max_tokens": 4}
COMPLETING = {"model": "lm", "prompt": TEXTS[0], "max_tokens": 4}
MORE: list[dict[str, Any]] = [{"logprobs": 5}, {"logprobs": 5, "echo": True}, {"temperature": 0, "stop": ["e"]}]
MORE += [{"n": 2}, {"prompt": [5, 6]}]
BODIES: dict[str, list[Any]] = {
    "/v1/chat/completions": [CHATTING | {"logprobs": True, "top_logprobs": 20}, CHATTING | {"temperature": 0}],
    "/v1/completions": [COMPLETING | more for more in MORE],
    "/generate": [{"model": "lm", "inputs": TEXTS[0], "parameters": {"max_new_tokens": 4, "details": True}}],
    "/translate": [{"q": TEXTS[0], "source": "en", "target": "pt", "alternatives": 2}],
    "/detokenize": [{"model": "lm", "ids": [5, 6]}],
    "/tokenize": [{"model": "lm", "text": TEXTS[0], "special_tokens": True}],
}


def test_every_route_that_writes_answers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Over HTTP: every route that gives text of ids, and a request that ends well beside and after it."""
    kinds = {"lm": "decoder", "en-pt": "encoder-decoder", "encoder": "encoder"}
    folders = [padded(tokenizer, kind).save(tmp_path / name) for name, kind in kinds.items()]
    (folders[0] / "MANIFEST.json").unlink()  # which does not list the template
    (folders[0] / "chat_template.jinja").write_text(CHAT, encoding="utf-8")
    with served(list(map(str, folders))) as service:
        before = service.workers()
        paths = service.get("/openapi.json").json()["paths"]
        assert set(BODIES) - {"/generate"} <= set(paths)
        asked = {(path, n): body for path, bodies in BODIES.items() if path in paths for n, body in enumerate(bodies)}
        inputs = {"lm": TEXTS[0], "en-pt": TEXTS[0], "encoder": MASK}
        asked |= {(f"/models/{name}", 0): {"inputs": text} for name, text in inputs.items()}
        answers = {(path, n): service.post(path, body) for (path, n), body in asked.items()}
        assert {key: (a.status_code, a.text[:300]) for key, a in answers.items() if a.status_code != 200} == {}
        completion = answers["/v1/completions", 0].json()["choices"][0]
        assert completion["text"] == "" and set(completion["logprobs"]["tokens"]) == {""}
        assert service.workers() == before and np.all([a.elapsed.total_seconds() < 30 for a in answers.values()])

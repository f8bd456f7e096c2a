"""Parsers of users' text: seconds for a megabyte of ordinary text, and for one of the hardest text of each kind."""

import json
import time
from collections.abc import Callable, Iterator

from atento.base.nfc import nfc
from atento.config.recipe import TokenizerConfig
from atento.text import split_sentences, train_tokenizer
from atento.text.documents.html_text import parts_of
from atento.text.words import word_spans
from atento_serve.http.strict_json import parse
from benchmarks.processes import about

_BYTES = 1 << 20
_SENTENCE = "A gata branca dorme no sofá, e o cão come pão às 11 horas. "
_MARKS = "\u0301\u0323"  # of one letter, out of their order
Parser = Callable[[str], object]
_OF_TEXT: dict[str, tuple[Parser, str, str]] = {  # name: parser, ordinary text, hardest text, both repeated
    "nfc": (nfc, _SENTENCE, _MARKS),
    "words": (word_spans, _SENTENCE, _MARKS),
    "sentences": (split_sentences, _SENTENCE, ". A"),
    "html": (parts_of, f"<p>{_SENTENCE}</p>", "<a "),
    "json": (lambda text: parse(json.dumps(text).encode(), 16), _SENTENCE, '"\\\\'),
}


def measure_parsers(seconds: float) -> Iterator[dict[str, object]]:
    """Yield the processor seconds of each parser on a text of 1 MiB: ordinary, and the hardest of its kind.

    Args:
        seconds: runs are repeated for so long; the fastest counts.
    """
    yield about("parsers", "1 MiB", ("tokenizers",))
    parsers = dict(_OF_TEXT)
    for kind in ("unigram", "bpe", "wordpiece", "word", "character", "byte"):
        tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=320), [_SENTENCE] * 20)
        parsers[f"{kind} ids"] = tokenizer.encode, _SENTENCE, "a"
        parsers[f"{kind} offsets"] = tokenizer.encode_with_offsets, _SENTENCE, _MARKS
    for name, (parser, *texts) in parsers.items():
        ordinary, hardest = (_fastest(parser, text * (_BYTES // len(text.encode())), seconds) for text in texts)
        yield {"bench": "parsers", "parser": name, "ordinary": ordinary, "hardest": hardest}


def _fastest(parser: Parser, text: str, seconds: float) -> float:
    """The processor seconds of the fastest run."""
    found, begun = float("inf"), time.monotonic()
    while found == float("inf") or time.monotonic() - begun < seconds / 60:
        started = time.process_time()
        parser(text)
        found = min(found, time.process_time() - started)
    return float(f"{found:.3g}")

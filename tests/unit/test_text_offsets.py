"""`text_offset` of log-probabilities: where each token begins in its text, also among bytes that are no characters."""

import json
import random
from pathlib import Path

import pytest
import tokenizers

from atento.config.recipe import TokenizerConfig
from atento.text.kinds import BYTES
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer
from atento_serve.api.openai_log_probs import completion_log_probs
from atento_serve.engine.log_probs import entries
from atento_world import write

TEXTS = [pair.target for pair in write("train", 40)]


def released(kind: str, folder: Path) -> Tokenizer:
    """Bytes as letters, as GPT-2 has them, or pieces with bytes, as Llama has them."""
    if kind == "byte-level":
        trained = tokenizers.ByteLevelBPETokenizer()
        trained.train_from_iterator(TEXTS, vocab_size=400, special_tokens=["<s>"], show_progress=False)
        backend = trained._tokenizer
    else:
        pieces = ["<unk>", "<s>", *BYTES, "▁", *"abcdefghijklmnopqrstuvwxyzã", "▁o", "▁gato", "da"]
        model = tokenizers.models.BPE(dict(zip(pieces, range(999))), [], byte_fallback=True, unk_token="<unk>")
        backend = tokenizers.Tokenizer(model)
        backend.add_special_tokens(["<unk>", "<s>"])
        decoders = tokenizers.decoders
        parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        backend.decoder = decoders.Sequence(parts)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    return Tokenizer.load(folder)


@pytest.mark.parametrize("kind", ["byte", "bpe", "unigram", "byte-level", "fallback"])
def test_each_token_stands_where_its_offset_says(kind: str, tmp_path: Path) -> None:
    """The text before a token is that of the ids before it, as far as the token does not complete a character of it."""
    if kind in ("byte-level", "fallback"):
        tokenizer = released(kind, tmp_path)
    else:
        tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=400), TEXTS)
    draw, hidden = random.Random(7), set(tokenizer.specials.ids.values())
    hidden |= {tokenizer.token_id(BYTES[byte]) for byte in range(0x20, 0x7F)} if kind == "fallback" else set()
    usable = [token for token in range(tokenizer.vocab_size) if token not in hidden]
    spelled = {token: tokenizer.spelling(token) for token in usable}
    single = [token for token, s in spelled.items() if isinstance(s, bytes) and len(s) == 1 and s[0] > 127]
    broken = 0
    for _ in range(400):
        ids = [draw.choice(single if single and draw.random() < 0.5 else usable) for _ in range(draw.randint(1, 12))]
        text = tokenizer.decode(ids)
        rows = json.loads(json.dumps(entries(tokenizer, ids, [0.0] * len(ids), [])))
        found = completion_log_probs(rows, text, 5, 0)["text_offset"]
        assert found[0] == 5 and found == sorted(found) and found[-1] <= 5 + len(text)
        broken += "\ufffd" in text
        for number, at in enumerate(found):
            own = tokenizer.spelling(ids[number])
            if kind == "fallback" and isinstance(own, bytes):  # U+FFFD, if its run is no text
                continue
            word = own if isinstance(own, str) else own.decode("utf-8", "replace") if own is not None else ""
            if number and "\ufffd" not in word and word.strip():
                assert text[at - 5 :].startswith(word), (ids, text, found, number)
    assert broken > 100 or kind == "unigram"

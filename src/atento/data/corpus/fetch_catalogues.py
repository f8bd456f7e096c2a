"""Installed gettext catalogues to sentence pairs: each holds a program's English messages and their translations."""

import gettext
import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from atento.limits import open_plain

_CREDITS = {"translator-credits", "translator_credits", "Your names", "Your emails"}  # answered by people's names
_ACCELERATORS = ("_", "&")  # GTK and Qt: the letter after it is the menu key


def catalogue_pairs(folder: Path, left_out: Counter[str]) -> Iterator[tuple[str, str]]:
    """Read every `.mo` file of a folder.

    Plural forms are left out (which English form answers which is the language's own rule), contexts are dropped,
    accelerator marks removed.

    Args:
        folder: such as /usr/share/locale/pt_BR/LC_MESSAGES.
        left_out: counts plurals, credits and damaged catalogues.

    Yields:
        English message, its translation, white space collapsed.
    """
    for path in sorted(folder.glob("*.mo")):
        try:
            with open_plain(path) as stream:
                messages: dict[object, str] = vars(gettext.GNUTranslations(stream))["_catalog"]
        except (OSError, ValueError, LookupError, struct.error):
            left_out["damaged catalogues"] += 1
            continue
        for key, translation in messages.items():
            if not isinstance(key, str):
                left_out["plurals"] += 1
                continue
            message = key.rpartition("\x04")[2]  # the text before it is the context
            if not message:
                continue  # the header
            if message.split("\n")[0] in _CREDITS:
                left_out["credits"] += 1
                continue
            source, target = (" ".join(text.split()) for text in (message, translation))
            for accelerator in _ACCELERATORS:
                source, target = without_accelerator(source, target, accelerator)
            yield source, target


def without_accelerator(source: str, target: str, accelerator: str) -> tuple[str, str]:
    """Remove a menu key's mark where both sides have exactly one: "_Open", "&Abrir", "Abrir (_O)".

    A word with the mark inside that is the same in both ("LC_ALL", "AT&T") is a name and is unchanged.
    """
    doubled = accelerator * 2
    sides = [text.replace(doubled, "\0") for text in (source, target)]  # a doubled mark is the mark itself
    words = [[word for word in text.split() if accelerator in word] for text in sides]
    if all(len(marked_words) == 1 and marked_words[0].count(accelerator) == 1 for marked_words in words):
        source_word, target_word = words[0][0], words[1][0]
        if source_word != target_word or source_word.startswith(accelerator):
            pattern = re.compile(rf"\s*\({re.escape(accelerator)}\w\)|{re.escape(accelerator)}(?=\w)")
            sides = [pattern.sub("", text) for text in sides]
    keep = accelerator if accelerator == "&" else doubled  # "__" is no escape but a name such as __init__
    return sides[0].replace("\0", keep), sides[1].replace("\0", keep)

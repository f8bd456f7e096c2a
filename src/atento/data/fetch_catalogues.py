"""Installed gettext catalogues to sentence pairs: each holds a program's English messages and their translations."""

import gettext
import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

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
            with path.open("rb") as stream:
                messages: dict[object, str] = vars(gettext.GNUTranslations(stream))["_catalog"]
        except (OSError, ValueError, LookupError, struct.error):
            left_out["damaged catalogues"] += 1
            continue
        for key, translation in messages.items():
            if not isinstance(key, str):
                left_out["plurals"] += 1
                continue
            message = key.rpartition("\x04")[2]  # what stands before is the context
            if not message:
                continue  # the header
            if message.split("\n")[0] in _CREDITS:
                left_out["credits"] += 1
                continue
            one, other = (" ".join(text.split()) for text in (message, translation))
            for mark in _ACCELERATORS:
                one, other = without_accelerator(one, other, mark)
            yield one, other


def without_accelerator(source: str, target: str, mark: str) -> tuple[str, str]:
    """Remove a menu key's mark where both sides have exactly one: "_Open", "&Abrir", "Abrir (_O)".

    A word with the mark inside that stands unchanged in both ("LC_ALL", "AT&T") is a name, and keeps it.
    """
    double = mark * 2
    sides = [text.replace(double, "\0") for text in (source, target)]  # a doubled mark is the mark itself
    words = [[word for word in text.split() if mark in word] for text in sides]
    if all(len(found) == 1 and found[0].count(mark) == 1 for found in words):
        one, other = words[0][0], words[1][0]
        if one != other or one.startswith(mark):
            pattern = re.compile(rf"\s*\({re.escape(mark)}\w\)|{re.escape(mark)}(?=\w)")
            sides = [pattern.sub("", text) for text in sides]
    keep = mark if mark == "&" else double  # "__" is no escape but a name such as __init__
    return sides[0].replace("\0", keep), sides[1].replace("\0", keep)

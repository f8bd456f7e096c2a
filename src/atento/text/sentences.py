"""Split text into sentences, by rules for Portuguese and English."""

import re

from atento.text.found_spans import EMOJI, TAG, halves

# Abbreviations that rarely end a sentence. Those that often do (etc., Ltda., a.m.) are not listed.
_ABBREVIATION_LIST = """
    sr sra srs sras srta dr dra drs dras prof profa profs eng enga arq adv exmo exma ilmo ilma dom dna fr pe sto sta
    pça trav gen cel maj ten sgt dep sen gov pres emb rev hon art arts fl fls fig figs vol vols org orgs trad obs
    p pp pág págs op cit ibid cf tel séc sécs aprox máx mín núm nr n.º
    mr mrs ms messrs mx st mt ft col lt capt cmdr adm jr e.g i.e viz vs approx dept
    jan fev feb apr abr mai jun jul ago aug sept sep oct nov dez dec
"""
_ABBREVIATIONS = frozenset(_ABBREVIATION_LIST.split())

_TAG = re.compile(TAG)
# Possessive, and only at the start of a run of marks: a million full stops cost one pass.
# Tags may stand behind them, and the number of a note in a pair of tags: "One.</b> Two.<sup>3</sup> Three."
_END = re.compile("(?<![.!?…])[.!?…]++(?:[\"'”’»)\\]\2\3]|\1++\\[?[0-9]{1,3}\\]?\2++)*+(?=\\s)")
_LEAD = re.compile("[\\s\1\2\3\"'“‘«([¿¡—–-]*+")
_SYMBOLS = re.compile(rf"\s++({EMOJI}(?:\s++{EMOJI})*+)(?=\s)")  # between two sentences


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, without spaces around them. A line break always ends a sentence.

    One of . ! ? … ends a sentence if a space follows and the next word does not begin with a lower-case letter, unless
    the word before a single full stop is an abbreviation (Sr., Dra., Mr., e.g.), an initial (J. Silva) or a number at
    the start of the line (1. Introduction). The time is linear in the length of the text.
    """
    sentences: list[str] = []
    for line in re.split(r"[\r\n\u2028\u2029]+", text):
        start, plain = 0, _TAG.sub(_blanked, line) if "<" in line else line
        for punctuation in _END.finditer(plain):
            if _ends_sentence(plain, start, punctuation):
                sentences.append(line[start : punctuation.end()].strip())
                start = punctuation.end()
                if (symbols := _SYMBOLS.match(line, start)) is not None:  # no model has to write them
                    sentences.append(symbols[1])
                    start = symbols.end()
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _blanked(tag: re.Match[str]) -> str:
    """A control character for each of a tag: one that begins an element, one that ends it, or another."""
    begins, ends = halves(tag[0])
    return ("\1" if begins else "\2" if ends else "\3") * len(tag[0])


def _ends_sentence(line: str, start: int, punctuation: re.Match[str]) -> bool:
    """Whether the punctuation at `punctuation` ends the sentence that began at `start`."""
    first = _LEAD.match(line, punctuation.end())
    if first is not None and line[first.end() : first.end() + 1].islower():
        return False
    if punctuation.group().strip("\1\2\3") != ".":
        return True
    before = _words(line[max(start, punctuation.start() - 32) : punctuation.start()])
    if not before:
        return True
    word = before[-1].lstrip("\"'“‘«([¿¡—–-")
    if len(word) == 1 and word.isupper():  # an initial
        return False
    if word.isdigit() and _words(line[start : punctuation.start()]) == [word]:  # of an item
        return False
    return word.lower() not in _ABBREVIATIONS


def _words(line: str) -> list[str]:
    return re.sub("[\1\2\3]", "", line).split()

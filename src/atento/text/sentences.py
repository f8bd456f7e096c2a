"""Split text into sentences, by rules for Portuguese and English."""

import re

# Abbreviations that rarely end a sentence. Those that often do (etc., Ltda., a.m.) are not listed.
_ABBREVIATION_LIST = """
    sr sra srs sras srta dr dra drs dras prof profa profs eng enga arq adv exmo exma ilmo ilma dom dna fr pe sto sta
    pça trav gen cel maj ten sgt dep sen gov pres emb rev hon art arts fl fls fig figs vol vols org orgs trad obs
    p pp pág págs op cit ibid cf tel séc sécs aprox máx mín núm nr n.º
    mr mrs ms messrs mx st mt ft col lt capt cmdr adm jr e.g i.e viz vs approx dept
    jan fev feb apr abr mai jun jul ago aug sept sep oct nov dez dec
"""
_ABBREVIATIONS = frozenset(_ABBREVIATION_LIST.split())

# Possessive, and only at the start of a run of marks: a million full stops cost one pass.
# Tags may stand behind them, and the number of a note in a pair of tags: "One.</b> Two.<sup>3</sup> Three."
_TAG = re.compile(r"</\w++>|<\w++/?>")
_END = re.compile(r"(?<![.!?…])[.!?…]++(?:[\"'”’»)\]]|</\w++>|<\w++/>|<(\w++)>\[?\d{1,3}\]?</\1>)*+(?=\s)")
_OPENING = "\"'“‘«([¿¡—–-"


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, without spaces around them. A line break always ends a sentence.

    One of . ! ? … ends a sentence if a space follows and the next word does not begin with a lower-case letter, unless
    the word before a single full stop is an abbreviation (Sr., Dra., Mr., e.g.), an initial (J. Silva) or a number at
    the start of the line (1. Introduction). The time is linear in the length of the text.
    """
    sentences: list[str] = []
    for line in re.split(r"[\r\n\u2028\u2029]+", text):
        start = 0
        for punctuation in _END.finditer(line):
            if _ends_sentence(line, start, punctuation):
                sentences.append(line[start : punctuation.end()].strip())
                start = punctuation.end()
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends_sentence(line: str, start: int, punctuation: re.Match[str]) -> bool:
    """Whether the punctuation at `punctuation` ends the sentence that began at `start`."""
    following = _bare(line[punctuation.end() : punctuation.end() + 64]).lstrip()
    if following.lstrip(_OPENING).lstrip()[:1].islower():
        return False
    if _bare(punctuation.group()) != ".":
        return True
    before = _bare(line[max(start, punctuation.start() - 32) : punctuation.start()]).split()
    if not before:
        return True
    word = before[-1].lstrip(_OPENING)
    if len(word) == 1 and word.isupper():  # an initial
        return False
    if word.isdigit() and _bare(line[start : punctuation.start()]).strip() == word:  # of an item
        return False
    return word.lower() not in _ABBREVIATIONS


def _bare(text: str) -> str:
    """A text without its tags."""
    return _TAG.sub("", text) if "<" in text else text

"""Regular and irregular forms of Portuguese and English words, by rule first and by table where the rule fails."""

from dataclasses import dataclass

Forms = tuple[str, str, str, str]  # adjectives: m sg, f sg, m pl, f pl; verbs: eu, ele/você, nós, eles


@dataclass(frozen=True, eq=False)
class Conjugation:
    """The forms of one Portuguese verb that the grammar uses; the persons are eu, ele/você, nós, eles."""

    infinitive: str
    present: Forms
    past: Forms  # preterite; for verbs of state the imperfect
    gerund: str
    participle: str  # masculine singular
    command: str  # the imperative for você


_ENDINGS: dict[str, tuple[Forms, Forms, str, str]] = {
    "ar": (("o", "a", "amos", "am"), ("ei", "ou", "amos", "aram"), "ando", "ado"),
    "er": (("o", "e", "emos", "em"), ("i", "eu", "emos", "eram"), "endo", "ido"),
    "ir": (("o", "e", "imos", "em"), ("i", "iu", "imos", "iram"), "indo", "ido"),
}
_BEFORE_FRONT_VOWEL = {"c": "qu", "g": "gu", "ç": "c"}  # -car, -gar, -çar before e: toquei, joguei, comecei

# Verbs that are regular except for "eu" in the present (and the command derived from it).
_FIRST_PERSON = {
    "dormir": "durmo",
    "seguir": "sigo",
    "preferir": "prefiro",
    "ouvir": "ouço",
    "perder": "perco",
    "descobrir": "descubro",
    "proteger": "protejo",
    "dirigir": "dirijo",
    "obedecer": "obedeço",
    "oferecer": "ofereço",
    "esquecer": "esqueço",
    "desaparecer": "desapareço",
    "vencer": "venço",
}
_PRESENT: dict[str, Forms] = {
    "ser": ("sou", "é", "somos", "são"),
    "estar": ("estou", "está", "estamos", "estão"),
    "ir": ("vou", "vai", "vamos", "vão"),
    "dar": ("dou", "dá", "damos", "dão"),
    "ver": ("vejo", "vê", "vemos", "veem"),
    "ter": ("tenho", "tem", "temos", "têm"),
    "fazer": ("faço", "faz", "fazemos", "fazem"),
    "trazer": ("trago", "traz", "trazemos", "trazem"),
    "dizer": ("digo", "diz", "dizemos", "dizem"),
    "saber": ("sei", "sabe", "sabemos", "sabem"),
    "poder": ("posso", "pode", "podemos", "podem"),
    "querer": ("quero", "quer", "queremos", "querem"),
    "sair": ("saio", "sai", "saímos", "saem"),
    "cair": ("caio", "cai", "caímos", "caem"),
    "rir": ("rio", "ri", "rimos", "riem"),
    "sorrir": ("sorrio", "sorri", "sorrimos", "sorriem"),
    "construir": ("construo", "constrói", "construímos", "constroem"),
    "traduzir": ("traduzo", "traduz", "traduzimos", "traduzem"),
    "odiar": ("odeio", "odeia", "odiamos", "odeiam"),
}
_PAST: dict[str, Forms] = {
    "ser": ("era", "era", "éramos", "eram"),
    "estar": ("estava", "estava", "estávamos", "estavam"),
    "ter": ("tinha", "tinha", "tínhamos", "tinham"),
    "querer": ("queria", "queria", "queríamos", "queriam"),
    "saber": ("sabia", "sabia", "sabíamos", "sabiam"),
    "ir": ("fui", "foi", "fomos", "foram"),
    "dar": ("dei", "deu", "demos", "deram"),
    "ver": ("vi", "viu", "vimos", "viram"),
    "fazer": ("fiz", "fez", "fizemos", "fizeram"),
    "trazer": ("trouxe", "trouxe", "trouxemos", "trouxeram"),
    "dizer": ("disse", "disse", "dissemos", "disseram"),
    "sair": ("saí", "saiu", "saímos", "saíram"),
    "cair": ("caí", "caiu", "caímos", "caíram"),
    "construir": ("construí", "construiu", "construímos", "construíram"),
}
_PARTICIPLE = {
    "abrir": "aberto",
    "escrever": "escrito",
    "descrever": "descrito",
    "descobrir": "descoberto",
    "fazer": "feito",
    "dizer": "dito",
    "ver": "visto",
    "sair": "saído",
    "cair": "caído",
    "construir": "construído",
}
_COMMAND = {"ir": "vá", "dar": "dê", "ser": "seja", "estar": "esteja", "saber": "saiba", "querer": "queira"}


def conjugate(infinitive: str) -> Conjugation:
    """Return the forms of a Portuguese verb, regular or irregular, by its infinitive (*falar*, *vender*, *abrir*)."""
    stem, ending = infinitive[:-2], infinitive[-2:]
    present_ends, past_ends, gerund_end, participle_end = _ENDINGS[ending]
    # *fiquei*, *cheguei*: the spelling changes before e, so that the sound stays
    soft = stem[:-1] + _BEFORE_FRONT_VOWEL.get(stem[-1:], stem[-1:]) if ending == "ar" else stem
    regular = tuple(stem + end for end in present_ends)
    first = _FIRST_PERSON.get(infinitive, regular[0])
    present = _PRESENT.get(infinitive, (first, regular[1], regular[2], regular[3]))
    past = _PAST.get(infinitive, (soft + past_ends[0], stem + past_ends[1], stem + past_ends[2], stem + past_ends[3]))
    command = _COMMAND.get(infinitive)
    if command is None:
        root = present[0][:-1]  # of the first person: *faço*, *faça*
        if ending == "ar":
            root = root[:-1] + _BEFORE_FRONT_VOWEL.get(root[-1:], root[-1:])
        command = root + ("e" if ending == "ar" else "a")
    participle = _PARTICIPLE.get(infinitive, stem + participle_end)
    return Conjugation(infinitive, present, past, stem + gerund_end, participle, command)


_PLURAL_ENDINGS = (  # the first ending that fits; -ão has three plurals and is always given in the lexicon
    ("al", "ais"),
    ("el", "éis"),
    ("il", "is"),
    ("ol", "óis"),
    ("ul", "uis"),
    ("m", "ns"),
    ("r", "res"),
    ("z", "zes"),
    ("ês", "eses"),
    ("ís", "íses"),
    ("s", "s"),
)
_ACCENTS = frozenset("áéíóúâêô")


def portuguese_plural(word: str) -> str:
    """Return the plural of a Portuguese noun or adjective by rule: *jardim* → *jardins*, *hotel* → *hotéis*."""
    if word.endswith(("el", "il")) and not _ACCENTS.isdisjoint(word):
        return word[:-2] + "eis"  # stressed before the last syllable: terríveis, fáceis; but hotéis, gentis
    for ending, plural in _PLURAL_ENDINGS:
        if word.endswith(ending):
            return word[: -len(ending)] + plural
    return word + "s"


def adjective_forms(lemma: str) -> Forms:
    """Return the four forms of a Portuguese adjective: *alto, alta, altos, altas*; *feliz, feliz, felizes, felizes*.

    A lemma with slashes lists its forms: two (m sg / f sg), or all four.
    """
    parts = lemma.split("/")
    if len(parts) == 4:
        return parts[0], parts[1], parts[2], parts[3]
    masculine = parts[0]
    if len(parts) == 2:
        feminine = parts[1]
    elif masculine.endswith("o"):
        feminine = masculine[:-1] + "a"
    elif masculine.endswith("ês"):
        feminine = masculine[:-2] + "esa"
    else:
        feminine = masculine
    return masculine, feminine, portuguese_plural(masculine), portuguese_plural(feminine)


_VOWELS = "aeiou"
_DOUBLED = frozenset(("run", "swim", "hug", "stop", "sit", "begin", "forget", "win", "prefer"))


def english_plural(word: str) -> str:
    """Return the plural of a regular English noun: *cities*, *boxes*, *cats*."""
    if word.endswith("y") and word[-2] not in _VOWELS:
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh")) else "s")


def english_third(word: str) -> str:
    """Return the third person of an English verb: *goes*, *carries*, *runs*."""
    if word in ("go", "do"):
        return word + "es"
    return "has" if word == "have" else english_plural(word)


def english_past(word: str) -> str:
    """Return the past of a regular English verb: *loved*, *carried*, *hugged*."""
    if word.endswith("e"):
        return word + "d"
    if word.endswith("y") and word[-2] not in _VOWELS:
        return word[:-1] + "ied"
    return word + (word[-1] if word in _DOUBLED else "") + "ed"


def english_gerund(word: str) -> str:
    """Return the -ing form of an English verb: *running*, *writing*, *lying*."""
    if word == "lie":
        return "lying"
    if word.endswith("e") and not word.endswith("ee"):
        return word[:-1] + "ing"
    return word + (word[-1] if word in _DOUBLED else "") + "ing"


_SOUNDS_LIKE_A_CONSONANT = ("use", "uni", "eu")
_SOUNDS_LIKE_A_VOWEL = ("honest", "hour")


def indefinite_article(following: str) -> str:
    """Return *a* or *an* for the following word: *an honest man*, *a useful key*."""
    word = following.lower()
    if word.startswith(_SOUNDS_LIKE_A_VOWEL):
        return "an"
    return "an" if word[0] in _VOWELS and not word.startswith(_SOUNDS_LIKE_A_CONSONANT) else "a"

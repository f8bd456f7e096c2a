"""The closed words and fixed expressions: adverbs, prepositions, determiners, pronouns, contractions.

A fixed expression is `English | Portuguese | links | use`, with the universal part of speech of every word. Links are
pairs of word indices `source-target`; without them the words are paired in order, and the last words of the longer side
are linked to the last word of the shorter side.
"""

MANNER = """
quickly/ADV | rapidamente/ADV | | mc
slowly/ADV | lentamente/ADV | | mc
carefully/ADV | cuidadosamente/ADV | | mcv
calmly/ADV | calmamente/ADV | | amcv
happily/ADV | alegremente/ADV | | amv
sadly/ADV | tristemente/ADV | | av
quietly/ADV | silenciosamente/ADV | | amcv
patiently/ADV | pacientemente/ADV | | acv
well/ADV | bem/ADV | | v
badly/ADV | mal/ADV | | v
high/ADV | alto/ADV | | h
early/ADV | cedo/ADV | | e
late/ADV | tarde/ADV | | e
here/ADV | aqui/ADV | | amv
there/ADV | lá/ADV | | amv
"""

FREQUENCY = """
always/ADV | sempre/ADV | |
never/ADV | nunca/ADV | |
often/ADV | frequentemente/ADV | |
sometimes/ADV | às/ADP vezes/NOUN | |
usually/ADV | geralmente/ADV | |
rarely/ADV | raramente/ADV | |
also/ADV | também/ADV | |
still/ADV | ainda/ADV | |
"""

TIMES = """
yesterday/ADV | ontem/ADV | | past past-progressive
last/ADJ week/NOUN | na/ADP semana/NOUN passada/ADJ | 0-2 1-0 1-1 | past
last/ADJ year/NOUN | no/ADP ano/NOUN passado/ADJ | 0-2 1-0 1-1 | past
last/ADJ month/NOUN | no/ADP mês/NOUN passado/ADJ | 0-2 1-0 1-1 | past
tomorrow/ADV | amanhã/ADV | | future
next/ADJ week/NOUN | na/ADP próxima/ADJ semana/NOUN | 0-1 1-0 1-2 | future
next/ADJ year/NOUN | no/ADP próximo/ADJ ano/NOUN | 0-1 1-0 1-2 | future
next/ADJ month/NOUN | no/ADP próximo/ADJ mês/NOUN | 0-1 1-0 1-2 | future
now/ADV | agora/ADV | | progressive
every/DET day/NOUN | todos/DET os/DET dias/NOUN | 0-0 0-1 1-2 | present
every/DET week/NOUN | todas/DET as/DET semanas/NOUN | 0-0 0-1 1-2 | present
every/DET month/NOUN | todos/DET os/DET meses/NOUN | 0-0 0-1 1-2 | present
today/ADV | hoje/ADV | | past future progressive
in/ADP the/DET morning/NOUN | de/ADP manhã/NOUN | 0-0 1-1 2-1 | present past future
at/ADP night/NOUN | à/ADP noite/NOUN | | present past future
on/ADP Saturday/PROPN | no/ADP sábado/NOUN | | past future
on/ADP Sunday/PROPN | no/ADP domingo/NOUN | | past future
after/ADP lunch/NOUN | depois/ADV de/ADP o/DET almoço/NOUN | 0-0 0-1 1-2 1-3 | present past future
before/ADP dinner/NOUN | antes/ADV de/ADP o/DET jantar/NOUN | 0-0 0-1 1-2 1-3 | present past future
in/ADP winter/NOUN | em/ADP o/DET inverno/NOUN | 0-0 1-1 1-2 | present past future
in/ADP summer/NOUN | em/ADP o/DET verão/NOUN | 0-0 1-1 1-2 | present past future
"""

# Prepositions of place; the use gives the kinds of nouns, as in the lexicon; `^o` excludes nouns with trait o.
PLACES = """
in/ADP | em/ADP | | BRd^o
inside/ADP | dentro/ADV de/ADP | | Bd
outside/ADP | fora/ADV de/ADP | | B
near/ADP | perto/ADV de/ADP | | BRN
far/ADV from/ADP | longe/ADV de/ADP | | BRN
behind/ADP | atrás/ADV de/ADP | | BUV
in/ADP front/NOUN of/ADP | na/ADP frente/NOUN de/ADP | | BVQ^o
beside/ADP | ao/ADP lado/NOUN de/ADP | 0-0 0-1 0-2 | UVQc^o
on/ADP | em/ADP | | so
under/ADP | embaixo/ADV de/ADP | | Uc
"""

PREPOSITIONS = """
of/ADP | de/ADP | |
from/ADP | de/ADP | |
by/ADP | por/ADP | |
to/ADP | a/ADP | |
for/ADP | para/ADP | |
with/ADP | com/ADP | |
without/ADP | sem/ADP | |
about/ADP | sobre/ADP | |
very/ADV | muito/ADV | |
and/CCONJ | e/CCONJ | |
but/CCONJ | mas/CCONJ | |
because/SCONJ | porque/SCONJ | |
that/SCONJ | que/SCONJ | |
than/SCONJ | do/ADP que/SCONJ | |
more/ADV | mais/ADV | |
where/ADV | onde/ADV | |
when/ADV | quando/ADV | |
how/ADV | como/ADV | |
why/ADV | por/ADP que/PRON | |
what/PRON | o/PRON que/PRON | |
who/PRON | quem/PRON | |
please/INTJ | por/ADP favor/NOUN ,/PUNCT | |
"""

# English, its tag, the Portuguese forms (m sg, f sg, m pl, f pl; `-` where there is none), flags:
# `p` a possessive, `=ele` one whose owner follows the noun (o livro dele), a number: its relative frequency.
DETERMINERS = """
the DET o a os as 9
a DET um uma - - 4
this DET este esta - - 1
that DET aquele aquela - - 1
these DET - - estes estas 2
those DET - - aqueles aquelas 2
my PRON meu minha meus minhas p2
our PRON nosso nossa nossos nossas p1
your PRON seu sua seus suas p1
his PRON o a os as =ele
her PRON o a os as =ela
their PRON o a os as =eles
every DET cada cada - - 1
some DET - - alguns algumas 1
many ADJ - - muitos muitas 1
several ADJ - - vários várias 1
few ADJ - - poucos poucas 1
two NUM - - dois duas 1
three NUM - - três três 1
four NUM - - quatro quatro 1
five NUM - - cinco cinco 1
ten NUM - - dez dez 1
"""

# English subject and object form, Portuguese subject form and form after a preposition, English and Portuguese person.
# English persons: 0 I, 1 he/she, 2 the others. Portuguese persons: 0 eu, 1 ele/você, 2 nós, 3 eles.
# *I*, *you*, *we* and *they* have no gender, so the grammar uses the masculine; *you* is singular.
PRONOUNS = """
I me eu mim 0 0 m
you you você você 2 1 m
he him ele ele 1 1 m
she her ela ela 1 1 f
we us nós nós 2 2 m
they them eles eles 2 3 m
"""

_ARTICLES = ("o", "a", "os", "as")
_STARTS_WITH_VOWEL: tuple[str, ...] = ("ele", "ela", "eles", "elas", "este", "esta", "estes", "estas")
_STARTS_WITH_VOWEL += ("aquele", "aquela", "aqueles", "aquelas")

#: (preposition, determiner or pronoun) -> their contraction.
CONTRACTIONS: dict[tuple[str, str], str] = {
    **{("de", word): "d" + word for word in (*_ARTICLES, *_STARTS_WITH_VOWEL)},
    **{("em", word): "n" + word for word in (*_ARTICLES, *_STARTS_WITH_VOWEL)},
    **{("por", word): "pel" + word for word in _ARTICLES},
    ("a", "o"): "ao",
    ("a", "a"): "à",
    ("a", "os"): "aos",
    ("a", "as"): "às",
    **{("a", word): "à" + word[1:] for word in _STARTS_WITH_VOWEL if word.startswith("aque")},
    ("com", "mim"): "comigo",
    ("com", "nós"): "conosco",
}

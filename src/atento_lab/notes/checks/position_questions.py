"""Row L9: the questions that the notes ask on positions, with numerical answers and figures."""

from collections.abc import Callable

import torch

from atento.attention.positions import sinusoids
from atento_lab.notes.checks.attention import apart
from atento_lab.notes.checks.cost import cost_of_positions
from atento_lab.notes.checks.hybrid_positions import hybrid
from atento_lab.notes.checks.learned import LONGEST, ROWS, trained_table
from atento_lab.notes.checks.relative import score_split
from atento_lab.notes.checks.reordering import alignment_by_scheme
from atento_lab.notes.checks.summaries import LENGTHS, measured
from atento_lab.notes.drawing import heat, sheet
from atento_lab.notes.finding import Answer, AtLeast, AtMost


def periodic_positions() -> Answer:
    """A shift is one rotation, near and far."""
    shift, d = 17, 64
    angles = shift / 10000 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    near, distant = (sinusoids(torch.tensor([start, start + shift]), d).double() for start in (3, 100_000))
    panels = []
    for start in (3, 100_000):
        vectors = sinusoids(torch.arange(start, start + 24), d).double()
        panels.append(heat(vectors @ vectors.T, f"products, positions {start:,} to {start + 23:,}", cell=9))
    away = max(
        apart(vectors[0, 0::2] * angles.cos() + vectors[0, 1::2] * angles.sin(), vectors[1, 0::2])
        for vectors in (near, distant)
    )
    return Answer(
        "B11",
        {"rotation away from the shift": away},
        {"rotation away from the shift": AtMost(1e-6)},
        (
            "Why should periodic positions generalise to longer texts?",
            "Por que posições periódicas serviriam para textos mais longos?",
        ),
        (
            f"sin(a + s) and cos(a + s) are one rotation of sin a and cos a, at position 3 as at 100,000 (by "
            f"{away:.1g}); training does not always learn it: row B9.",
            f"sen(a + s) e cos(a + s) são uma rotação de sen a e cos a, na posição 3 como na 100.000 (por {away:.1g})"
            "; mas o treino nem sempre a aprende: linha B9.",
        ),
        sheet("Products of the vectors of two positions", [panels]),
    )


def past_the_longest_text() -> Answer:
    """Rows of the table that training never reached."""
    updates, moved = trained_table(adam=False)
    unmoved = int((moved == 0).sum())
    names, middle = [str(n) for n in range(ROWS)], ROWS // 2
    halves = [slice(0, middle), slice(middle, ROWS)]
    panels = [[heat([moved[half]], "how far training moved each position", ["row"], names[half])] for half in halves]
    return Answer(
        "B3",
        {"rows that never moved": unmoved, "updates of the first row": updates[0]},
        {"rows that never moved": AtLeast(ROWS - LONGEST), "updates of the first row": AtLeast(1)},
        (
            "What about documents longer than any training text?",
            "E documentos mais longos que qualquer texto do treino?",
        ),
        (
            f"A learned table has no trained rows for them: {unmoved} of {ROWS} rows stayed random; the first had "
            f"{updates[0]} updates.",
            f"Uma tabela aprendida não tem linhas treinadas para eles: {unmoved} de {ROWS} linhas ficaram "
            f"aleatórias, a primeira teve "
            f"{updates[0]} atualizações.",
        ),
        sheet("A learned table after training on short texts", panels),
    )


def cost_of_distance() -> Answer:
    """Additional products, and the tensor that is not needed."""
    value = cost_of_positions().value
    ratio = value["operations Shaw adds"] / value["as written"]
    saved = value["largest, as written"] / value["largest tensor, Shaw"]
    millions = [[value[name] / 1e6] for name in ("operations Shaw adds", "as written")]
    tensors = [[value[name] / 1e3] for name in ("largest tensor, Shaw", "largest, as written")]
    names = ["as here", "as written"]
    panels = [
        heat(millions, "operations added, millions", names, cell=60),
        heat(tensors, "numbers of the largest tensor, thousands", names, cell=60, digits=0),
    ]
    return Answer(
        "B10",
        {"operations by those as written": ratio, "tensor as written by ours": saved},
        {"operations by those as written": 33 / 128, "tensor as written by ours": 8.0},
        ("What do relative positions add in products?", "O que as posições relativas acrescentam em produtos?"),
        (
            f"With a table of 33 distances and 128 tokens, {ratio:.0%} of the operations of the formula as written, "
            f"and no tensor {saved:.0f} times as large as the scores.",
            f"Com uma tabela de 33 distâncias e 128 palavras, {ratio:.0%} do que a fórmula escrita acrescenta, e "
            f"nenhum tensor {saved:.0f} vezes maior que os scores.",
        ),
        sheet("The cost of relative vectors", [panels]),
    )


def positions_explained() -> Answer:
    """Scores decomposed into parts."""
    finding = score_split()
    value = finding.value
    away, minimum = value["sum away from the score"], value["least share of a part"]
    return Answer(
        "B13",
        {"parts away from the score": away},
        {"parts away from the score": AtMost(1e-5)},
        (
            "Do relative positions help to explain a model's decisions?",
            "Posições relativas ajudam a explicar as decisões do modelo?",
        ),
        (
            f"Their share of a score is a separate term: five parts sum to the score (error {away:.1g}); the smallest "
            f"is {minimum:.0%} of it.",
            f"A sua parte no score é um termo separado: cinco partes somam o score (erro {away:.1g}); a menor é "
            f"{minimum:.0%} "
            "dele.",
        ),
        finding.figure,
    )


def schemes_joined() -> Answer:
    """A gate for each scheme."""
    value = hybrid().value
    away = max(value["shut gate unlike no scheme"].values())
    effects = value["effect of each scheme"]
    panel = heat([list(effects.values())], "change of the output without a scheme", ["effect"], list(effects), cell=72)
    return Answer(
        "B7",
        {"shut gate unlike no scheme": away, "schemes with an effect": len(value["effect of each scheme"])},
        {"shut gate unlike no scheme": AtMost(1e-10), "schemes with an effect": 3},
        ("How can absolute and relative positions be combined?", "Como unir posições absolutas e relativas?"),
        (
            "Add them, each with a learned gate, by layer and head; a network with a gate of 0 equals one without "
            f"that scheme (difference {away:.1g}).",
            "Some-as, cada uma com uma porta aprendida, por camada e cabeça; a rede de porta fechada é a rede sem esse "
            f"esquema (diferença {away:.1g}).",
        ),
        sheet("Three schemes in one network", [[panel]]),
    )


def other_word_order() -> Answer:
    """Alignments where noun and adjective are swapped."""
    finding = alignment_by_scheme()
    links = finding.value["wrong links"]
    none, best = links["none"], links["best scheme"]
    return Answer(
        "B14",
        {"wrong links without positions": none, "with the best scheme": best},
        {"wrong links without positions": AtLeast(0.5), "with the best scheme": AtMost(0.15)},
        (
            "Do positions help to align languages with different word order?",
            "Posições ajudam a alinhar línguas de ordem diferente?",
        ),
        (
            f"If noun and adjective are swapped, {none:.0%} of the links are wrong without positions, {best:.0%} "
            "with the scheme that learns fastest, after the same number of updates.",
            f"Onde substantivo e adjetivo trocam de lugar, {none:.0%} das ligações erram sem posições, {best:.0%} com "
            "o esquema que aprende mais cedo, após as mesmas atualizações.",
        ),
        finding.figure,
    )


def long_summaries() -> Answer:
    """Absolute and relative positions where documents are longer than in training."""
    shortest, longest = LENGTHS[0], LENGTHS[-1]
    known = {name: measured(name)[shortest][1] for name in ("none", "sinusoidal", "rotary")}
    long = {name: measured(name)[longest] for name in ("sinusoidal", "rotary")}
    lengths = [str(sections) for sections in LENGTHS]
    shares = [[[of[n][part] for n in LENGTHS] for of in map(measured, known)] for part in (0, 1)]
    panels = [
        heat(table, f"{name}, by sections", list(known), lengths, cell=48)
        for name, table in zip(("topics found (structure)", "right words (order)"), shares)
    ]
    return Answer(
        "B12",
        {"right words, trained length": known, "right words, long": {name: order for name, (_, order) in long.items()}},
        {
            "right words, trained length": {"none": AtMost(0.5), "sinusoidal": AtLeast(0.75), "rotary": AtLeast(0.75)},
            "right words, long": {"sinusoidal": AtMost(0.5), "rotary": AtMost(0.5)},
        },
        (
            "How to compare absolute and relative positions in summaries of long documents?",
            "Como comparar posições absolutas e relativas em resumos de documentos longos?",
        ),
        (
            "Ask for the topics of the sections (structure), in order, in documents of any length. Both write at least "
            f"{min(known['sinusoidal'], known['rotary']):.0%} of the words right at the trained length; at "
            f"{longest} sections {long['rotary'][0]:.0%} (rotary) and {long['sinusoidal'][0]:.0%} (sinusoidal) are "
            "topics, and hardly any is in order: cross-attention has no positions.",
            "Peça os tópicos das seções (estrutura), em ordem, em documentos de qualquer tamanho. Ambas acertam ao "
            f"menos {min(known['sinusoidal'], known['rotary']):.0%} das palavras no tamanho treinado; com {longest} "
            f"seções, {long['rotary'][0]:.0%} (rotativas) e {long['sinusoidal'][0]:.0%} (senoidais) são tópicos, e "
            "quase nenhuma em ordem: a atenção cruzada não tem posições.",
        ),
        sheet("Summaries of longer documents: shares of the words", [panels]),
    )


def comma(number: float, digits: int) -> str:
    """Format a number with a decimal comma, as in Portuguese."""
    return f"{number:.{digits}f}".replace(".", ",")


POSITION_ANSWERS: tuple[Callable[[], Answer], ...] = (
    *(periodic_positions, past_the_longest_text, cost_of_distance, other_word_order),
    *(long_summaries, positions_explained, schemes_joined),
)

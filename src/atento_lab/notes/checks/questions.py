"""Row L9: the questions that the notes ask on attention, language models and positions, with numerical answers.

Each question is phrased in our own words, in English and in Portuguese, and names the row of its experiment.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from atento.attention import attend, attention_weights
from atento.attention.masks import allowed_pairs, causal
from atento.attention.positions import sinusoids
from atento_lab.notes.checks.attention import apart, random
from atento_lab.notes.checks.cost import attended, cost_of_positions
from atento_lab.notes.checks.hybrid_positions import hybrid
from atento_lab.notes.checks.learned import LONGEST, ROWS, trained_table
from atento_lab.notes.checks.modes import one_checkpoint
from atento_lab.notes.checks.relative import score_split
from atento_lab.notes.checks.reordering import alignment_by_scheme
from atento_lab.notes.checks.sampling import BEST, NUCLEUS, what_k_keeps
from atento_lab.notes.checks.search import paths_drawn
from atento_lab.notes.checks.sparse import LENGTH, NEEDED, learned_spans, token_positions
from atento_lab.notes.checks.summaries import LENGTHS, measured
from atento_lab.notes.checks.tiny import derivatives, tiny_network
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare


@dataclass(frozen=True)
class Answer:
    """A question and its answer, each in both languages; the numbers in the answer and their expected values."""

    row: str
    value: Any
    expected: Any
    question: tuple[str, str]
    answer: tuple[str, str]


def visible_pairs() -> Answer:
    """Without a mask and with the causal mask."""
    encoder, x = tiny_network().encoder, random(5, 12)
    both, past = (int((derivatives(encoder, x, mask=mask) > 0).sum()) for mask in (None, causal()))
    return Answer(
        "A6",
        {"pairs, both ways": both, "pairs, causal": past},
        {"pairs, both ways": 25, "pairs, causal": 15},
        ("What does a layer without a mask see that a causal one does not?", "O que vê uma camada sem máscara?"),
        (
            f"All {both} pairs of 5 tokens affect one another; with the causal mask {past} do: later tokens are "
            f"masked.",
            f"Os {both} pares de 5 palavras agem uns sobre os outros; com a máscara causal, {past}: falta o que segue.",
        ),
    )


def softmax_is_stable() -> Answer:
    """A constant added to the scores has no effect, and outputs are weighted means of values."""
    q, k, v = random(1, 1, 6, 4), random(1, 1, 6, 4), random(1, 1, 6, 4)
    weights = attention_weights(q, k)
    moved = apart(weights, attention_weights(q, k, bias=torch.full((1, 1, 6, 6), 1000.0, dtype=torch.float64)))
    longest = float(attend(q, k, v).norm(dim=-1).max() / v.norm(dim=-1).max())
    return Answer(
        "A3",
        {"1000 added to all scores moves": moved, "longest output by longest value": longest},
        {"1000 added to all scores moves": AtMost(1e-10), "longest output by longest value": AtMost(1.0)},
        ("How does the softmax keep attention stable?", "Como o softmax mantém a atenção estável?"),
        (
            f"Weights sum to 1, so no output is longer than the longest value ({longest:.2f} of it here), and 1000 "
            f"added to every score changes nothing ({moved:.1g}).",
            f"Os pesos somam 1: nenhuma saída é mais longa que o maior valor (aqui {comma(longest, 2)} dele), e somar "
            f"1000 a todos os scores nada muda ({moved:.1g}).",
        ),
    )


def chosen_future_pairs() -> Answer:
    """Chosen future pairs are allowed."""
    mask = causal() | allowed_pairs({(0, 3), (2, 5)})
    visible = derivatives(tiny_network(n_layers=1).encoder, random(6, 12), mask=mask) > 0
    rows = [[j <= i or (i, j) in ((0, 3), (2, 5)) for j in range(6)] for i in range(6)]
    against = int((visible != torch.tensor(rows)).sum())
    return Answer(
        "A16",
        {"pairs against the mask": against, "future pairs seen": int(visible.triu(1).sum())},
        {"pairs against the mask": 0, "future pairs seen": 2},
        ("How can some later tokens be visible, but not all?", "Como permitir algumas palavras futuras, não todas?"),
        (
            f"Add the allowed pairs to the causal mask: of 36 derivatives {against} contradict the mask.",
            f"Junte à máscara causal os pares permitidos: de 36 derivadas, {against} contradizem o declarado.",
        ),
    )


def long_texts_cost() -> Answer:
    """The scores grow quadratically; blocks of queries avoid this."""
    grows = {}
    for name in ("plain", "blocked"):
        short, long = (attended(length, name, causal())[0].largest for length in (1024, 2048))
        grows[name] = long / short
    return Answer(
        "A19",
        {f"{name}, twice the text": grown for name, grown in grows.items()},
        {"plain, twice the text": 4.0, "blocked, twice the text": AtMost(2.2)},
        ("What do very long texts cost, and what helps?", "Quanto custam textos muito longos, e o que ajuda?"),
        (
            f"For twice the text the largest tensor is {grows['plain']:.0f} times as large; {grows['blocked']:.1f} "
            "times in blocks of queries, with the same result; windows also save time.",
            f"O dobro do texto, {grows['plain']:.0f} vezes o maior tensor; {comma(grows['blocked'], 1)} vezes em "
            "faixas de consultas, com o mesmo resultado; janelas poupam também o tempo.",
        ),
    )


def one_model_two_ways() -> Answer:
    """The mask is an argument of each call."""
    value = one_checkpoint().value
    difference = sum(value["numbers that differ from the dedicated run"].values())
    return Answer(
        "A18",
        {"numbers that differ": difference, "may cache, both ways and causal": value["may cache"][:2]},
        {"numbers that differ": 0, "may cache, both ways and causal": [False, True]},
        (
            "Can one model encode bidirectionally and generate causally?",
            "Um só modelo pode compreender nos dois sentidos e gerar em um?",
        ),
        (
            f"Yes: the mask is an argument of each call; {difference} numbers differ from networks built for one mask.",
            f"Sim: a máscara é argumento de cada chamada; {difference} números diferem de redes feitas para uma "
            f"máscara.",
        ),
    )


def links_learnt() -> Answer:
    """Attention spans learn their length."""
    _, weights = learned_spans(token_positions())
    links = (weights[0, :, -1] > 0.03).sum(dim=-1).tolist()
    return Answer(
        "A17",
        {"links learnt": links},
        {"links learnt": list(NEEDED)},
        ("How can attention learn which links matter?", "Como a atenção aprende quais ligações importam?"),
        (
            f"Give each head a span with a gradient: heads that needed {NEEDED[0]} and {NEEDED[1]} of {LENGTH} tokens "
            f"kept {links[0]} and {links[1]}.",
            f"Dê a cada cabeça um alcance e um gradiente: as que precisavam de {NEEDED[0]} e {NEEDED[1]} de {LENGTH} "
            f"palavras ficaram com {links[0]} e {links[1]}.",
        ),
    )


def periodic_positions() -> Answer:
    """A shift is one rotation, near and far."""
    shift, d = 17, 64
    angles = shift / 10000 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    near, distant = (sinusoids(torch.tensor([start, start + shift]), d).double() for start in (3, 100_000))
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
            f"sen(a + s) e cos(a + s) são uma rotação de sen a e cos a, na posição 3 como na 100 000 (por {away:.1g})"
            "; poder ser aprendido não é ser aprendido: linha B9.",
        ),
    )


def past_the_longest_text() -> Answer:
    """Rows of the table that training never reached."""
    updates, moved = trained_table(adam=False)
    unmoved = int((moved == 0).sum())
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
            f"Uma tabela aprendida nada tem para eles: {unmoved} de {ROWS} linhas ficaram aleatórias, a primeira teve "
            f"{updates[0]} atualizações.",
        ),
    )


def cost_of_distance() -> Answer:
    """Additional products, and the tensor that is not needed."""
    value = cost_of_positions().value
    ratio = value["operations Shaw adds"] / value["as written"]
    saved = value["largest, as written"] / value["largest tensor, Shaw"]
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
    )


def positions_explained() -> Answer:
    """Scores decomposed into parts."""
    value = score_split().value
    away, minimum = value["sum away from the score"], value["least share of a part"]
    return Answer(
        "B13",
        {"parts away from the score": away},
        {"parts away from the score": AtMost(1e-5)},
        (
            "Do relative positions help to explain a model's decisions?",
            "Posições relativas ajudam a ler as decisões do modelo?",
        ),
        (
            f"Their share of a score is a separate term: five parts sum to the score (error {away:.1g}); the smallest "
            f"is {minimum:.0%} of it.",
            f"A sua parte no score fica separada: cinco partes o somam (erro {away:.1g}), a menor com {minimum:.0%}.",
        ),
    )


def schemes_joined() -> Answer:
    """A gate for each scheme."""
    value = hybrid().value
    away = max(value["shut gate unlike no scheme"].values())
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
    )


def other_word_order() -> Answer:
    """Alignments where noun and adjective are swapped."""
    links = alignment_by_scheme().value["wrong links"]
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
    )


def long_summaries() -> Answer:
    """Absolute and relative positions where documents are longer than in training."""
    shortest, longest = LENGTHS[0], LENGTHS[-1]
    known = {name: measured(name)[shortest][1] for name in ("none", "sinusoidal", "rotary")}
    long = {name: measured(name)[longest] for name in ("sinusoidal", "rotary")}
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
    )


def which_k() -> Answer:
    """The same k on a flat and on a peaked distribution."""
    value = what_k_keeps().value
    mass = [value[f"{name}: mass of the best {BEST}"] for name in ("flat", "peaked")]
    nucleus = [value[f"{name}: nucleus"] for name in ("flat", "peaked")]
    return Answer(
        "H4",
        {
            "mass that k keeps of the flat one, below the peaked one's": mass[0] < mass[1],
            "nucleus": nucleus[0] > nucleus[1],
        },
        {"mass that k keeps of the flat one, below the peaked one's": True, "nucleus": True},
        ("Which k is best for top-k sampling?", "Que k para a amostragem top-k?"),
        (
            f"No k fits all distributions: the best {BEST} tokens have {mass[0]:.0%} of a flat one and {mass[1]:.0%} "
            f"of a peaked one; a nucleus of {NUCLEUS:g} keeps {nucleus[0]} tokens of the first and {nucleus[1]} of "
            "the second.",
            f"Nenhum serve sempre: os {BEST} melhores têm {mass[0]:.0%} de uma distribuição plana e {mass[1]:.0%} de "
            f"uma aguda; um núcleo de {comma(NUCLEUS, 2)} guarda {nucleus[0]} símbolos ali e {nucleus[1]} aqui.",
        ),
    )


def is_greedy_bad() -> Answer:
    """The best first word is not the first word of the best output."""
    value = paths_drawn().value
    greedy, best = value["greedy"]["probability"], value["beam of 2"]["probability"]
    return Answer(
        "H1",
        {"probability of greedy's output": greedy, "of the best one": best},
        {"probability of greedy's output": 0.192, "of the best one": 0.324},
        ("Is greedy search so bad?", "A busca gulosa é tão ruim?"),
        (
            f"It cannot revise a token: in the example its output has probability {greedy:.3f}, and a beam of 2 "
            f"finds one of {best:.3f}; where the model is certain of each word, both give the same output.",
            f"Ela não volta atrás: no exemplo escreve uma saída de probabilidade {comma(greedy, 3)} onde um feixe de 2 "
            f"acha uma de {comma(best, 3)}; onde o modelo está seguro de cada palavra, escrevem o mesmo.",
        ),
    )


def comma(number: float, digits: int) -> str:
    """Format a number with a decimal comma, as in Portuguese."""
    return f"{number:.{digits}f}".replace(".", ",")


ANSWERS: tuple[Callable[[], Answer], ...] = (
    *(visible_pairs, softmax_is_stable, chosen_future_pairs, long_texts_cost, one_model_two_ways, links_learnt),
    *(periodic_positions, past_the_longest_text, cost_of_distance, positions_explained, schemes_joined),
    *(long_summaries, other_word_order, which_k, is_greedy_bad),
)


def own_questions() -> Finding:
    """L9: the notes' own questions, each with a short answer in both languages, and the row of the experiment."""
    answers = [make() for make in ANSWERS]
    lines = []
    for answer in answers:
        for question, text in zip(answer.question, answer.answer):
            lines += [f"{answer.row:<4}{question}", f"    {text}"]
    return compare(
        {answer.row: answer.value for answer in answers},
        {answer.row: answer.expected for answer in answers},
        drawing="\n".join(lines),
    )

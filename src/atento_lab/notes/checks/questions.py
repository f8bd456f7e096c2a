"""Row L9: the questions that the notes ask, with numerical answers and figures; those on positions have another file.

Each question is phrased in our own words, in English and in Portuguese, and names the row of its experiment.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from atento.attention import attend, attention_weights
from atento.attention.masks import allowed_pairs, bidirectional, causal, prefix
from atento_lab.notes.checks.attention import apart, random
from atento_lab.notes.checks.cost import attended
from atento_lab.notes.checks.modes import one_checkpoint
from atento_lab.notes.checks.position_questions import POSITION_ANSWERS, comma
from atento_lab.notes.checks.sampling import BEST, NUCLEUS, what_k_keeps
from atento_lab.notes.checks.search import paths_drawn
from atento_lab.notes.checks.sparse import LENGTH, NEEDED, learned_spans, token_positions
from atento_lab.notes.checks.tiny import derivatives, tiny_network
from atento_lab.notes.drawing import heat, sheet
from atento_lab.notes.finding import Answer, AtMost, Finding, compare

_NUMBERS = [str(n) for n in range(1, 6)]


def visible_pairs() -> Answer:
    """Without a mask and with the causal mask."""
    encoder, x = tiny_network().encoder, random(5, 12)
    seen = {name: derivatives(encoder, x, mask=mask) for name, mask in (("no mask", None), ("causal", causal()))}
    both, past = (int((matrix > 0).sum()) for matrix in seen.values())
    panels = [heat(matrix, f"derivatives, {name}", _NUMBERS, _NUMBERS) for name, matrix in seen.items()]
    return Answer(
        "A6",
        {"pairs, both ways": both, "pairs, causal": past},
        {"pairs, both ways": 25, "pairs, causal": 15},
        (
            "What does a layer without a mask see that a causal one does not?",
            "O que vê uma camada sem máscara que uma causal não vê?",
        ),
        (
            f"All {both} pairs of 5 tokens affect one another; with the causal mask {past} do: later tokens are "
            f"masked.",
            f"Todos os {both} pares de 5 tokens dependem um do outro; com a máscara causal, {past}: os tokens "
            f"seguintes "
            "ficam mascarados.",
        ),
        sheet("How much each output depends on each token", [panels]),
    )


def softmax_is_stable() -> Answer:
    """A constant added to the scores has no effect, and outputs are weighted means of values."""
    q, k, v = random(1, 1, 6, 4), random(1, 1, 6, 4), random(1, 1, 6, 4)
    weights = attention_weights(q, k)
    added = attention_weights(q, k, bias=torch.full((1, 1, 6, 6), 1000.0, dtype=torch.float64))
    moved = apart(weights, added)
    panels = [heat(weights[0, 0], "weights"), heat(added[0, 0], "1000 added to all scores")]
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
        sheet("The softmax of scores, and of larger scores", [panels]),
    )


def chosen_future_pairs() -> Answer:
    """Chosen future pairs are allowed."""
    mask = causal() | allowed_pairs({(0, 3), (2, 5)})
    matrix = derivatives(tiny_network(n_layers=1).encoder, random(6, 12), mask=mask)
    visible = matrix > 0
    panels = [heat(mask.dense(6)[0, 0].int(), "the mask", digits=0), heat(matrix, "derivatives")]
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
        sheet("Chosen later tokens are visible", [panels]),
    )


def long_texts_cost() -> Answer:
    """The scores grow quadratically; blocks of queries avoid this."""
    grows, lengths = {}, (512, 1024, 2048)
    sizes = {
        name: [attended(n, name, causal())[0].largest * 4 / 2**20 for n in lengths] for name in ("plain", "blocked")
    }
    for name, (_, short, long) in sizes.items():
        grows[name] = long / short
    panel = heat(list(sizes.values()), "largest tensor, MiB", list(sizes), [str(n) for n in lengths], cell=54)
    return Answer(
        "A19",
        {f"{name}, twice the text": grown for name, grown in grows.items()},
        {"plain, twice the text": 4.0, "blocked, twice the text": AtMost(2.2)},
        ("What do very long texts cost, and what helps?", "Quanto custam textos muito longos, e o que ajuda?"),
        (
            f"For twice the text the largest tensor is {grows['plain']:.0f} times as large; {grows['blocked']:.1f} "
            "times in blocks of queries, with the same result; windows also save time.",
            f"Com o dobro do texto, o maior tensor é {grows['plain']:.0f} vezes maior; "
            f"{comma(grows['blocked'], 1)} vezes em "
            "blocos de consultas, com o mesmo resultado; janelas poupam também tempo.",
        ),
        sheet("Memory of attention by the number of tokens", [[panel]]),
    )


def one_model_two_ways() -> Answer:
    """The mask is an argument of each call."""
    value = one_checkpoint().value
    difference = sum(value["numbers that differ from the dedicated run"].values())
    encoder, x = tiny_network().encoder, random(5, 12)
    modes = {"both ways": bidirectional(), "causal": causal(), "prefix of 2": prefix(2)}
    panels = [heat(derivatives(encoder, x, mask=mask), name) for name, mask in modes.items()]
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
        sheet("One network, three masks: how much each output depends on each token", [panels]),
    )


def links_learnt() -> Answer:
    """Attention spans learn their length."""
    _, weights = learned_spans(token_positions())
    links = (weights[0, :, -1] > 0.03).sum(dim=-1).tolist()
    panels = [heat(head, f"head {n}", cell=9) for n, head in enumerate(weights[0], start=1)]
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
        sheet("The spans that two heads learned: query by key", [panels]),
    )


def which_k() -> Answer:
    """The same k on a flat and on a peaked distribution."""
    finding = what_k_keeps()
    value = finding.value
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
        finding.figure,
    )


def is_greedy_bad() -> Answer:
    """The best first word is not the first word of the best output."""
    finding = paths_drawn()
    value = finding.value
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
        finding.figure,
    )


ANSWERS: Mapping[int, tuple[Callable[[], Answer], ...]] = {  # by the number of the note that asks
    1: (visible_pairs, softmax_is_stable, chosen_future_pairs, long_texts_cost, one_model_two_ways, links_learnt),
    5: POSITION_ANSWERS,
    3: (which_k, is_greedy_bad),
}


def own_questions() -> Finding:
    """L9: each with a short answer, a figure, and its experiment's row."""
    answers = [replace(make(), note=note) for note, makers in ANSWERS.items() for make in makers]
    lines = []
    for answer in answers:
        for question, text in zip(answer.question, answer.answer):
            lines += [f"{answer.row:<4}{question}", f"    {text}"]
    finding = compare(
        {answer.row: answer.value for answer in answers},
        {answer.row: answer.expected for answer in answers},
        drawing="\n".join(lines),
    )
    return replace(finding, answers=tuple(answers))

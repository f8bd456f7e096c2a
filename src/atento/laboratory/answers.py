"""Answers to the position questions of the lecture notes, from the numbers of the laboratory, in two languages.

Every conclusion is chosen by the numbers of the rows given; other numbers give another sentence.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from atento.laboratory.networks import ABSOLUTE, HYBRID, RELATIVE
from atento.laboratory.numbers import KEPT, Numbers, Voice, lengths, percents, reached, sorted_out


def periodicity(numbers: Numbers, voice: Voice) -> str:
    """Absolute positions, question 1."""
    reach, length = reached(numbers, "echo", "sinusoidal"), numbers.length
    shares = percents(numbers, voice, "echo", "sinusoidal")
    if reach == 0:
        end = voice.say(
            "Nem o comprimento treinado foi aprendido, e nada se conclui.",
            "The trained length itself was not learned, so nothing follows.",
        )
    elif reach == length:
        end = voice.say(
            "Só a periodicidade não levou o aprendido além do comprimento treinado.",
            "Periodicity alone carried nothing beyond the trained length.",
        )
    else:
        end = voice.say(f"O aprendido valeu até {reach} tokens.", f"What was learned held up to {reach} tokens.")
    return voice.say(
        f"Com senoides, acertos com {lengths(numbers, voice)} tokens: {shares}. {end}",
        f"With sinusoids, right answers at {lengths(numbers, voice)} tokens: {shares}. {end}",
    )


def long_documents(numbers: Numbers, voice: Voice) -> str:
    """Absolute positions, question 2."""
    return voice.say("Classificando pela ordem, ", "Classifying by order, ") + sorted_out(numbers, voice, "pairs")


def language_model(numbers: Numbers, voice: Voice) -> str:
    """The comparison's row on long texts, for a language model."""
    far = 8 * numbers.length
    found = sorted((numbers.mean("world", one, f"nll {far}"), one) for one in numbers.schemes("world"))
    (low, best), (high, worst) = found[0], found[-1]
    return (
        voice.say("Devolvendo a letra de três lugares antes, ", "Giving back the letter of three places before, ")
        + sorted_out(numbers, voice, "echo")
        + voice.say(
            f" No micromundo com {far} tokens, de {voice.number(low)} nats por token ({voice.scheme(best)}) a "
            f"{voice.number(high)} ({voice.scheme(worst)}).",
            f" On the micro-world at {far} tokens, from {voice.number(low)} nats a token ({voice.scheme(best)}) to "
            f"{voice.number(high)} ({voice.scheme(worst)}).",
        )
    )


def invariance(numbers: Numbers, voice: Voice) -> str:
    """The comparison's row on translation invariance (docs/notes.md#b8)."""
    kinds: dict[bool, list[str]] = {True: [], False: []}
    for scheme in numbers.schemes("pairs"):
        change = numbers.mean("pairs", scheme, "shift by position")
        kinds[change < 1e-4].append(
            voice.scheme(scheme) if change < 1e-4 else f"{voice.scheme(scheme)} {voice.percent(change)}"
        )
    none = voice.say("nenhum", "none of them")
    same, moved = (", ".join(kinds[which]) or none for which in (True, False))
    return voice.say(
        f"Deslocado o trecho, a saída fica a mesma (menos de 0,01 %) com: {same}; muda, em parte da sua norma, com: "
        f"{moved}.",
        f"When a span moves, its output stays (within 0.01 %) with: {same}; it changes, as a share of its norm, with: "
        f"{moved}.",
    )


def cost(numbers: Numbers, voice: Voice) -> str:
    """Relative positions, question 1 (docs/notes.md#b10)."""
    schemes = numbers.schemes("cost", RELATIVE)

    def span(name: str) -> str:
        found = sorted((numbers.cost(one, name) / numbers.cost("none", name), one) for one in schemes)
        (low, least), (high, most) = found[0], found[-1]
        return voice.say(
            f"{voice.number(low)} ({voice.scheme(least)}) a {voice.number(high)} ({voice.scheme(most)})",
            f"{voice.number(low)} ({least}) to {voice.number(high)} ({most})",
        )

    length = numbers.rows["cost", "none"]["length"]
    growth = [(numbers.rows["cost", one].get("memory_growth"), one) for one in numbers.schemes("cost")]
    known = sorted((value, one) for value, one in growth if value is not None)
    end = ""
    if known:
        value, one = known[-1]
        end = voice.say(
            f" Lendo o dobro de tokens, a memória cresce no máximo {voice.number(value)} vezes ({voice.scheme(one)}); "
            f"2 é linear, 4 quadrático.",
            f" Reading twice as many tokens takes at most {voice.number(value)} times the memory ({one}); "
            f"2 is linear, 4 quadratic.",
        )
    return (
        voice.say(
            f"Com {length} tokens e em múltiplos do custo sem posições, os relativos tomam de tempo "
            f"{span('ms_a_step')}, de memória {span('peak_mib')} e de produtos {span('mflops_a_token')}.",
            f"At {length} tokens and as multiples of the cost without positions, relative schemes take in time "
            f"{span('ms_a_step')}, in memory {span('peak_mib')} and in products {span('mflops_a_token')}.",
        )
        + end
    )


def alignment(numbers: Numbers, voice: Voice) -> str:
    """Relative positions, question 2 (docs/notes.md#b14); hybrids, where measured, against the better of the two."""
    name = f"alignment error {numbers.length}"

    def best(among: Sequence[str]) -> str:
        return min(numbers.schemes("reorder", among), key=lambda one: numbers.mean("reorder", one, name))

    def shown(scheme: str) -> str:
        error = voice.number(numbers.mean("reorder", scheme, name))
        right = voice.percent(numbers.mean("reorder", scheme, f"accuracy {numbers.length}"))
        return f"{voice.scheme(scheme)} {error} ({voice.say('palavras certas', 'words right')}: {right})"

    def against(one: str, other: str) -> str:
        told = numbers.apart("reorder", one, other, name)
        return {
            -1: voice.say("alinha melhor", "aligns better"),
            0: voice.say("as sementes não os separam", "the seeds do not tell them apart"),
            1: voice.say("alinha pior", "aligns worse"),
        }[told]

    absolute, relative = best(ABSOLUTE), best(RELATIVE)
    text = voice.say(
        f"Com frases viradas, erro de alinhamento (0 é certo): o melhor absoluto, {shown(absolute)}; o melhor "
        f"relativo, {shown(relative)}: {against(relative, absolute)}.",
        f"With phrases turned round, alignment error (0 is right): the best absolute scheme, {shown(absolute)}; the "
        f"best relative one, {shown(relative)}: {against(relative, absolute)}.",
    )
    if numbers.schemes("reorder", HYBRID):
        both, alone = best(HYBRID), best((absolute, relative))
        text += voice.say(
            f" O melhor híbrido, {shown(both)}, contra {voice.scheme(alone)}: {against(both, alone)}.",
            f" The best hybrid, {shown(both)}, against {voice.scheme(alone)}: {against(both, alone)}.",
        )
    if numbers.schemes("reorder", ("none",)):
        text += voice.say(f" Para comparar, {shown('none')}.", f" For comparison, {shown('none')}.")
    return text


def experiment(numbers: Numbers, voice: Voice) -> str:
    """Advanced question 1: the experiment, which is this one, and what it shows."""
    far, parts = 8 * numbers.length, []
    for task in ("echo", "pairs"):
        name = f"accuracy {far}"
        value, best = max((numbers.mean(task, one, name), one) for one in numbers.schemes(task))
        parts.append(f"{task} {voice.scheme(best)} ({voice.percent(value)})")
    value, best = min((numbers.mean("world", one, f"nll {far}"), one) for one in numbers.schemes("world"))
    parts.append(f"world {voice.scheme(best)} ({voice.number(value)} nats)")
    text = voice.say(
        f"Mesmas sementes, dados e passos, mudando só o esquema, com o comprimento treinado e além dele, como aqui. "
        f"Melhor com {far} tokens: {voice.series(parts)}.",
        f"Same seeds, data and steps, the scheme alone changed, at the trained length and beyond, as here. "
        f"Best at {far} tokens: {voice.series(parts)}.",
    )
    if numbers.schemes("pairs", ("none",)):
        blind, name = numbers.mean("pairs", "none", f"accuracy {numbers.length}"), f"accuracy {numbers.length}"
        best_here = max(numbers.mean("pairs", one, name) for one in numbers.schemes("pairs"))
        matters = best_here - blind > KEPT
        text += voice.say(
            f" A ordem {'importou' if matters else 'não importou'}: sem posições acertam-se {voice.percent(blind)} "
            f"dos textos, no melhor caso {voice.percent(best_here)}.",
            f" Order {'mattered' if matters else 'did not matter'}: without positions {voice.percent(blind)} of texts "
            f"are right, at best {voice.percent(best_here)}.",
        )
    return text


def interpretability(numbers: Numbers, voice: Voice) -> str:
    """Advanced question 2 (docs/notes.md#b13)."""
    found = [(numbers.mean("echo", one, "position share"), one) for one in numbers.schemes("echo") if one != "none"]
    listed = voice.series(f"{voice.scheme(one)} {voice.percent(share)}" for share, one in sorted(found, reverse=True))
    return voice.say(
        f"Decomposto exatamente, o que varia nos escores da primeira camada é posição em: {listed}. O termo dos "
        "relativos separa-se em todas as camadas, o dos absolutos só na primeira.",
        f"Taken apart exactly, of what varies in the first layer's scores position makes: {listed}. The term of "
        "relative schemes comes apart in every layer, that of absolute ones in the first alone.",
    )


def hybrid(numbers: Numbers, voice: Voice) -> str:
    """Advanced question 3 (docs/notes.md#b7)."""
    far = f"accuracy {8 * numbers.length}"
    parts = []
    for scheme in numbers.schemes("echo", HYBRID):
        for task in ("echo", "pairs"):
            against = []
            for other in ("sinusoidal", "shaw"):
                told = numbers.apart(task, scheme, other, far)
                word = {
                    1: voice.say("melhor que", "better than"),
                    0: voice.say("sem diferença clara de", "not clearly apart from"),
                    -1: voice.say("pior que", "worse than"),
                }[told]
                against.append(f"{word} {voice.scheme(other)} ({voice.percent(numbers.mean(task, other, far))})")
            parts.append(
                f"{task}, {voice.scheme(scheme)} ({voice.percent(numbers.mean(task, scheme, far))}): "
                f"{', '.join(against)}"
            )
    text = voice.say(f"Com {8 * numbers.length} tokens: ", f"At {8 * numbers.length} tokens: ") + "; ".join(parts) + "."
    gated = numbers.rows.get(("echo", HYBRID[-1]))
    if gated is not None and "gate shaw" in gated["measures"]:
        added, paired = (numbers.mean("echo", HYBRID[-1], f"gate {name}") for name in ("sinusoidal", "shaw"))
        text += voice.say(
            f" As portas, de 1, foram a {voice.number(added)} (senoidal) e {voice.number(paired)} (Shaw).",
            f" The gates went from 1 to {voice.number(added)} (sinusoidal) and {voice.number(paired)} (shaw).",
        )
    return text


def learned_table(numbers: Numbers, voice: Voice) -> str:
    """What the notes leave out: learned tables, and how little their late positions are trained (docs/notes.md#b3)."""
    name = ("table", "learned")
    first, last = (numbers.mean(*name, f"updates {which}") for which in ("first", "last"))
    begin, end = (numbers.mean(*name, f"change {which}") for which in ("first", "last"))
    positions = len(numbers.rows[name]["updates"])
    if last < first / 2:
        verdict = voice.say("as últimas treinam-se raramente", "late positions are trained rarely")
        if end > begin / 2:
            verdict += voice.say(
                ", mas andam mais a cada vez, pois o passo do Adam não encolhe com a raridade",
                ", but go farther each time, as Adam's step does not shrink with rarity",
            )
    else:
        verdict = voice.say("as últimas treinam-se tanto quanto as primeiras", "late positions are trained as often")
    return voice.say(
        f"Com frases de comprimento natural, a posição 0 recebe {voice.number(first, 0)} atualizações e muda "
        f"{voice.number(begin)}; a posição {positions - 1}, {voice.number(last, 0)} e {voice.number(end)}: {verdict}.",
        f"On sentences of natural length position 0 gets {voice.number(first, 0)} updates and moves "
        f"{voice.number(begin)}; position {positions - 1} gets {voice.number(last, 0)} and moves "
        f"{voice.number(end)}: {verdict}.",
    )


@dataclass(frozen=True)
class Question:
    """A question in our words, what it needs to have been measured, and who answers it."""

    portuguese: str
    english: str
    tasks: Sequence[str]
    answer: Callable[[Numbers, Voice], str]


QUESTIONS = (
    Question(
        "Senoides são periódicas; o modelo generaliza por isso a textos mais longos?",
        "Sinusoids are periodic; does a model generalise to longer texts for that?",
        ("echo",),
        periodicity,
    ),
    Question(
        "Que acontece ao classificar documentos muito além do comprimento treinado?",
        "What happens when documents far beyond the trained length are classified?",
        ("pairs",),
        long_documents,
    ),
    Question(
        "Os relativos generalizam melhor a sequências longas, num modelo de linguagem?",
        "Do relative schemes generalise better to long sequences, in a language model?",
        ("echo", "world"),
        language_model,
    ),
    Question("Quem é invariante à translação?", "Which schemes are invariant to translation?", ("pairs",), invariance),
    Question("Quanto custam os relativos?", "What do relative schemes cost?", ("cost",), cost),
    Question(
        "Os relativos alinham melhor línguas de ordem diferente?",
        "Do relative schemes align languages of different order better?",
        ("reorder",),
        alignment,
    ),
    Question(
        "Que experimento compara os dois em textos longos?",
        "Which experiment compares the two on long texts?",
        ("echo", "pairs", "world"),
        experiment,
    ),
    Question(
        "Que mudam os relativos na interpretabilidade?",
        "What do relative schemes change about interpretability?",
        ("echo",),
        interpretability,
    ),
    Question("Vale a pena um híbrido?", "Is a hybrid worth it?", ("echo", "pairs"), hybrid),
    Question(
        "Tabelas aprendidas treinam todas as posições?",
        "Do learned tables train every position?",
        ("table",),
        learned_table,
    ),
)


def answers(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each question whose tasks were measured: `question_pt`, `answer_pt`, `question_en`, `answer_en`."""
    numbers = Numbers(rows)
    for question in QUESTIONS:
        if numbers.tasks.issuperset(question.tasks):
            yield {
                "bench": "positions",
                "question_pt": question.portuguese,
                "answer_pt": question.answer(numbers, Voice(True)),
                "question_en": question.english,
                "answer_en": question.answer(numbers, Voice(False)),
            }

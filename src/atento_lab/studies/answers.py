"""Answers to the position questions of the lecture notes, from the numbers of the laboratory, in two languages.

The numbers of the rows select each conclusion; other numbers give another sentence.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from atento_lab.studies.networks import ABSOLUTE, HYBRID, RELATIVE
from atento_lab.studies.position_rows import (
    LEARNED,
    TOLERATED_LOSS,
    Language,
    Numbers,
    generalisation,
    lengths,
    percents,
    reached,
)
from atento_lab.studies.seeds import Row


def periodicity(numbers: Numbers, language: Language) -> str:
    """Answer question 1 on absolute positions."""
    reach, length = reached(numbers, "echo", "sinusoidal"), numbers.length
    shares = percents(numbers, language, "echo", "sinusoidal")
    if reach == 0:
        end = language.text(
            "Nem o comprimento treinado foi aprendido, e nada se conclui.",
            "The trained length was not learned, so there is no conclusion.",
        )
    elif reach == length:
        end = language.text(
            "Só a periodicidade não levou o aprendido além do comprimento treinado.",
            "Periodicity alone gave no generalisation beyond the trained length.",
        )
    else:
        end = language.text(f"O aprendido valeu até {reach} tokens.", f"The accuracy held up to {reach} tokens.")
    return language.text(
        f"Com senoides, acertos com {lengths(numbers, language)} tokens: {shares}. {end}",
        f"With sinusoids, accuracy at {lengths(numbers, language)} tokens: {shares}. {end}",
    )


def long_documents(numbers: Numbers, language: Language) -> str:
    """Answer question 2 on absolute positions."""
    return language.text("Classificando pela ordem, ", "Classification by order: ") + generalisation(
        numbers, language, "pairs"
    )


def language_model(numbers: Numbers, language: Language) -> str:
    """Compare long texts for a language model."""
    length = 8 * numbers.length
    losses = sorted((numbers.mean("world", scheme, f"nll {length}"), scheme) for scheme in numbers.schemes("world"))
    (low, best), (high, worst) = losses[0], losses[-1]
    return (
        language.text("Devolvendo a letra de três lugares antes, ", "Repeating the letter three positions before: ")
        + generalisation(numbers, language, "echo")
        + language.text(
            f" No micromundo com {length} tokens, de {language.number(low)} nats por token ({language.scheme(best)}) a "
            f"{language.number(high)} ({language.scheme(worst)}).",
            f" On the micro-world at {length} tokens, from {language.number(low)} nats per token "
            f"({language.scheme(best)}) to {language.number(high)} ({language.scheme(worst)}).",
        )
    )


def invariance(numbers: Numbers, language: Language) -> str:
    """Compare translation invariance (docs/notes.md#b8)."""
    kinds: dict[bool, list[str]] = {True: [], False: []}
    for scheme in numbers.schemes("pairs"):
        change = numbers.mean("pairs", scheme, "shift by position")
        kinds[change < 1e-4].append(
            language.scheme(scheme) if change < 1e-4 else f"{language.scheme(scheme)} {language.percent(change)}"
        )
    none = language.text("nenhum", "none")
    same, moved = (", ".join(kinds[unchanged]) or none for unchanged in (True, False))
    return language.text(
        f"Deslocado o trecho, a saída fica a mesma (menos de 0,01 %) com: {same}; muda, em parte da sua norma, com: "
        f"{moved}.",
        f"When a span moves, its output stays the same (within 0.01 %) with: {same}; it changes, as a share of its "
        f"norm, with: {moved}.",
    )


def cost(numbers: Numbers, language: Language) -> str:
    """Answer question 1 on relative positions (docs/notes.md#b10)."""
    schemes = numbers.schemes("cost", RELATIVE)

    def span(name: str) -> str:
        ratios = sorted((numbers.cost(scheme, name) / numbers.cost("none", name), scheme) for scheme in schemes)
        (low, low_scheme), (high, high_scheme) = ratios[0], ratios[-1]
        return language.text(
            f"{language.number(low)} ({language.scheme(low_scheme)}) a {language.number(high)} "
            f"({language.scheme(high_scheme)})",
            f"{language.number(low)} ({low_scheme}) to {language.number(high)} ({high_scheme})",
        )

    length = numbers.rows["cost", "none"]["length"]
    growth = [(numbers.rows["cost", scheme].get("memory_growth"), scheme) for scheme in numbers.schemes("cost")]
    known = sorted((value, scheme) for value, scheme in growth if value is not None)
    end = ""
    if known:
        value, scheme = known[-1]
        end = language.text(
            f" Lendo o dobro de tokens, a memória cresce no máximo {language.number(value)} vezes "
            f"({language.scheme(scheme)}); 2 é linear, 4 quadrático.",
            f" For twice as many tokens, the memory grows at most {language.number(value)} times ({scheme}); "
            f"2 is linear, 4 quadratic.",
        )
    return (
        language.text(
            f"Com {length} tokens e em múltiplos do custo sem posições, os relativos tomam de tempo "
            f"{span('ms_a_step')}, de memória {span('peak_mib')} e de produtos {span('mflops_a_token')}.",
            f"At {length} tokens, relative to the cost without positions, relative schemes need in time "
            f"{span('ms_a_step')}, in memory {span('peak_mib')} and in products {span('mflops_a_token')}.",
        )
        + end
    )


def alignment(numbers: Numbers, language: Language) -> str:
    """Answer question 2 on relative positions (docs/notes.md#b14).

    Hybrids, if measured, are compared with the better of the two kinds.
    """
    name = f"alignment error {numbers.length}"

    def best(among: Sequence[str]) -> str:
        return min(numbers.schemes("reorder", among), key=lambda scheme: numbers.mean("reorder", scheme, name))

    def summary(scheme: str) -> str:
        error = language.number(numbers.mean("reorder", scheme, name))
        right = language.percent(numbers.mean("reorder", scheme, f"accuracy {numbers.length}"))
        return f"{language.scheme(scheme)} {error} ({language.text('palavras certas', 'accuracy')}: {right})"

    def comparison(first: str, second: str) -> str:
        sign = numbers.compare("reorder", first, second, name)
        return {
            -1: language.text("alinha melhor", "aligns better"),
            0: language.text("as sementes não os separam", "the seeds show no difference"),
            1: language.text("alinha pior", "aligns worse"),
        }[sign]

    absolute, relative = best(ABSOLUTE), best(RELATIVE)
    text = language.text(
        f"Com frases viradas, erro de alinhamento (0 é certo): o melhor absoluto, {summary(absolute)}; o melhor "
        f"relativo, {summary(relative)}: {comparison(relative, absolute)}.",
        f"With reversed phrases, alignment error (0 is perfect): the best absolute scheme, {summary(absolute)}; the "
        f"best relative one, {summary(relative)}: {comparison(relative, absolute)}.",
    )
    if numbers.schemes("reorder", HYBRID):
        both, alone = best(HYBRID), best((absolute, relative))
        text += language.text(
            f" O melhor híbrido, {summary(both)}, contra {language.scheme(alone)}: {comparison(both, alone)}.",
            f" The best hybrid, {summary(both)}, against {language.scheme(alone)}: {comparison(both, alone)}.",
        )
    if numbers.schemes("reorder", ("none",)):
        text += language.text(f" Para comparar, {summary('none')}.", f" For comparison, {summary('none')}.")
    return text


def experiment(numbers: Numbers, language: Language) -> str:
    """Answer advanced question 1, on the experiment, which is this one, with its result."""
    length, parts = 8 * numbers.length, []
    for task in ("echo", "pairs"):
        name = f"accuracy {length}"
        value, best = max((numbers.mean(task, scheme, name), scheme) for scheme in numbers.schemes(task))
        parts.append(f"{task} {language.scheme(best)} ({language.percent(value)})")
    value, best = min((numbers.mean("world", scheme, f"nll {length}"), scheme) for scheme in numbers.schemes("world"))
    parts.append(f"world {language.scheme(best)} ({language.number(value)} nats)")
    text = language.text(
        f"Mesmas sementes, dados e passos, mudando só o esquema, com o comprimento treinado e além dele, como aqui. "
        f"Melhor com {length} tokens: {language.series(parts)}.",
        f"Same seeds, data and steps, with only the scheme changed, at the trained length and beyond, as here. "
        f"Best at {length} tokens: {language.series(parts)}.",
    )
    if numbers.schemes("pairs", ("none",)):
        blind, name = numbers.mean("pairs", "none", f"accuracy {numbers.length}"), f"accuracy {numbers.length}"
        best_here = max(numbers.mean("pairs", scheme, name) for scheme in numbers.schemes("pairs"))
        matters = best_here - blind > TOLERATED_LOSS
        text += language.text(
            f" A ordem {'importou' if matters else 'não importou'}: sem posições acertam-se {language.percent(blind)} "
            f"dos textos, no melhor caso {language.percent(best_here)}.",
            f" Order {'mattered' if matters else 'did not matter'}: without positions {language.percent(blind)} of "
            f"texts are classified correctly, at best {language.percent(best_here)}.",
        )
    return text


def interpretability(numbers: Numbers, language: Language) -> str:
    """Answer advanced question 2 (docs/notes.md#b13)."""
    shares = [
        (numbers.mean("echo", scheme, "position share"), scheme)
        for scheme in numbers.schemes("echo")
        if scheme != "none"
    ]
    listed = language.series(
        f"{language.scheme(scheme)} {language.percent(share)}" for share, scheme in sorted(shares, reverse=True)
    )
    return language.text(
        f"Decomposto exatamente, o que varia nos escores da primeira camada é posição em: {listed}. O termo dos "
        "relativos separa-se em todas as camadas, o dos absolutos só na primeira.",
        f"In an exact decomposition, the share of position in the variation of the first layer's scores is: {listed}. "
        "The term of relative schemes is separate in every layer, that of absolute ones only in the first.",
    )


def hybrid(numbers: Numbers, language: Language) -> str:
    """Answer advanced question 3 (docs/notes.md#b7)."""
    measure = f"accuracy {8 * numbers.length}"
    parts = []
    for scheme in numbers.schemes("echo", HYBRID):
        for task in ("echo", "pairs"):
            comparisons = []
            for baseline in ("sinusoidal", "shaw"):
                sign = numbers.compare(task, scheme, baseline, measure)
                word = {
                    1: language.text("melhor que", "better than"),
                    0: language.text("sem diferença clara de", "not clearly different from"),
                    -1: language.text("pior que", "worse than"),
                }[sign]
                comparisons.append(
                    f"{word} {language.scheme(baseline)} ({language.percent(numbers.mean(task, baseline, measure))})"
                )
            parts.append(
                f"{task}, {language.scheme(scheme)} ({language.percent(numbers.mean(task, scheme, measure))}): "
                f"{', '.join(comparisons)}"
            )
    text = (
        language.text(f"Com {8 * numbers.length} tokens: ", f"At {8 * numbers.length} tokens: ")
        + "; ".join(parts)
        + "."
    )
    gated = numbers.rows.get(("echo", HYBRID[-1]))
    if gated is not None and "gate shaw" in gated["measures"]:
        added, paired = (numbers.mean("echo", HYBRID[-1], f"gate {name}") for name in ("sinusoidal", "shaw"))
        text += language.text(
            f" As portas, de 1, foram a {language.number(added)} (senoidal) e {language.number(paired)} (Shaw).",
            f" The gates went from 1 to {language.number(added)} (sinusoidal) and {language.number(paired)} (shaw).",
        )
    return text


def learned_table(numbers: Numbers, language: Language) -> str:
    """Answer a question that the notes omit: how few updates late positions of learned tables get
    (docs/notes.md#b3).
    """
    name = ("table", "learned")
    first, last = (numbers.mean(*name, f"updates {row}") for row in ("first", "last"))
    begin, end = (numbers.mean(*name, f"change {row}") for row in ("first", "last"))
    positions = len(numbers.rows[name]["updates"])
    if last < first / 2:
        verdict = language.text("as últimas treinam-se raramente", "late positions get few updates")
        if end > begin / 2:
            verdict += language.text(
                ", mas andam mais a cada vez, pois o passo do Adam não encolhe com a raridade",
                ", but move farther each time, because Adam's step does not shrink with rarity",
            )
    else:
        verdict = language.text("as últimas treinam-se tanto quanto as primeiras", "late positions get as many updates")
    return language.text(
        f"Com frases de comprimento natural, a posição 0 recebe {language.number(first, 0)} atualizações e muda "
        f"{language.number(begin)}; a posição {positions - 1}, {language.number(last, 0)} e {language.number(end)}: "
        f"{verdict}.",
        f"On sentences of natural length position 0 gets {language.number(first, 0)} updates and moves "
        f"{language.number(begin)}; position {positions - 1} gets {language.number(last, 0)} and moves "
        f"{language.number(end)}: {verdict}.",
    )


@dataclass(frozen=True)
class Question:
    """A question in our words, the tasks that must have been measured, and the function that answers it."""

    portuguese: str
    english: str
    tasks: Sequence[str]
    answer: Callable[[Numbers, Language], str]


QUESTIONS = (
    Question(
        "Senoides são periódicas; o modelo generaliza por isso a textos mais longos?",
        "Sinusoids are periodic; does a model generalise to longer texts because of that?",
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
        "Do relative schemes align languages with different word order better?",
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
        "How do relative schemes change interpretability?",
        ("echo",),
        interpretability,
    ),
    Question("Vale a pena um híbrido?", "Is a hybrid better?", ("echo", "pairs"), hybrid),
    Question(
        "Tabelas aprendidas treinam todas as posições?",
        "Do learned tables train every position?",
        ("table",),
        learned_table,
    ),
)


def unlearned(numbers: Numbers, language: Language, tasks: Sequence[str]) -> str | None:
    """Say which of the tasks no scheme has learned, so that their numbers mean nothing; None if each was learned."""
    parts = []
    for task in tasks:
        best = numbers.best(task)
        if best is not None and best < LEARNED:
            steps = numbers.rows[task, numbers.schemes(task)[0]]["steps"]
            parts.append(f"{task} ({language.percent(best)}, {steps} {language.text('atualizações', 'updates')})")
    if not parts:
        return None
    return language.text(
        f"Nenhum esquema aprendeu {language.series(parts)} com {numbers.length} tokens, e nada se conclui: `--seconds` "
        "maior treina mais.",
        f"No scheme learned {language.series(parts)} at {numbers.length} tokens, so there is no conclusion: a larger "
        "`--seconds` trains longer.",
    )


def answers(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield a row for each question whose tasks were measured: question and answer in both languages.

    Where no scheme has learned a task at the trained length, the answer says so.
    """
    numbers = Numbers(rows)

    def answer(question: Question, language: Language) -> str:
        return unlearned(numbers, language, question.tasks) or question.answer(numbers, language)

    for question in QUESTIONS:
        if numbers.tasks.issuperset(question.tasks):
            yield {
                "bench": "positions",
                "question_pt": question.portuguese,
                "answer_pt": answer(question, Language(True)),
                "question_en": question.english,
                "answer_en": answer(question, Language(False)),
            }

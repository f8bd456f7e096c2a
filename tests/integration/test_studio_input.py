"""Studio's input strip, its examples, its seed and its refusals in Portuguese, in a real browser."""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import atento
import atento_serve
from atento.base.errors import CapabilityError
from atento.inspection.figures.network_diagram import network_text
from atento.networks.describe import describe
from http_service import Served, served
from studio_page import TEXT, StudioPage

SHIPPED = tuple(f"micro-world-{name}" for name in ("en-pt", "tense", "entailment", "answers", "entities", "mlm"))


@pytest.fixture(scope="module")
def shipped() -> Iterator[Served]:
    """Studio over models of the package, with a seed."""
    with served([*SHIPPED, "--seed", "7"], command="studio") as running:
        yield running


def test_a_word_is_pinned_by_any_of_its_tokens(browser: Any, studio: Served) -> None:
    words = atento.load(studio.folders["llama"]).tokenizer.encode_with_offsets(TEXT).word_ids
    inner = next(at for at in range(1, len(words)) if words[at] == words[at - 1])
    seen = StudioPage(browser, studio).go("heads", model="llama", words=1)
    seen.go("heads", model="llama", words=1, pin=f"source-{inner + 1}")  # behind <s>; the chips are not drawn again
    pressed = seen.page.locator(".strip .chip[aria-pressed=true]")
    assert pressed.count() == 1 and str(pressed.text_content()) == TEXT.split()[words[inner] or 0].strip(".")
    before = int(str(pressed.get_attribute("data-token")).partition("-")[2])
    assert before < inner + 1 < int(str(pressed.get_attribute("data-end")))
    seen.page.keyboard.press("ArrowRight")
    assert seen.wait().state["pin"] == f"source-{pressed.get_attribute('data-token').partition('-')[2]}"
    assert int(seen.state["pin"].partition("-")[2]) > inner + 1


def test_a_token_that_is_pointed_at_lights_up_in_every_panel(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("heads", model="en-pt", kind="encoder")
    chip = seen.page.locator('.strip [data-token="source-2"]')
    lit = seen.page.locator(".pointed")
    chip.hover()
    assert lit.count() == 3 and set(lit.all_text_contents()) == {chip.text_content()}  # the chip, the row, the column
    seen.page.mouse.move(0, 0)
    assert lit.count() == 0
    chip.focus()
    assert lit.count() == 3


ANA = {"text": "Ana mora em Lisboa."}
POINTED = {  # screen -> its state, what is pointed at, the word that lights up with its tokens
    "translate": ({"model": "micro-world-en-pt"}, "#source-words .word >> nth=1", "cat"),
    "why": ({"model": "micro-world-tense", "method": "gradient-input"}, ".why li >> nth=2", "gato"),
    "fill": ({"model": "micro-world-mlm", "text": "O gato vê a casa velha."}, "#fill-words .word >> nth=1", "gato"),
    "labels": ({"model": "micro-world-entities"} | ANA, "mark >> nth=0", "Ana"),
    "answer": ({"model": "micro-world-answers", "question": "Quem mora em Lisboa?"} | ANA, "#context mark", ""),
    "compare": (dict.fromkeys(("model", "b"), "micro-world-entities") | ANA, ".chips .plain >> nth=0", "Ana"),
}


def test_a_word_that_is_pointed_at_lights_up_with_its_tokens(browser: Any, shipped: Served) -> None:
    seen = StudioPage(browser, shipped)
    for screen, (state, place, word) in POINTED.items():
        seen.go(screen, **state)
        own, chips = seen.page.locator(f"#screen {place}"), seen.page.locator(".strip .chip.pointed")
        own.hover()
        lit = "".join(chips.all_text_contents()).replace("▁", "").replace("##", "")
        said = str(own.evaluate("one => (one.querySelector('.name') ?? one).firstChild.textContent")).strip(".")
        assert said and lit.strip(".") == said and (not word or said == word), screen
        chips.first.hover()  # and the other way round
        assert "pointed" in str(own.get_attribute("class")) and chips.count() == 1, screen
        seen.page.mouse.move(0, 0)
        assert seen.page.locator(".pointed").count() == 0 and seen.complaints == [], screen


def test_what_fills_a_mask_is_explained_as_in_python(browser: Any, shipped: Served) -> None:
    seen = StudioPage(browser, shipped).go("why", model="micro-world-mlm", text="O gato vê a casa velha.", masked="1,4")
    model: Any = atento.load("micro-world-mlm")
    mask = model.tokenizer.specials.roles["mask"]
    expected = model.explain(f"O {mask} vê a {mask} velha.")
    words, _, scores = seen.table()
    assert words == expected.words and scores[:, 0] == pytest.approx(expected.scores, abs=1e-5)
    assert seen.page.locator(".cards button").all_text_contents()[1:] == [part.target for part in expected.parts]


@pytest.mark.parametrize(
    ("model", "count", "language", "task"),
    [
        ("micro-world-en-pt", 3, "English", None),
        ("micro-world-tense", 3, "Português", None),
        ("micro-world-entailment", 2, "Português", "second"),
        ("micro-world-answers", 2, "Português", "question"),
    ],
)
def test_examples_fit(browser: Any, shipped: Served, model: str, count: int, language: str, task: str | None) -> None:
    screen = {"second": "labels", "question": "answer", None: "tokens"}[task]
    seen = StudioPage(browser, shipped).go(screen, model=model)
    options = seen.page.locator("#examples option")
    are_there = "count => document.querySelectorAll('#examples option').length === count"
    seen.page.wait_for_function(are_there, arg=count + 1)
    texts = options.all_text_contents()[1:]
    assert len(texts) == count and all(text.startswith(f"{language}: ") for text in texts)
    seen.page.select_option("#examples", index=count - 1)
    # a pair or a question to begin with is the first example, which the address then need not name
    state = seen.wait().page.evaluate("() => ({ ...studio.state.defaults, ...studio.state.values })")
    assert state["text"] in texts[count - 2] and (task is None or state[task] in texts[count - 2])
    loaded = atento.load(model)
    if task == "question":
        found = str(seen.page.locator(".links .name").first.text_content())
        assert found == loaded.answer(state["question"], state["text"]).text == "biologia"
    if task == "second":
        best = max(loaded.classify([(state["text"], state["second"])]), key=lambda one: one.probability)
        assert best.name == "contradiction"


def test_a_second_text_is_asked_for_where_a_model_needs_one_and_sent_there_alone(browser: Any, shipped: Served) -> None:
    """The refusal of a text alone, with words of Python, hid the box in which the second one is written."""
    seen, loaded = StudioPage(browser, shipped), atento.load("micro-world-entailment")
    for screen, model, name, second in (
        ("labels", "entailment", "second", "O gato dorme."),
        ("why", "entailment", "second", "O gato dorme."),
        ("why", "answers", "question", "Quem vê a casa?"),
    ):
        seen.go(screen, model=f"micro-world-{model}", text="O gato vê a casa velha.", **{name: ""})
        box, asked = seen.page.locator(f"#screen #{name}"), seen.page.locator("#screen [role=status]")
        assert seen.problem == "" and str(asked.text_content()).startswith("Write ") and box.input_value() == "", screen
        box.fill(second)
        box.press("Enter")
        assert seen.wait().state[name] == second and seen.problem == "", screen
        assert "Write " not in str(asked.text_content()), screen
    expected = loaded.explain(("O gato vê a casa velha.", "O gato dorme."))
    seen.go("why", model="micro-world-entailment", text="O gato vê a casa velha.", second="O gato dorme.")
    assert seen.table()[2][:, 0] == pytest.approx(expected.scores, abs=1e-5)
    for screen in ("labels", "why"):  # it is of the model that was shown before
        assert seen.go(screen, model="micro-world-tense", second="x").problem == "", screen
        assert not seen.page.locator("#screen #second").is_visible()


def test_a_number_that_was_refused_can_be_written_again(browser: Any, shipped: Served) -> None:
    """The refusal hid the box of the number; what was typed in one had no effect, in silence."""
    seen = StudioPage(browser, shipped).go("beam", model="micro-world-en-pt", beam=100)
    box = seen.page.get_by_label("Beam", exact=True)
    assert "got 100" in seen.problem and box.input_value() == "100"
    assert not seen.page.locator("#screen details").first.is_visible()  # it would show an earlier search
    box.fill("3")
    box.press("Enter")
    assert seen.wait().problem == "" and seen.page.locator("#screen details").first.is_visible()
    box.fill("100")
    box.press("Tab")  # the browser says what is wrong, and stays there
    assert seen.page.evaluate("() => document.activeElement.value") == "100" and seen.state["beam"] == "3"


def test_the_first_text_and_captions_are_of_the_models_and_the_pages_language(browser: Any, shipped: Served) -> None:
    """An English sentence stood before models that know Portuguese alone."""
    for model, text in (("micro-world-tense", "O gato vê a casa velha."), ("micro-world-en-pt", "The cat sees")):
        seen = StudioPage(browser, shipped).go("why", model=model)
        assert seen.page.locator("textarea").first.input_value().startswith(text)
    seen.go("tokens", model="micro-world-mlm")  # it does not wait for its model
    seen.page.wait_for_function("() => document.querySelector('textarea').value.startsWith('O gato')")
    seen, place = StudioPage(browser, shipped), {"model": "micro-world-en-pt", "language": "pt-BR"}
    assert "máscara: bidirecional sobre a origem." in seen.go("heads", **place).page.locator("#screen").inner_text()
    for method, said in (("integrated-gradients", "o vetor do preenchimento no lugar"), ("leave-out", "o texto sem")):
        told = seen.go("why", **place, method=method).page.locator("#said").inner_text()
        assert "log-probabilidade das palavras" in told and said in told
    assert "1\u00a0800" in seen.go("models", **place).page.locator(".facts").inner_text()
    seen.go("next", **place, temperature=0.7)
    assert seen.page.locator("aside").evaluate("box => box.scrollWidth <= box.clientWidth"), "numbers are cut off"


def test_the_keyboard_begins_at_the_top_and_stays_where_it_is(browser: Any, shipped: Served) -> None:
    """What is pressed is drawn again; the focus went back to the top of the page."""
    seen = StudioPage(browser, shipped, fresh=True).go("models", model="micro-world-mlm")
    focus = "() => document.activeElement.textContent"
    seen.page.keyboard.press("Tab")
    assert seen.page.evaluate(focus) == "Skip to the screen"
    for screen, model, place in (
        ("models", "mlm", ".card"),
        ("fill", "mlm", ".word"),
        ("why", "en-pt", ".cards .card"),
    ):
        seen.go(screen, model=f"micro-world-{model}")
        pressed = seen.page.locator(f"#screen {place}").nth(2)
        said = pressed.text_content()
        pressed.press("Enter")
        seen.wait()
        assert seen.page.evaluate(focus) == said, screen


def test_the_seed_of_the_command_line_is_that_of_the_draws(browser: Any, shipped: Served) -> None:
    seen = StudioPage(browser, shipped).go("next", model="micro-world-en-pt", temperature=2)
    assert seen.page.locator("#screen input[type=number]").input_value() == "7"
    assert shipped.post("/studio/api/card", {"model": "micro-world-en-pt"}).json()["seed"] == 7
    seen.page.locator("#draw").click()
    written = seen.wait().state["written"]
    loaded = atento.load("micro-world-en-pt")
    text = seen.page.locator("textarea").first.input_value()
    options: dict[str, Any] = {"sample": True, "temperature": 2.0, "max_new_tokens": 1}
    assert written.strip() == loaded.translate(text, seed=7, **options).strip()
    assert seen.state["seed"] == "8"


def test_each_refusal_that_is_translated_is_one_of_the_code(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("models", language="pt-BR")
    pairs = seen.page.evaluate("async () => (await import('/studio/refusals.js')).REFUSALS")
    whole, patterns = set[str](), list[str]()  # the texts of the code, and of those in which something is filled in
    for root in (Path(atento.__file__).parent, Path(atento_serve.__file__).parent):
        for node in (node for file in root.rglob("*.py") for node in ast.walk(ast.parse(file.read_text("utf-8")))):
            if isinstance(node, ast.JoinedStr):
                texts = [one.value if isinstance(one, ast.Constant) else None for one in node.values]
                parts = [".+" if text is None else re.escape(str(text)) for text in texts]
                if sum(len(part) for part in parts if part != ".+") > 12:
                    patterns.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > 12:
                whole.add(node.value)
    known = re.compile("|".join(patterns), re.DOTALL)
    for english, portuguese in pairs:
        assert english in whole or known.fullmatch(english), english
        names = [set(re.findall(r"\{(\w+)\}", text)) for text in (english, portuguese)]
        assert names[1] <= names[0], english
    said = "async all => { const {refused} = await import('/studio/i18n.js'); return all.map(one => refused(one)); }"
    assert seen.page.evaluate(said, [english for english, _ in pairs]) == [portuguese for _, portuguese in pairs]
    assert seen.go("heads", model="none").problem.startswith("não há o modelo 'none': o Studio tem lm, ")
    seen.go("inside", model="llama", layer=0, head=9)
    assert seen.problem == "`head` deve ir de 0 a 1: veio 9"
    assert seen.go("heads", model="none", language="en").problem.startswith("there is no model 'none'")


SAME = {"embedding", "feed-forward", "linear", "pooler", "tokens", "causal", "LSTM", "+", "LayerNorm", "RMSNorm"}
SAME |= {"rotary", "alibi", "Rotary", "T5Bias", "Shaw + Shaw"}  # names of classes


def test_diagrams_are_in_the_language_of_the_page(browser: Any, studio: Served) -> None:
    """Names of boxes and what they say, of every kind of network of Studio; a picture and its text."""
    seen = StudioPage(browser, studio).go("models", model="en-pt", language="pt-BR")
    drawn = seen.page.evaluate("studio.screen.svgText")
    seen.page.locator("#screen summary").first.click()
    outline = seen.page.locator("#screen pre").first.inner_text()
    assert ">autoatenção<" in drawn and "decodificador" in outline
    assert "self-attention" not in drawn + outline and not re.search(r"\d,\d|heads|wide|shifted", drawn + outline)
    boxes = set[str]()
    for folder in studio.folders.values():
        with suppress(CapabilityError):
            for line in network_text(describe(atento.load(folder).network)).split("\n"):
                name, _, details = re.sub(r" × \d+|  [\d,]+$", "", line.strip()).partition(" (")
                boxes |= {name, *filter(None, details.removesuffix(")").split("; "))}
    said = "async all => { const {boxed} = await import('/studio/i18n.js'); return all.map(boxed); }"
    known = seen.page.evaluate(said, sorted(boxes))
    assert {english for english, other in zip(sorted(boxes), known) if english == other} <= SAME

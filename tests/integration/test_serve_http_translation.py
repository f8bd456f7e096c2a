"""The API of LibreTranslate over a real service: long texts, HTML, lists, detection, errors as clients read them."""

import html
import json
from html.parser import HTMLParser
from typing import Any
from urllib.error import HTTPError

import pytest

import atento
from atento.model import Model
from atento.serve.http.html_text import parts_of
from atento.serve.http.passages import Passages, joined
from http_service import SOURCES, Served

FIRST, SECOND = "I love the big dog.", "The cat sees a small house."


@pytest.fixture(scope="module")
def model(service: Served) -> Model:
    return atento.load(service.folders["en-pt"], device="cpu")


def translated(service: Served, text: object, **fields: Any) -> Any:
    done = service.post("/translate", {"q": text, "source": "en", "target": "pt"} | fields)
    assert done.status_code == 200, done.text
    return done.json()


def test_each_sentence_is_translated_by_itself_and_lines_stay(service: Served, model: Model) -> None:
    one, two = model.translate([FIRST, SECOND])
    assert one != two
    text = f"  {FIRST}  {SECOND}\r\n\n{SECOND}\t\n"
    assert translated(service, text)["translatedText"] == f"  {one} {two}\r\n\n{two}\t\n"
    assert translated(service, "")["translatedText"] == ""
    assert translated(service, " \n ")["translatedText"] == " \n "


def test_a_text_beyond_the_limit_of_a_request_is_translated(service: Served, model: Model) -> None:
    """Of more tokens than a text may have, and of more sentences than a request may have texts."""
    assert model.tokenizer is not None
    text = " ".join([FIRST] * 70)
    assert len(model.tokenizer.encode(text)) > 512
    assert translated(service, text)["translatedText"] == " ".join([model.translate(FIRST)] * 70)


DOCUMENT = (
    '<!DOCTYPE html>\n<p CLASS="a">I love the big\n dog. <B>The cat</B> &amp; you<br/>x &lt; y</P><!-- The cat -->'
    '<script>if (a < b) { the("cat") }</script><pre>The cat.\nThe dog.</pre><code>cat</code>'
    '<span translate="no">The dog <i>sees</i></span> &nbsp;<img alt="the cat" src=x>'
)


def test_tags_of_html_stay_and_texts_are_translated(service: Served, model: Model) -> None:
    def of(text: str) -> str:
        return html.escape(model.translate(text), quote=False)

    content = str(translated(service, DOCUMENT, format="html")["translatedText"])
    assert content == (
        f'<!DOCTYPE html>\n<p CLASS="a">{of("I love the big dog.")} <B>{of("The cat")}</B> {of("& you")}<br/>'
        f"{of('x < y')}</P><!-- The cat -->"
        f'<script>if (a < b) {{ the("cat") }}</script><pre>{of("The cat.")}\n{of("The dog.")}</pre><code>cat</code>'
        '<span translate="no">The dog <i>sees</i></span> \xa0<img alt="the cat" src=x>'
    )


@pytest.mark.parametrize(
    "document", ["a < b & c", "<b", "<p>a", "</p>a</i>", "&amp", "<![CDATA[x]]>a", "<?x?>a", "\n<"]
)
def test_broken_html_loses_nothing(document: str) -> None:
    passages = Passages()
    pieces = passages.document(document)
    assert html.unescape(joined(pieces, passages.sentences, escape=True)) == html.unescape(document)
    assert "".join(part.text for part in parts_of(document)) == html.unescape(document)


def test_the_parts_of_html_have_the_texts_that_another_reader_finds() -> None:
    class Texts(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.texts: list[str] = []

        def handle_data(self, data: str) -> None:
            self.texts.append(data)

    reader = Texts()
    document = "<div>one <b>two</b>&eacute;<p>three\n<i>four</i></div>"
    reader.feed(document)
    reader.close()
    assert "".join(part.text for part in parts_of(document) if part.kind == "text") == "".join(reader.texts)


def test_lists_auto_and_alternatives(service: Served, model: Model) -> None:
    texts = [f"{SOURCES[0]} {SOURCES[1]}", SOURCES[2]]
    content = translated(service, texts, source="auto", alternatives=2)
    ranked = [list(model.translate(text, n_best=3, beam=4)) for text in SOURCES[:3]]
    assert content["translatedText"] == [f"{ranked[0][0]} {ranked[1][0]}", ranked[2][0]]
    assert content["alternatives"] == [[f"{ranked[0][at]} {ranked[1][at]}" for at in (1, 2)], ranked[2][1:]]
    assert [row["language"] for row in content["detectedLanguage"]] == ["en", "en"]
    assert all(0 <= row["confidence"] <= 100 for row in content["detectedLanguage"])
    marked = translated(service, f"<p>{SOURCES[0]}</p>", source="auto", format="html")
    assert marked["detectedLanguage"]["language"] == "en"


def test_errors_are_texts_as_the_clients_of_libretranslate_read_them(service: Served) -> None:
    package = pytest.importorskip("libretranslatepy", reason="the package libretranslatepy is not installed")
    with pytest.raises(HTTPError) as raised:
        package.LibreTranslateAPI(service.url + "/").translate("a", "en", "xx")
    content = json.loads(raised.value.read())
    assert content["error"].startswith("no model of this service translates from 'en' to 'xx'")
    assert content["code"] == "unknown_language" and content["param"] == "/target"
    for path, fields, status in (
        ("/translate", {"q": "a"}, 422),
        ("/detect", {}, 422),
        ("/detect", {"q": ["a"] * 33}, 413),
    ):
        done = service.post(path, fields)
        assert done.status_code == status and isinstance(done.json()["error"], str)

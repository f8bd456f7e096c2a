"""The API of LibreTranslate over a real service: long texts, HTML, lists, detection, errors as clients read them."""

import html
import json
import re
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError

import httpx
import pytest

import atento
from atento.model import Model
from atento.text.documents.document_sentences import _NOT_TEXT, DocumentSentences
from atento.text.documents.html_text import read_html
from atento.text.documents.segments import TextDocument
from http_service import SOURCES, Served, served, until

FIRST, SECOND = "I love the big dog.", "The cat sees a small house."


@pytest.fixture(scope="module")
def model(service: Served) -> Model:
    return atento.load(service.folders["en-pt"], device="cpu")


def translated(service: Served, text: object, **fields: Any) -> Any:
    done = service.post("/translate", {"q": text, "source": "en", "target": "pt"} | fields)
    assert done.status_code == 200, done.text
    return done.json()


def test_each_sentence_is_translated_by_itself_and_texts_without_words_stay(service: Served, model: Model) -> None:
    one, two = model.translate([FIRST, SECOND])
    text = f"  {FIRST}  {SECOND}\r\n\n{SECOND}\t\n"
    assert translated(service, text)["translatedText"] == f"  {one} {two}\r\n\n{two}\t\n" and one != two
    assert translated(service, "")["translatedText"] == "" and translated(service, " \n ")["translatedText"] == " \n "
    assert translated(service, AS_IT_IS)["translatedText"] == AS_IT_IS
    assert translated(service, f"{FIRST} 🙂\n🙂")["translatedText"].endswith("\n🙂")
    done = service.post("/translation", {"inputs": [*AS_IT_IS, FIRST, "猫"]})
    assert done.status_code == 200, done.text
    assert [row["translation_text"] for row in done.json()] == [*AS_IT_IS, *model.translate([FIRST, "猫"])]
    text = " ".join([FIRST] * 70)  # of more tokens than a text may have, and more sentences than a request texts
    assert model.tokenizer is not None and len(model.tokenizer.encode(text)) > 512
    assert translated(service, text)["translatedText"] == " ".join([model.translate(FIRST)] * 70)


AS_IT_IS = ["🙂 👍🏽", "...", "— ?!", "★\n🇧🇷 ", "42", "123 🙂", "%1$s", "---"]  # no words


DOCUMENT = (
    '<!DOCTYPE html>\n<p CLASS="a">I love the big\n dog. <B>The cat</B> &amp; you<br/>x &lt; y</P><!-- The cat -->'
    '<script>if (a < b) { the("cat") }</script><pre>The cat.\nThe dog.</pre><code>cat</code>'
    '<span translate="no">The dog <i>sees</i></span> &nbsp;<img alt="the cat" src=x>'
)


def test_tags_of_html_stay_and_texts_are_translated(service: Served, model: Model) -> None:
    def of(text: str, **options: bool) -> str:  # no control characters in a page
        return html.escape(_NOT_TEXT.sub(" ", model.translate(text, **options)).strip(), quote=False)

    mixed = "<b>The cat</b> sees the dog."  # one sentence, with the tags around what they stood around
    words = of(mixed, protect=True).replace("&lt;b&gt;", "<b>").replace("&lt;/b&gt;", "</b>")
    assert translated(service, mixed, format="html")["translatedText"] == words
    assert re.sub("</?b>| ", "", words) == of("The cat sees the dog.").replace(" ", "")
    content = str(translated(service, DOCUMENT, format="html")["translatedText"])
    inner = of("<B>The cat</B> & you", protect=True).replace("&lt;B&gt;", "<B>").replace("&lt;/B&gt;", "</B>")
    kept = DOCUMENT[DOCUMENT.index("</P>") :]
    assert content == f'<!DOCTYPE html>\n<p CLASS="a">{of("I love the big dog.")} {inner}<br/>{of("x < y")}{kept}'


BROKEN = ["a < b & c", "<b", "<p>a", "</p>a</i>", "&amp", "<![CDATA[x]]>a", "<?x?>a", "\n<"]


@pytest.mark.parametrize("document", BROKEN)
def test_broken_html_loses_nothing(document: str) -> None:
    page = DocumentSentences(TextDocument(read_html(document, "q")))
    assert page.written(page.sentences) == document.encode()
    changed = page.written([f"{sentence} " for sentence in page.sentences]).decode()
    assert "".join(html.unescape(changed).split()) == "".join(html.unescape(document).split())


def test_hard_html_is_read_beside_other_requests_and_the_end_is_heard(service: Served) -> None:
    """24 kB of the beginnings of tags once stopped the service for seconds; 1 MB is the limit of a body."""
    assert translated(service, "<a " * 8_000, format="html")["translatedText"] == "<a " * 8_000
    longest = "<code></x>" * 100_000
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(translated, service, longest, format="html")
        waits = []
        while not reading.done():
            began = time.monotonic()
            assert service.get("/health/live").status_code == 200
            waits.append(time.monotonic() - began)
        assert reading.result()["translatedText"] == longest
    assert statistics.median(waits) < 0.5
    # these were 500: of Python's limit for whole numbers, and of an assertion of its parser
    assert translated(service, "&#" + "9" * 5_000 + ";<b>", format="html")["translatedText"].endswith("<b>")
    assert translated(service, "<![", format="html")["translatedText"] == "<!["
    with served([str(service.folders["en-pt"])]) as other, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(translated, other, "<code></x>" * 100_000 + SOURCES[0], format="html")
        until(lambda: "atento_requests_in_flight 2.0" in other.get("/metrics").text or reading.done())  # and this one
        assert other.end(seconds=10.0) == 0 and reading.result()["translatedText"]


def test_lists_auto_and_alternatives(service: Served, model: Model) -> None:
    content = translated(service, [f"{SOURCES[0]} {SOURCES[1]}", SOURCES[2]], source="auto", alternatives=2)
    ranked = [list(model.translate(text, n_best=3, beam=3)) for text in SOURCES[:3]]  # its own beam is 2
    assert content["translatedText"] == [f"{ranked[0][0]} {ranked[1][0]}", ranked[2][0]]
    assert content["alternatives"] == [[f"{ranked[0][at]} {ranked[1][at]}" for at in (1, 2)], ranked[2][1:]]
    assert [row["language"] for row in content["detectedLanguage"]] == ["en", "en"]
    assert all(0 <= row["confidence"] <= 100 for row in content["detectedLanguage"])
    marked = translated(service, f"<p>{SOURCES[0]}</p>", source="auto", format="html")
    assert marked["detectedLanguage"]["language"] == "en"
    portuguese = "O gato dorme na casa de Maria, e o cachorro também.\nEstá bem."  # it stays as it is
    mixed = translated(service, [portuguese, SOURCES[2]], source="auto", alternatives=1)
    assert mixed["translatedText"] == [portuguese, ranked[2][0]]
    assert [row["language"] for row in mixed["detectedLanguage"]] == ["pt", "en"]
    unserved = service.post("/translate", {"q": SOURCES[0], "source": "auto", "target": "en"})  # nothing is into it
    assert unserved.status_code == 400 and "translates from 'en' (detected) to 'en': it" in unserved.text


def test_errors_are_texts_as_the_clients_of_libretranslate_read_them(service: Served) -> None:
    package = pytest.importorskip("libretranslatepy", reason="the package libretranslatepy is not installed")
    with pytest.raises(HTTPError) as raised:
        package.LibreTranslateAPI(service.url + "/").translate("a", "en", "xx")
    content = json.loads(raised.value.read())
    assert content["error"].startswith("no model of this service translates from 'en' to 'xx'")
    assert content["code"] == "unknown_language" and content["param"] == "/target"
    wrong: list[Any] = [("/translate", {"q": "a"}, 422), ("/detect", {}, 422), ("/detect", {"q": ["a"] * 33}, 413)]
    for path, fields, status in wrong:
        done = service.post(path, fields)
        assert done.status_code == status and isinstance(done.json()["error"], str)


def test_terms_and_spans_are_kept(service: Served) -> None:
    """The model is random: what it writes is of no language, and has what must be in it."""
    glossary = {"dog": "cão", "house": ["casa", "casas"]}
    text = f"{FIRST} {SECOND} <b>%1$s</b> me@x.pt 🙂 3.5"
    done = translated(service, text, glossary=glossary, protect=True)
    form = {"q": text, "source": "en", "target": "pt", "protect": "true"}
    alone = translated(service, text, protect=True)
    assert httpx.post(service.url + "/translate", data=form).json() == alone
    empty = dict.fromkeys(("alternatives", "format", "api_key", "protect"), "")  # of a page that nobody filled in
    assert httpx.post(service.url + "/translate", data=empty | form).json() == alone
    nothing = httpx.post(service.url + "/translate", data={"q": "", "source": "en", "target": "pt"}).json()
    assert nothing["translatedText"] == ""
    assert httpx.post(service.url + "/translate", data={"q": "a"}).status_code == 422
    assert done["terms"] == {"dog": True, "house": True}
    assert all(done["translatedText"].count(span) == 1 for span in ("<b>", "%1$s", "</b>", "me@x.pt", "🙂", "3.5"))
    assert translated(service, [FIRST, "Nothing."], glossary=glossary)["terms"] == [{"dog": True}, {}]
    page = '<p title="the cat > the dog">The cat sleeps.</p><!-- <b>the dog</b> -->'  # no dog is seen
    assert translated(service, page, glossary=glossary, format="html")["terms"] == {}
    for wrong, said in (
        ({"Dog": "x", "dog": "y"}, "/glossary/dog: the term 'dog' also stands at /glossary/Dog"),
        ({"dog": " "}, "/glossary/dog: the target term is empty"),
    ):
        refused = service.post("/translate", {"q": FIRST, "source": "en", "target": "pt", "glossary": wrong})
        assert refused.status_code == 422 and said in refused.text
    fields = {"q": FIRST, "source": "en", "target": "pt", "glossary": glossary, "alternatives": 1}
    assert "exclude each other" in service.post("/translate", fields).text


def test_a_document_comes_back_translated(service: Served, model: Model) -> None:
    def upload(name: str, content: bytes, **fields: str) -> httpx.Response:
        data = {"source": "en", "target": "pt"} | fields
        return httpx.post(service.url + "/translate_file", data=data, files={"file": (name, content)}, timeout=60)

    times = "1\r\n00:00:01,000 --> 00:00:02,000\r\n"
    done = upload("film.pt.srt", f"{times}{FIRST}\r\n".encode())
    assert done.status_code == 200, done.text
    assert done.content.decode() == f"{times}{model.translate(FIRST)}\r\n"
    assert "film.pt.srt" in done.headers["content-disposition"]
    assert upload("a.md", f"# {FIRST}\n".encode(), source="auto").text == f"# {model.translate(FIRST)}\n"
    there = "O gato dorme na  casa de Maria, e o cachorro também.\n"  # in the target language
    assert upload("a.md", there.encode(), source="auto", glossary="", api_key="").text == there
    assert upload("a.md", FIRST.encode(), source="auto", target="en").status_code == 400
    page = '<html lang="{}"><p title="{}">{}</p></html>'
    for target, named, attributes in (("pt", "pt", "false"), ("pt-BR", "pt-BR", "true"), ("pb", "pt", "true")):
        done = upload("a.html", page.format("en", FIRST, FIRST).encode(), target=target, attributes=attributes)
        title = model.translate(FIRST) if attributes == "true" else FIRST
        assert done.text == page.format(named, title, model.translate(FIRST)), done.text
    po = f'msgid "{FIRST}"\nmsgstr ""\n'
    assert upload("a.po", po.encode(), mark_fuzzy="true").text.startswith("#, fuzzy\nmsgid")
    assert "must be true or false" in upload("a.po", po.encode(), mark_fuzzy="x").text
    assert "`attributes` is for documents that end in" in upload("a.po", po.encode(), attributes="true").text
    terms = json.dumps({"dog": "cão", "cat": "gato"})  # FIRST has a dog
    assert "cão" in upload("a.md", FIRST.encode(), glossary=terms).text
    plain = {"q": FIRST, "source": "en", "target": "pt", "glossary": terms}
    assert "cão" in httpx.post(service.url + "/translate", data=plain).json()["translatedText"]
    mixed = service.post("/translate", plain | {"q": ["a", 5], "glossary": {}})
    assert mixed.status_code == 422 and "a list of texts (item 1, counted from 0, is the number 5)" in mixed.text
    for wrong, said in (
        ("{", "must be an object of texts or lists of texts, as JSON in a form (it is no JSON of an object): got"),
        ('{"dog": 5}', "as JSON in a form (the term 'dog' has the number 5)"),
        ('{"dog": " "}', "is empty"),
    ):
        refused = upload("a.md", FIRST.encode(), glossary=wrong)
        assert refused.status_code == 422 and said in refused.text and "/glossary" in refused.text
    for name, content, status, said in (
        ("a.srt", b"1\nno times\n", 422, "a.srt:2: a subtitle must have a line of times"),
        ("a.docx", b"\xd0\xcf\x11\xe0" + bytes(600), 422, "a.docx: is encrypted"),
        ("a.pdf", b"%PDF", 422, "a.pdf: a document must end in .srt"),
    ):
        refused = upload(name, content)
        assert refused.status_code == status and said in refused.text
    assert httpx.post(service.url + "/translate_file", data={"target": "pt"}).status_code == 415
    two = httpx.post(service.url + "/translate_file", data={"target": "pt"}, files=[("file", ("a.md", b"a"))] * 2)
    assert two.status_code == 422 and two.json()["error"] == "`file` must be one file with its name: got 2"
    no_file = httpx.post(service.url + "/translate_file", files={"target": (None, b"pt")})
    assert no_file.status_code == 422 and "`file` must be one file with its name: got none" in no_file.text

"""The page of the routes, `GET /docs`, in a real browser: quiet, complete, and able to send requests."""

import json
from typing import Any

import pytest

from http_service import SOURCES, Served, served


class Page:
    """The page of a service in the browser, with all it asked of the network and all it complained of."""

    def __init__(self, browser: Any, service: Served, width: int = 1100) -> None:
        self.page, self.requests, self.complaints = browser.new_page(viewport={"width": width, "height": 800}), [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(service.url + "/docs")

    def send(self, path: str, body: Any = None, *, method: str = "POST", name: str = "") -> tuple[str, str]:
        """The status line and the answer, with a body and a name in the path in place of the examples."""
        route = self.page.locator(f"details[data-path='{path}'][data-method={method}]")
        if not route.evaluate("element => element.open"):
            route.locator("summary").click()
        if name:
            route.locator("input").fill(name)
        if body is not None:
            route.locator("textarea").fill(body if isinstance(body, str) else json.dumps(body))
        route.locator("pre").evaluate("element => element.textContent = ''")
        route.get_by_role("button", name="Send").click()
        answered = "element => element.textContent && element.textContent != '...'"
        self.page.wait_for_function(answered, arg=route.locator("pre").element_handle())
        first, _, rest = str(route.locator("pre").text_content()).partition("\n")
        return first, rest


def test_the_page_shows_the_routes_and_sends_requests(browser: Any, service: Served) -> None:
    seen = Page(browser, service)
    paths = service.get("/openapi.json").json()["paths"]
    shown = seen.page.locator("summary code").all_text_contents()
    assert sorted(shown) == sorted(path for path, operations in paths.items() for _ in operations)
    assert seen.page.locator("summary").first.is_visible() and not seen.page.locator("textarea").first.is_visible()
    models = {row["id"] for row in service.get("/v1/models").json()["data"]}
    status, answer = seen.send("/v1/models", method="GET")
    assert status == "200 OK" and {row["id"] for row in json.loads(answer)["data"]} == models
    body = {"model": "lm", "prompt": SOURCES[0], "max_tokens": 4, "temperature": 0}
    status, answer = seen.send("/v1/completions", body)
    same = service.post("/v1/completions", body).json()["choices"]
    assert status == "200 OK" and json.loads(answer)["choices"] == same
    assert seen.send("/translate", {"q": "a", "source": "en", "target": "pt"})[0] == "200 OK"
    status, answer = seen.send("/models/{id}", {"inputs": SOURCES[0]}, name="en-pt")
    assert status == "200 OK" and "translation_text" in json.loads(answer)[0]
    assert not seen.complaints and all(url.startswith(service.url) for url in seen.requests)
    status, answer = seen.send("/v1/completions", "{")
    assert status.startswith("400") and "error" in json.loads(answer)


def test_the_examples_of_the_page_are_bodies_that_the_service_takes(browser: Any, service: Served) -> None:
    """No field of an example is missing, unknown, of the wrong type or out of range (422)."""
    seen = Page(browser, service)
    routes = seen.page.locator("details[data-path]")
    note = {"name": "a.md", "mimeType": "text/markdown", "buffer": b"# `code`\n"}
    seen.page.locator("details[data-path='/translate_file'] input").set_input_files(note)
    routes.evaluate_all("all => all.forEach(one => one.querySelector('button').click())")  # all at once
    answers = "[...document.querySelectorAll('details[data-path] pre')].map(one => one.textContent)"
    seen.page.wait_for_function(f"() => {answers}.every(said => said && said !== '...')")
    said = [*zip(routes.evaluate_all("all => all.map(one => one.dataset.path)"), seen.page.evaluate(answers))]
    assert len(said) > 20
    assert dict(said)["/translate_file"] == "200 OK\n# `code`\n"  # it was sent as JSON, and answered 415
    assert not [one for one in said if one[1].startswith(("415", "422", "5")) or not one[1][0].isdigit()]


@pytest.mark.parametrize("width", [360, 1100])
def test_the_page_fits_its_window(browser: Any, service: Served, width: int) -> None:
    seen = Page(browser, service, width)
    seen.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_key_of_the_page_is_sent(browser: Any, service: Served) -> None:
    with served([str(service.folders["lm"]), "--api-key", "secret-of-the-page"]) as keyed:
        seen = Page(browser, keyed)
        assert seen.send("/v1/models", method="GET")[0].startswith("401")
        seen.page.locator("#key").fill("secret-of-the-page")
        status, answer = seen.send("/v1/models", method="GET")
        assert status == "200 OK" and '"lm"' in answer

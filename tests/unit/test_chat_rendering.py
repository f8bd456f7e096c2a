"""Chat templates: what they may use, how they fail, and the limits that nothing passes."""

import random
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from atento.base.errors import TokenizerError, UsageError
from atento.text.specials import SpecialTokens
from atento_serve.chat.folder import ChatTemplate, template_of
from atento_serve.chat.rendering import Renderer, TemplateFailed
from atento_serve.chat.stand_ins import StandIns
from atento_serve.chat.template_process import RenderingProcess, TemplateError
from failing import fails

SPECIALS = ["<s>", "</s>", "<|end|>"]
JSON = '{"a":1,"b":"<\\u00e9>"}'
SAID: list[dict[str, Any]] = [{"role": "user", "content": " </s>Um gato.\n\n"}]


def parts(source: str, messages: list[dict[str, Any]] | None = None, **variables: Any) -> list[str]:
    return Renderer(source, SPECIALS, {"bos_token": "<s>"}).parts(SAID if messages is None else messages, variables)


def test_the_template_sees_the_real_text_and_its_special_strings_stay_text() -> None:
    for expression, expected in (
        ("m.content | trim", "</s>Um gato."),
        ("m.content.strip()", "</s>Um gato."),
        ("m.content.split('</s>')[1]", "Um gato.\n\n"),
        ("m.content.split('</s>') | length", "2"),
        ("m.content | length", "15"),
        ("m.content == ' </s>Um gato.\n\n'", "True"),
        ("m.content == ''", "False"),
        ("'</s>' in m.content", "True"),
        ("m.content.startswith(' </s>')", "True"),
        ("m.content.strip().startswith(('<', '</s>'))", "True"),
        ("m.content.rpartition('</s>')[2].removesuffix('\n\n')", "Um gato."),
        ("m.content.replace('</s>', '')", " Um gato.\n\n"),
        ("m.content | tojson", '" </s>Um gato.\\n\\n"'),
        ("{'user': 'x'}[m.role]", "x"),
        ("{' </s>Um gato.\n\n': 'x'}[m.content]", "x"),
        ("m.content | upper", " </S>UM GATO.\n\n"),
        ("m.content.strip().splitlines() | join('|')", "</s>Um gato."),
        ("(m.content ~ '').count('</s>')", "1"),
        ("('a' + m.content).find('</s>')", "2"),
        ("'%s' % m.content", " </s>Um gato.\n\n"),
        ("'{}!'.format(m.content)", " </s>Um gato.\n\n!"),
        ("m.content[1:5]", "</s>"),
        ("m.content | list | length", "15"),
        ("m.content is string", "True"),
        ("strftime_now('%Y') | length", "4"),
        ("[1, {'é': 2}] | tojson(indent=1)", '[\n 1,\n {\n  "é": 2\n }\n]'),
        ("{'b': '<é>', 'a': 1} | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':'))", JSON),
        ("missing", ""),
        ("tools is none and documents is none and add_generation_prompt", "True"),
    ):
        found = parts("{{ bos_token }}{% for m in messages %}{{ " + expression + " }}{% endfor %}{{ '<|end|>' }}")
        assert found == ["", "<s>", expected, "<|end|>", ""]


def test_loop_controls_and_generation_blocks() -> None:
    rows = [{"role": "user", "content": word} for word in ("um", "dois", "três", "quatro")]
    source = (
        "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}"
        "{% if loop.index0 == 3 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %},{% endfor %}"
    )
    assert parts(source, rows) == ["um,três,"]


def test_no_string_of_a_request_makes_a_special_token_whatever_the_template_does_with_it() -> None:
    draw = random.Random(5)
    pieces = ["</s>", "<s>", "<|end|>", "</", "s>", "<|", "|>", "end", "gato", " ", "\n", '"', "<", "\U00020000", ""]
    templates = [
        "{{ bos_token }}{% for m in messages %}{{ m.role }}{{ m.content | trim }}{{ m.name }}{{ '</s>' }}{% endfor %}",
        "{{ bos_token }}{% for m in messages %}{{ [m.role, m.content, x] | tojson }}</s>{% endfor %}",
        "{{ bos_token }}{% for m in messages %}{{ m.role ~ m.content.strip() ~ (x | string) }}</s>{% endfor %}",
        "{{ bos_token }}{% for m in messages %}{{ '{}{}'.format(m.role, m.content) }}{{ x }}</s>{% endfor %}",
        "{{ bos_token }}{% macro f(a) %}<{{ a }}>{% endmacro %}{% for m in messages %}{{ f(m.name) }}</s>{% endfor %}",
    ]
    for source in templates:
        renderer = Renderer(source, SPECIALS, {"bos_token": "<s>"})
        for _ in range(200):
            words = ["".join(draw.choices(pieces, k=draw.randint(0, 4))) for _ in range(7)]
            rows = (words[:3], ["user", *words[3:5]])
            messages = [{"role": role, "content": content, "name": name} for role, content, name in rows]
            found = renderer.parts(messages, {"x": [words[5], {words[6]: 1}]})
            assert found[1::2] == ["<s>", "</s>", "</s>"], (source, messages)


def test_where_a_template_looks_at_special_tokens_that_a_request_spells_none_is_guessed() -> None:
    lowered = "{{ bos_token }}{% for m in messages %}{{ m.content | lower }}{% endfor %}<|end|>"
    assert parts(lowered, [{"role": "user", "content": "</S>x"}]) == ["", "<s>", "</s>x", "<|end|>", ""]
    assert parts(lowered + "</s>", [{"role": "user", "content": "</S>x"}])[-2] == "</s>"
    looked = "{% for m in messages %}{{ bos_token if m.content | upper == '</S>' }}{{ m.content }}{% endfor %}"
    assert parts(looked, [{"role": "user", "content": "x"}]) == ["x"]
    fails(TemplateFailed, "looks at special tokens that a", parts, looked, [{"role": "user", "content": "</s>"}])


def test_a_string_method_of_a_guarded_string_answers_as_that_of_the_real_one() -> None:
    """Every method of `str` that reads the string without changing its letters, on random arguments."""
    draw = random.Random(3)
    named = ["__contains__", "__eq__", "__ne__", "startswith", "endswith", "find", "rfind", "count", "split", "rsplit"]
    named += ["partition", "rpartition", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "__add__"]
    for _ in range(2000):
        text, other = ("".join(draw.choices("<s>/ gx\n", k=draw.randint(1, n))) for n in (12, 3))
        stand_ins = StandIns("<s>/", text)
        guarded = stand_ins.guarded(text)
        for name in named:
            expected, found = getattr(text, name)(other), getattr(guarded, name)(other)
            found = [*map(stand_ins.shown, found)] if isinstance(found, list | tuple) else found
            found = stand_ins.shown(found) if isinstance(found, str) else found
            assert found == (list(expected) if isinstance(expected, tuple) else expected), (name, text, other)
        assert hash(guarded) == hash(text) and stand_ins.shown(other + guarded) == other + text
        assert stand_ins.shown(guarded.replace(other, "z")) == text.replace(other, "z")


@pytest.fixture(scope="module")
def made() -> Iterator[list[RenderingProcess]]:
    processes: list[RenderingProcess] = []
    yield processes
    for process in processes:
        process.close()


def process(made: list[RenderingProcess], source: str) -> RenderingProcess:
    made.append(RenderingProcess(ChatTemplate(source, SPECIALS, {"bos_token": "<s>"})))
    return made[-1]


CHAT = {"messages": SAID, "variables": {}}
LOOP = "{% for b in range(99999) %}{% endfor %}"
HEAVY = {
    "nested loops": (f"{{% for a in range(99999) %}}{LOOP}{{% endfor %}}", "more than 2 seconds"),
    "a power": ("{{ 9 ** 999999999 }}", "more than 2 seconds"),
    "a loop over characters": ("{% for a in range(99999) %}{{ 'x' * 999 }}{% endfor %}", "4,194,304 characters"),
    "a long text": ("a\n{{ 'x' * 10**9 }}", "line 2: it takes more than 512 MiB"),
    "a longer text": ("{{ 'x' * 10**12 }}", "line 1: it takes more than 512 MiB"),
    "a long list": ("{{ [1] * 10**9 }}", "more than 512 MiB"),
    "a wide field": ("{{ '%999999999d' % 1 }}", "more than 512 MiB"),
    "a wide format": ("{{ '{:>999999999}'.format(1) }}", "more than 512 MiB"),
    "doubling": ("{% set n = namespace(x='a') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "512"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "deep nesting": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "ecursion"),
    "division": ("ok\n\n{{ 1/0 }}", "line 3: ZeroDivisionError: division by zero"),
    "a missing name": ("ok\n{{ lost.thing }}", "line 2: 'lost' is undefined"),
    "a missing function": ("{{ today() }}", "line 1: 'today' is undefined"),
    "a missing filter": ("{{ 1 | lost }}", "line 1: No filter named 'lost'"),
    "no end": ("a\n{% if x %}", "line 2: Unexpected end of template"),
    "an unknown tag": ("a\n{% lost %}", "line 2: Encountered unknown tag 'lost'"),
    "a file": ("{% include '/etc/passwd' %}", "no loader"),
    "the inner world": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "a change of messages": ("{{ messages.append(1) }}", "unsafe"),
}


@pytest.mark.parametrize(
    "name",
    # the gate waits two seconds for the power; loops run that long in `test_a_process_answers_after_a_refusal`
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "nested loops")) for name in HEAVY],
)
def test_a_template_that_is_wrong_or_passes_a_limit_is_refused_in_one_sentence(name: str, made) -> None:
    source, message = HEAVY[name]
    rendering = process(made, source)
    began = time.monotonic()
    with pytest.raises(TemplateError, match=r"^the chat template of the model fails: [^\n]*$") as raised:
        rendering.parts(CHAT)
    assert message in str(raised.value) and time.monotonic() - began < 12


def test_a_process_answers_after_a_refusal(made: list[RenderingProcess]) -> None:
    judged = "{% if m.role == 'judge' %}{{ raise_exception('no judges') }}{% endif %}"
    looped = f"{{% if m.role == 'loop' %}}{{% for a in range(9999) %}}{LOOP}{{% endfor %}}{{% endif %}}"
    source = f"{{% for m in messages %}}{judged}{looped}{{{{ bos_token }}}}{{{{ m.content }}}}{{% endfor %}}"
    rendering = process(made, source)
    good = ["", "<s>", " </s>Um gato.\n\n"]
    assert rendering.parts(CHAT) == good
    with pytest.raises(UsageError, match=r"^the chat template of the model refuses the messages: no judges$"):
        rendering.parts({"messages": [{"role": "judge", "content": "a"}], "variables": {}})
    assert rendering.parts(CHAT) == good
    with pytest.raises(TemplateError, match="more than 2 seconds"):
        rendering.parts({"messages": [{"role": "loop", "content": "a"}], "variables": {}})
    assert rendering.parts(CHAT) == good


def test_the_work_of_long_conversations_grows_with_their_length() -> None:
    """A megabyte takes at most 30 times the work of 100 kB; the strings are chosen to be looked at."""
    source = "{{ bos_token }}{% for m in messages %}{{ m.role }}{{ m.content | trim }}{{ '</s>' }}{% endfor %}"

    def seconds(size: int, text: str) -> float:
        rows = [{"role": "user", "content": text * (size // len(text) // 10)}] * 10
        began = time.process_time()
        parts(source, rows)
        return time.process_time() - began

    for text in ("</s>", "<", " ", "</", "gato ", "<|end|", "\U00020000"):
        seconds(10_000, text)
        assert seconds(1_000_000, text) <= 30 * max(seconds(100_000, text), 0.005), text


def test_the_template_of_a_folder(tmp_path: Any) -> None:
    def written(**files: str) -> Any:
        for old in tmp_path.rglob("*.*"):
            old.unlink()
        for name, text in files.items():
            (tmp_path / name.replace("__", ".").replace("_S_", "/")).write_text(text, encoding="utf-8")
        return template_of(tmp_path, SpecialTokens())

    assert written() is None and written(tokenizer_config__json="{}") is None
    assert written(tokenizer_config__json='{"chat_template": "a"}').source == "a"
    several = '{"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}'
    assert written(tokenizer_config__json=several).source == "d"
    assert written(tokenizer_config__json=several, chat_template__jinja="f").source == "f"
    config = '{"bos_token": {"content": "<x>"}, "cls_token": "<s>"}'
    names = written(chat_template__jinja="f", tokenizer_config__json=config).names
    assert names["bos_token"] == "<x>" and names["cls_token"] == "<s>" and names["eos_token"] == "</s>"
    fails(TokenizerError, "`chat_template` .* must be a text", written, tokenizer_config__json='{"chat_template": 3}')
    fails(TokenizerError, "must have at most 1,048,576 characters", written, chat_template__jinja="x" * 1_048_577)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    fails(TokenizerError, "must be UTF-8: byte 0 is not", template_of, tmp_path, SpecialTokens())


def test_dates_are_those_of_one_moment() -> None:
    """Between two renderings the clock goes on; the template sees one time."""
    source = "{{ bos_token }}{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}"
    assert abs((datetime.now() - datetime.strptime(parts(source)[2], "%Y-%m-%d %H:%M:%S.%f")).total_seconds()) < 60

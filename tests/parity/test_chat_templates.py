"""Conversations as ids: those of `apply_chat_template`, and special tokens where the template writes them alone."""

# ruff: noqa: E501
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from atento.text.tokenizer import Tokenizer
from atento_serve.chat.conversations import PlacedSpecials
from atento_serve.chat.folder import template_of
from atento_serve.chat.rendering import Renderer
from released_folders import TEXTS, trained

BYTES = [f"<0x{number:02X}>" for number in range(256)]

# One line of blocks, then what they write: headers and trimmed contents (as Llama 3)
HEADERS = """\
{{- bos_token }}
{%- if not date is defined %}{%- set date = '26 Jul 2024' %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set first = messages[0]['content'] | trim %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set first = '' %}
    {%- set rest = messages %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + date + '\\n\\n' + first + '<|eot_id|>' }}
{%- for message in rest %}
    {%- if not (message.role == 'ipython' or message.role == 'tool') %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}{{ message.content | tojson }}{{ '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

# the system message inside the first turn, strip() and turns that must alternate (as Llama 2)
INSTRUCTIONS = """\
{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}{% set system = messages[0]['content'] %}
{% else %}{% set turns = messages %}{% set system = false %}{% endif %}
{% for message in turns %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{% if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}
{% else %}{% set content = message['content'] %}{% endif %}
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}
{% endfor %}
"""

# a namespace that counts, the last user message, lengths, continue and break (as Mistral)
COUNTED = """\
{%- set ns = namespace(index=0, last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- if message.content | length > 10000 %}{% break %}{% endif %}
    {%- if message.content == '' %}{{ '[EMPTY]' }}{% endif %}
    {%- if message.role == 'user' %}
        {%- if loop.index0 == ns.last and messages[0].role == 'system' %}
            {{- '[INST]' ~ messages[0].content.strip() ~ '\\n\\n' ~ message.content.strip() ~ '[/INST]' }}
        {%- else %}{{ '[INST]' ~ message.content.strip() ~ '[/INST]' }}{% endif %}
    {%- else %}{{ message.content.strip() ~ eos_token }}{% endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
"""

# roles by other names, a macro, a generation block (as Gemma)
TURNS = """\
{% macro turn(role, text) %}{{ '<start_of_turn>' ~ role ~ '\\n' }}{{ text | trim }}{{ '<end_of_turn>\\n' }}{% endmacro %}
{{ bos_token }}
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{% generation %}{{ turn('model', message['content']) }}{% endgeneration %}
{%- else -%}
{{ turn(message['role'], message['content']) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

# thoughts that are split off earlier answers, seen from the end (as Qwen 3)
THOUGHTS = """\
{%- set ns = namespace(last=messages | length - 1, looking=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.looking and message.role == 'user' and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.looking = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}{%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

# a date, tools and documents that may be there, pieces that end lines (as Granite)
DATED = """\
{%- if messages[0].role == 'system' %}{%- set system = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}{%- set system = 'Today is ' + strftime_now('%B %d, %Y') + '.' %}{%- set rest = messages %}{%- endif %}
{%- if tools %}{%- set system = system + ' Tools: ' + tools | tojson(indent=4) %}{%- endif %}
{%- if documents %}{%- for document in documents %}{%- set system = system + document.text %}{%- endfor %}{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system + '<|end_of_text|>\\n' }}
{%- for message in rest %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}
"""

# tokens for each role, replaced and quoted text, a joined list (as Command R)
NAMED_TURNS = """\
{{ bos_token }}{% set roles = {'user': 'USER', 'assistant': 'CHATBOT', 'system': 'SYSTEM'} %}
{% for message in messages %}
{{ '<|START_OF_TURN_TOKEN|><|' ~ roles.get(message.role, 'SYSTEM') ~ '_TOKEN|>' ~ (message.content.strip().splitlines() | join('\\n')) ~ '<|END_OF_TURN_TOKEN|>' }}
{%- if message.content.strip().replace('\\n', ' ').split(' ') | length > 3 %}{{ {'long': message.content, 'first': message.content[:1]} | tojson }}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}
"""

# tokens made of the roles (as Phi)
ROLE_TOKENS = """\
{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}
"""

_SAID = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
_NAMED = ["<BOS_TOKEN>"]
_NAMED += [f"<|{name}_TOKEN|>" for name in ("END_OF_TURN", "START_OF_TURN", "USER", "CHATBOT", "SYSTEM")]
SPECIALS = {
    "headers": (HEADERS, ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]),
    "instructions": (INSTRUCTIONS, ["<s>", "</s>"]),
    "counted": (COUNTED, ["<s>", "</s>", "[INST]", "[/INST]"]),
    "turns": (TURNS, ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]),
    "thoughts": (THOUGHTS, _SAID),
    "special-thoughts": (THOUGHTS, [*_SAID, "<think>", "</think>"]),
    "dated": (DATED, ["<|end_of_text|>", "<|pad|>", "<|start_of_role|>", "<|end_of_role|>"]),
    "named-turns": (NAMED_TURNS, _NAMED),
    "role-tokens": (ROLE_TOKENS, ["<s>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]),
}
"""Layout of a conversation -> its template, its special tokens: the first is BOS, the second EOS."""
PIECES = {"instructions": "prepended", "counted": "first", "turns": "replaced"}  # the kind of tokenizer of each
PLAIN_ADDED = {"thoughts": ["<think>", "</think>", "<tool_response>", "</tool_response>"]}  # added, but not special
# of templates that join tokens
RENAMED = {"named-turns": {"_TOKEN": "_NAMED"}, "role-tokens": {"<|": "<!", "|>": "!>", "<s>": "<!s!>"}}
READ = {"special-thoughts": ["<think>", "</think>"]}  # strings that a template looks for, as `'...'`


def write_folder(name: str, folder: Path, *, renamed: bool = False) -> Path:
    """A tokenizer with the template of a layout; `renamed`: with other special tokens, there and in the template."""
    template, specials = SPECIALS[name]
    changes = RENAMED.get(name, {text: f"<!{number}!>" for number, text in enumerate(specials)}) if renamed else {}
    backend = _backend(PIECES.get(name), specials)
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in specials])
    backend.add_tokens([AddedToken(text, normalized=False) for text in PLAIN_ADDED.get(name, ())])
    definition = json.loads(backend.to_str())
    template = _changed(template, changes, READ.get(name, ()))
    vocabulary = definition["model"]["vocab"]
    for row in definition["added_tokens"]:
        if (old := row["content"]) in specials:
            row["content"] = _changed(old, changes)
            if old in vocabulary:
                vocabulary[row["content"]] = vocabulary.pop(old)
    specials = [_changed(text, changes) for text in specials]
    made = Library.from_str(json.dumps(definition))
    ends = {"bos_token": specials[0], "eos_token": specials[1]}
    PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template, **ends).save_pretrained(folder)
    return folder


def _changed(text: str, changes: Mapping[str, str], kept: Sequence[str] = ()) -> str:
    for number, quoted in enumerate(kept):
        text = text.replace(f"'{quoted}'", f"\0{number}\0")
    for old, new in changes.items():
        text = text.replace(old, new)
    for number, quoted in enumerate(kept):
        text = text.replace(f"\0{number}\0", f"'{quoted}'")
    return text


def _backend(kind: str | None, specials: list[str]) -> Any:
    """Pieces of bytes, or as SentencePiece has them, a space before the first word, before every part, or nowhere."""
    if kind is None:
        options = {"special_tokens": specials, "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
        trainer, level = trainers.BpeTrainer(vocab_size=500, show_progress=False, **options), pre_tokenizers.ByteLevel
        return trained(models.BPE(), trainer, pre_tokenizer=level(add_prefix_space=False), decoder=decoders.ByteLevel())
    parts = {"decoder": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])}
    if kind == "first":
        parts["pre_tokenizer"] = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        prepended = [normalizers.Prepend("▁")] if kind == "prepended" else []
        parts["normalizer"] = normalizers.Sequence([*prepended, normalizers.Replace(" ", "▁")])
    front = ["<unk>", *specials, *BYTES]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=front, show_progress=False, max_token_length=8)
    model = models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    definition = json.loads(trained(model, trainer, **parts).to_str())
    definition["added_tokens"] = [row for row in definition["added_tokens"] if row["content"] not in BYTES]
    return Library.from_str(json.dumps(definition))


_BLANKS = ("", " ", "  ", "\n", "\n\n", "\t", "\u00a0", "\r\n")
_MARKS = ('"', "'", "\\", "{{ x }}", "{% for %}", "<", "|>", "&amp;", "ação", "日本語", "🙂", "¿?", "[", "]", "</", "#")
_MARKS += ("\U000f0041",)


def conversations(name: str, count: int, seed: int, *, spelling: bool) -> Iterator[list[dict[str, str]]]:
    """Conversations with blanks, marks and empty messages; `spelling`: they spell special tokens too."""
    draw = random.Random(f"{name} {seed}")
    specials = [*SPECIALS[name][1], *PLAIN_ADDED.get(name, ())]

    def text() -> str:
        parts = [draw.choice(TEXTS), draw.choice(_MARKS), draw.choice(_BLANKS)]
        if spelling:
            parts += draw.choices(specials, k=draw.randint(1, 3))
        words = draw.sample(parts, draw.randint(0, len(parts)))
        return draw.choice(_BLANKS) + draw.choice(("", " ")).join(words) + draw.choice(_BLANKS)

    for _ in range(count):
        roles = ["system"] if draw.random() < 0.4 else []
        roles += ["user", "assistant"] * draw.randint(0, 2) + ["user"]
        rows = [{"role": role, "content": text()} for role in roles]
        for row in rows:
            if row["role"] == "assistant" and "thoughts" in name and draw.random() < 0.6:
                row["content"] = f"<think>\n{draw.choice(TEXTS)}\n</think>\n\n" + row["content"]
        yield rows


def variables(name: str) -> dict[str, Any]:
    return {"thoughts": {"enable_thinking": False}, "headers": {"date": "1 May"}}.get(name, {})


COUNT = 200


class Ours:
    """The ids of conversations, rendered in this process."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.load(folder)
        template = template_of(folder, self.tokenizer.specials)
        assert template is not None
        self.renderer = Renderer(template.source, template.specials, template.names)
        self.placed = PlacedSpecials(self.tokenizer)

    def ids(self, messages: list[dict[str, Any]], **given: Any) -> list[int]:
        return self.placed.encode(self.renderer.parts(messages, given))


@pytest.mark.parametrize("name", SPECIALS)
def test_ids_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    ours, reference = Ours(write_folder(name, tmp_path)), AutoTokenizer.from_pretrained(tmp_path)
    given, seen = variables(name), set()
    for messages in conversations(name, COUNT, 1, spelling=False):
        expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **given)
        assert ours.ids(messages, **given) == expected, messages
        seen.add(tuple(expected))
    assert len(seen) > COUNT // 2


@pytest.mark.parametrize("name", SPECIALS)
def test_what_a_message_spells_is_text(name: str, tmp_path: Path) -> None:
    """The reference has other strings for the special tokens, in its tokenizer and in its template."""
    ours = Ours(write_folder(name, tmp_path / "ours"))
    reference = AutoTokenizer.from_pretrained(write_folder(name, tmp_path / "theirs", renamed=True))
    given = variables(name)
    for messages in conversations(name, COUNT, 2, spelling=True):
        expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **given)
        assert ours.ids(messages, **given) == expected, messages


ROLES = ("ipython", "judge", "a b", "user<|end_header_id|>", "<s>", "end", "<|end|>", "", "USER_TOKEN|><|CHATBOT")


@pytest.mark.parametrize("name", ["headers", "turns", "thoughts", "dated", "named-turns"])
def test_a_role_is_a_word_and_makes_no_special_token(name: str, tmp_path: Path) -> None:
    ours = Ours(write_folder(name, tmp_path / "ours"))
    reference = AutoTokenizer.from_pretrained(write_folder(name, tmp_path / "theirs", renamed=True))
    for role in (*ROLES, *SPECIALS[name][1]):
        messages = [{"role": "user", "content": "o gato"}, {"role": role, "content": " x\n"}]
        expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert ours.ids(messages) == expected, role


def test_a_role_makes_no_special_token_where_the_template_makes_tokens_of_roles(tmp_path: Path) -> None:
    ours = Ours(write_folder("role-tokens", tmp_path))
    end, user, assistant = (ours.tokenizer.specials.ids[text] for text in ("<|end|>", "<|user|>", "<|assistant|>"))
    for role in (*ROLES, *SPECIALS["role-tokens"][1]):
        ids = ours.ids([{"role": "user", "content": "o gato"}, {"role": role, "content": " x\n"}])
        assert [token for token in ids if token in ours.tokenizer.specials.ids.values()] == [user, end, end, assistant]


@pytest.mark.parametrize("name", ["dated", "thoughts"])
def test_variables_tools_and_documents_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    ours, reference = Ours(write_folder(name, tmp_path)), AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "system", "content": "Olá"}, {"role": "user", "content": "o gato"}]
    function = {"name": "soma", "parameters": {"type": "object", "é": [1, 2.5, None, True]}}
    thinking: list[dict[str, Any]] = [{"enable_thinking": True}, {"enable_thinking": False, "tools": []}]
    tools = {"tools": [{"type": "function", "function": function}]}
    for given in ({}, tools, {"documents": [{"title": "a", "text": "um rato"}]}, *thinking):
        expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **given)
        assert ours.ids(messages, **given) == expected, given
    spelled = "".join(SPECIALS[name][1])
    documents = [{"title": spelled, "text": spelled}]
    found = ours.ids(messages, tools=[{"type": spelled, spelled: spelled}], documents=documents)
    specials = set(ours.tokenizer.specials.ids.values())
    plain = ours.ids(messages)
    assert [token for token in found if token in specials] == [token for token in plain if token in specials]

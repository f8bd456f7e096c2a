"""Tiny tokenizers and chat templates of our own writing, with the constructs that released ones use."""

# ruff: noqa: E501
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from atento_world import write

TEXTS = [text for pair in write("train", 60) for text in (pair.source, pair.target)]
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
_NAMED = [
    "<BOS_TOKEN>",
    *(f"<|{name}_TOKEN|>" for name in ("END_OF_TURN", "START_OF_TURN", "USER", "CHATBOT", "SYSTEM")),
]
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
    backend = _byte_level(specials) if name not in PIECES else _pieces(PIECES[name], specials)
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in specials])
    backend.add_tokens([AddedToken(text, normalized=False) for text in PLAIN_ADDED.get(name, ())])
    definition = json.loads(backend.to_str())
    template = _changed(template, changes, READ.get(name, ()))
    vocabulary = definition["model"]["vocab"]
    for row in definition["added_tokens"]:
        if row["content"] in specials:
            new = _changed(row["content"], changes)
            if row["content"] in vocabulary:
                vocabulary[new] = vocabulary.pop(row["content"])
            row["content"] = new
    specials = [_changed(text, changes) for text in specials]
    made = Tokenizer.from_str(json.dumps(definition))
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


def _byte_level(specials: list[str]) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    options = {"special_tokens": specials, "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    backend.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=500, show_progress=False, **options))
    return backend


def _pieces(kind: str, specials: list[str]) -> Tokenizer:
    """Pieces as SentencePiece has them, with bytes; a space before the first word, before every part, or nowhere."""
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    replaced = normalizers.Replace(" ", "▁")
    if kind == "first":
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        prepended = [normalizers.Prepend("▁")] if kind == "prepended" else []
        backend.normalizer = normalizers.Sequence([*prepended, replaced])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    front = ["<unk>", *specials, *BYTES]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=front, show_progress=False, max_token_length=8)
    backend.train_from_iterator(TEXTS, trainer)
    definition = json.loads(backend.to_str())
    definition["added_tokens"] = [row for row in definition["added_tokens"] if row["content"] not in BYTES]
    return Tokenizer.from_str(json.dumps(definition))


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
    """Variables of a template beside the messages."""
    return {"thoughts": {"enable_thinking": False}, "headers": {"date": "1 May"}}.get(name, {})

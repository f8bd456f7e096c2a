"""Conversations as ids: those of `apply_chat_template`, and special tokens where the template writes them alone."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from atento.text.tokenizer import Tokenizer
from atento_serve.chat.conversations import PlacedSpecials
from atento_serve.chat.folder import template_of
from atento_serve.chat.rendering import Renderer
from chat_folders import SPECIALS, conversations, variables, write_folder

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

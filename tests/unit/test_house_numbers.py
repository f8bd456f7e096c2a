"""The size of the house in numbers: each is counted, printed, and no larger than in the table; `pytest -s` shows them.

A number that has become smaller is written down here. One that must grow is argued for in the change that raises it.
The files of a thing are those in which a function is entered while it is done once, on tiny examples.
"""

import ast
import gc
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import atento
from atento.attention import attend
from atento.decoding import Beam, generate
from test_house_rules import FILES, HOUSES, ROOT, Function, forgotten, length, name_of, room_of, trees  # noqa: F401

MOST: dict[str, float] = {
    "rooms": 36,
    "files over 400 lines": 0,
    "functions of over 60 lines of code outside the commands": 0,
    "parameters of a function outside the commands": 12,
    "share of files whose name another file of their house has": 0.0028,  # 2 of 732
    "helpers called once": 830,  # functions whose name stands nowhere else but in one call
    "`Any` in 100 lines": 0.54,
    "`type: ignore`": 19,  # one more overload of `classify`: a text is a sequence of texts too
    "files of attention": 3,
    "files of a step of a beam search": 4,
    "files of an update": 26,  # 24, and two where the next plan is made meanwhile
    "files of a training run": 70,  # validation asks what a translation must not change; the form of a table is found
    "files of an evaluation": 55,  # 21 run the network, 7 search, 6 read data and 4 text, 9 know the task, 1 old names
    "files that load a folder of BERT": 35,  # imports by old names, 7 read the tokenizer, 9 build the network
    "files that save one": 23,
}
# The comments that `tokenize` finds, in a twentieth of its time: what stands in quotes is passed over.
TEXT_OR_COMMENT = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"""|"(?:[^"\\\n]|\\.)*"|' r"'(?:[^'\\\n]|\\.)*'|(#[^\n]*)", re.S
)
# Their parameters are those of `generate`, which users type.
OF_GENERATE = ("generate", "stream", "prepare")
LEAST = {"comments in 100 lines": 4.1}


@cache
def counted() -> dict[str, float]:
    texts = {file: file.read_text(encoding="utf-8") for file in FILES}
    lines = sum(text.count("\n") for text in texts.values())
    words = Counter(word for text in texts.values() for word in re.findall(r"\w+", text))
    functions, any_names, once = [], 0, 0
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                any_names += node.id == "Any"
            elif isinstance(node, Function):
                once += words[node.name] == 2 and not node.decorator_list and not node.name.startswith("__")
                if room_of(file) != "atento_cli":
                    functions.append(node)
    houses = {file: name for name, folder in HOUSES.items() for file in FILES if folder in file.parents}
    names = Counter((houses[file], file.name) for file in FILES if file.name != "__init__.py")
    comments = [found[1] for text in texts.values() for found in TEXT_OR_COMMENT.finditer(text) if found[1]]
    ignored = sum("type: ignore" in comment for comment in comments)
    return {
        "rooms": len({room_of(file) for file in FILES}),
        "files over 400 lines": sum(text.count("\n") > 400 for text in texts.values()),
        "functions of over 60 lines of code outside the commands": sum(length(node) > 60 for node in functions),
        "parameters of a function outside the commands": max(
            len(parameters(node)) for node in functions if node.name not in OF_GENERATE
        ),
        "share of files whose name another file of their house has": sum(n for n in names.values() if n > 1)
        / names.total(),
        "helpers called once": once,
        "`Any` in 100 lines": 100 * any_names / lines,
        "`type: ignore`": ignored,
        "comments in 100 lines": 100 * (len(comments) - ignored) / lines,
    }


def parameters(node: Function) -> list[ast.arg]:
    every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return [one for one in every if one.arg not in ("self", "cls")]


@cache
def of_atento(path: str) -> str | None:
    """The name of a file of Atento; None: another file. The profiler asks at each call."""
    return name_of(Path(path)) if path.startswith(str(ROOT)) else None


def entered(call: Callable[[], Any], begin: str = "") -> tuple[set[str], Any]:
    """The files of Atento in which a function is entered during a call, and its result.

    `begin`: the file and function with which counting begins and ends, "training/loop.py:fit"; empty: at once.
    """
    files: set[str] = set()
    inside: list[FrameType] = []

    def seen(frame: FrameType, event: str, argument: object) -> None:
        name = of_atento(frame.f_code.co_filename)
        if name is None or frame.f_code.co_name == "<module>":
            return
        if event == "call" and begin and f"{name}:{frame.f_code.co_name}" == begin:
            inside.append(frame)
        if event == "call" and (inside or not begin):
            files.add(name)
        if event == "return" and frame in inside:
            inside.remove(frame)

    gc.collect()  # or generators of other tests, closed meanwhile, would be entered
    gc.disable()
    sys.setprofile(seen)
    try:
        result = call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return files, result


RECIPE: dict[str, Any] = {
    "task": "translation",
    "data": {"train": {"memory": "train"}, "valid": {"memory": "valid"}, "test": {"memory": "valid"}},
    "network": {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1},
    "tokenizer": {"kind": "word"},
    "training": {"steps": 2, "batch_tokens": 50, "validate_every": 2, "precision": "float32"},
    "decoding": {"beam": 2},
}


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Files that one thing is done with, by the thing."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("walked")
    pairs = [{"source": f"a b {n}", "target": f"c {n} d"} for n in "efgh" * 5]
    found: dict[str, set[str]] = {}
    x = torch.randn(1, 2, 3, 4)
    found["files of attention"], _ = entered(lambda: attend(x, x, x))
    arguments: Any = {"data": {"train": pairs, "valid": pairs[:2]}, "device": "cpu"}
    update, fit = "training/loop.py:take_update", "training/loop.py:fit"
    found["files of an update"], run = entered(lambda: atento.train(RECIPE, out=folder / "a", **arguments), update)
    found["files of a training run"], _ = entered(lambda: atento.train(RECIPE, out=folder / "b", **arguments), fit)
    model = atento.load(run.folder)
    ids = torch.tensor([[5, 6, 7]])
    step = "decoding/beam/beam_search.py:extend"
    found["files of a step of a beam search"], _ = entered(
        lambda: generate(model.network, ids, Beam(2), max_new_tokens=2), step
    )
    found["files of an evaluation"], _ = entered(lambda: atento.evaluate(model, pairs[:2]))
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=20, **sizes)).save_pretrained(folder / "bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]
    (folder / "bert" / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    found["files that load a folder of BERT"], loaded = entered(lambda: atento.load(folder / "bert"))
    found["files that save one"], _ = entered(lambda: loaded.save(folder / "out", layout="huggingface"))
    return found


def test_the_house_is_no_larger_than_it_was(walked: dict[str, set[str]]) -> None:
    numbers = counted() | {name: float(len(files)) for name, files in walked.items()}
    print()
    for name, value in numbers.items():
        print(f"{value:>10,.4g}  {name}  [{MOST.get(name, LEAST.get(name, 0)):,.4g}]")
    rooms = Counter[str]()
    for file in FILES:
        rooms[room_of(file)] += file.read_text(encoding="utf-8").count("\n")
    print(*(f"{lines:>10,}  {room}" for room, lines in sorted(rooms.items())), sep="\n")
    for name, files in walked.items():
        print(name, *sorted(files), sep="\n    ")
    assert numbers.keys() == {*MOST, *LEAST}
    assert {name: value for name, value in numbers.items() if value > MOST.get(name, value)} == {}
    assert all(numbers[name] >= least for name, least in LEAST.items())

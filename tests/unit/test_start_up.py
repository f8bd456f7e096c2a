"""A start without collections of garbage: inside none, afterwards as before, and what was made is left out."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from atento.base.start_up import without_collections


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Collections go on for the other tests, which see what is frozen here again."""
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_inside_nor_at_the_start_of_a_command_and_collections_go_on_afterwards() -> None:
    """Also where a failure ends it; what stays is not looked at again."""
    with without_collections():
        assert not gc.isenabled()
        with without_collections():
            pass
        assert not gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() > 1000
    with pytest.raises(ValueError, match="no model"), without_collections():
        raise ValueError("no model")
    assert gc.isenabled()
    gc.unfreeze()
    gc.disable()
    with without_collections():
        pass
    assert not gc.isenabled() and gc.get_freeze_count() == 0
    # No full collection runs before the model is there, and they run afterwards; some modules are not imported
    program = (
        "import gc, sys\n"
        "full = []\n"
        "gc.callbacks.append(lambda phase, about: full.append(1) if about['generation'] == 2 else None)\n"
        "from atento_cli.options import ModelOptions\n"
        "from atento_cli.main import application\n"
        "application('translate')\n"
        "with ModelOptions(device='cpu').loaded('micro-world-en-pt') as model:\n"
        "    outputs = model.translate(['the cat sleeps'])\n"
        "print(outputs, len(full), gc.isenabled())\n"
        "rooms = ('atento.runs', 'atento.notes', 'atento_cli.convert', 'atento.training.step', 'atento_lab')\n"
        "others = ('sacrebleu', 'captum', 'transformers', 'fastapi', 'torch._dynamo', 'matplotlib', 'pandas')\n"
        "print([name for name in (*rooms, *others) if name in sys.modules])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    shown, modules = ended.stdout.splitlines()
    assert shown.startswith("['O gato dorme'] ") and shown.endswith(" True") and int(shown.split()[-2]) <= 2
    assert modules == "[]"


def test_little_is_imported_before_ctrl_c_ends_a_command_in_silence() -> None:
    """`atento_cli.start` says that it shall; an interrupt before is a traceback of Python."""
    program = (
        "import contextlib, gc, re, signal, sys\n"
        "before = {*sys.modules}\n"
        "import atento_cli.start\n"
        "print(*{*sys.modules} - before)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert {*ended.stdout.split()} == {"atento_cli", "atento_cli.start"}

"""The house rules, held by reading the source: who imports whom and when, what is never named, size, docstrings."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import atento
from atento.config.recipe import COLUMNS
from atento.config.tables import objective as config_objective
from atento.config.tables.head_kinds import HEAD_KINDS
from atento.config.tables.tasks import TASKS, TEXT_TO_TEXT, scored
from atento.data import objectives
from atento.metrics.metric_table import METRICS
from atento.model import Model
from atento.tasks.verb_table import VERBS
from atento.training.losses import LOSSES

ROOT = Path(atento.__file__).parent
HOUSES = {name: ROOT.parent / name for name in ("atento", "atento_cli", "atento_serve", "atento_world", "atento_lab")}
HOUSES["benchmarks"] = ROOT.parents[1] / "benchmarks"
FILES = sorted(file for house in HOUSES.values() for file in house.rglob("*.py"))

LOW = {"base", "config"}
MODELS = LOW | {"attention", "networks"}
SHOWN = MODELS | {"text", "metrics", "data", "inference", "decoding", "storage", "training", "inspection", "released"}
USED = SHOWN | {"tasks", "models", "runs"}
SHELL = ("convert", "corpus", "demo", "labels", "plans", "scale", "search", "suites")  # of `atento_cli`
# room -> what it may import besides itself; the rooms of docs/architecture.md, lowest first, then the other packages
ROOMS: dict[str, set[str]] = {
    "base": set(),
    "config": {"base", "metrics"},
    "text": {"base"},
    "metrics": {"base"},
    "attention": {"base"},
    "networks": LOW | {"attention", "metrics"},
    "inference": MODELS,
    "data": LOW | {"attention", "metrics", "text"},
    "decoding": LOW | {"inference", "metrics"},
    "storage": {"base"},
    "released": MODELS | {"storage"},
    "training": MODELS | {"data", "metrics", "storage"},
    "inspection": MODELS | {"decoding", "storage"},
    "models": MODELS | {"data", "released", "storage", "text"},
    "tasks": SHOWN | {"models"},
    "runs": SHOWN | {"tasks", "models"},
    "recipes": set(),
    "model": USED,
    "retrieval": USED | {"model"},
    "evaluation": USED | {"model"},
    "sklearn": USED | {"model"},
    "notes": LOW | {"attention", "decoding", "metrics", "text"},
    "corpus": LOW | {"data", "metrics", "models", "runs", "storage", "tasks", "text"},
    "scale": LOW | {"corpus", "data", "storage", "text"},
    "plans": MODELS | {"data", "models", "runs", "storage", "text", "training"},
    "search": LOW | {"data", "inspection", "metrics", "runs", "storage", "tasks", "training"},
    "labels": {"base", "config", "data", "metrics", "runs", "search", "tasks", "text"},
    "demo": USED | {"model", "atento_world"},
    "suites": USED | {"model"},
    "convert": USED | {"model"},
    "atento_world": {"base"},
    "atento_serve": USED | {"model", "retrieval"},
    "atento_lab": USED | {"model", "notes", "plans", "search", "suites", "atento_world"},
    "benchmarks": USED | {"model", "notes", "convert", "atento_world", "atento_lab", "atento_serve"},
    "atento_cli": USED | {"model", "evaluation", "retrieval", "atento_world", "atento_serve", "atento_lab"} | {*SHELL},
    "__init__": {"base", "model", "retrieval", "runs", "text", "evaluation", "labels", "search", "suites"},
    "__main__": {"atento_cli"},
}
TORCH_FREE = ("base", "config", "text", "metrics", "atento_world")
WITH_TORCH = ("base/precision.py", "base/splitmix.py")  # but these files

# Our own modules imported inside a function, where the rule allows none: each with its reason.
LATE = {
    # what reads words and documents loads `tokenizers`, without which other files are read
    ("data/files/translation_units.py", "atento.text.documents.catalogues"): "catalogues are read as documents are",
    ("data/records/values.py", "atento.data.records.marked_entities"): "the words of marked texts are of `atento.text`",
    ("data/records/reader.py", "atento_world"): "the micro-world is built when a recipe asks for it",
    ("atento_serve/engine/start_worker.py", "atento_serve.engine"): "it is imported without collections of garbage",
}


@dataclass(frozen=True)
class Import:
    """One import statement: of what, where, and whether in a function or for the type checker alone."""

    file: Path
    line: int
    module: str
    late: bool
    typing: bool

    @property
    def room(self) -> str:
        return room(self.module) if self.module.split(".")[0] in HOUSES else ""


def room(module: str) -> str:
    """The room a dotted name of ours stands in: one of the library's or of the shell's, or another package."""
    house, *parts = module.split(".")
    if house == "atento_cli":
        return parts[0] if parts and parts[0] in SHELL else house
    return house if house != "atento" else parts[0] if parts else "__init__"


@cache
def home_of(file: Path) -> Path:
    return ROOT.parent if ROOT.parent in file.parents else ROOT.parents[1]


@cache  # thousands of imports and calls of a thousand files
def name_of(file: Path) -> str:
    """Its path in the library, or with the name of another package."""
    return file.relative_to(home_of(file)).as_posix().removeprefix("atento/")


@cache
def room_of(file: Path) -> str:
    """Its room; the command that another package adds to the command line is a part of that."""
    if file.name == "command.py":
        return "atento_cli"
    house, _, inner = name_of(file).partition("/")
    part = inner.split("/")[0].removesuffix(".py")
    return part if house == "atento_cli" and part in SHELL else house.removesuffix(".py")


def imports(file: Path, node: ast.AST, late: bool = False, typing: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(file, child.lineno, alias.name, late, typing)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{name_of(file)}:{child.lineno}: imports are written from `atento` on"
            for alias in child.names:
                submodule = f"{child.module}.{alias.name}"
                ours = submodule.split(".")[0] in HOUSES and importlib_finds(submodule)
                yield Import(file, child.lineno, submodule if ours else str(child.module), late, typing)
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from imports(file, child, late or function, typing or checking)


@cache
def importlib_finds(module: str) -> bool:
    house, *parts = module.split(".")
    path = HOUSES[house].joinpath(*parts)
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


@cache  # not on import, which every worker does
def trees() -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in FILES}


@cache
def all_imports() -> list[Import]:
    return [one for file, tree in trees().items() for one in imports(file, tree)]


@cache
def calls() -> list[tuple[Path, ast.Call]]:
    return [(file, node) for file, tree in trees().items() for node in ast.walk(tree) if isinstance(node, ast.Call)]


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """A million nodes of syntax, which every later collection of garbage would look through, for a second each."""
    yield
    for one in (trees, all_imports, calls, graph):
        one.cache_clear()


def at(file: Path, line: int) -> str:
    return f"{name_of(file)}:{line}"


def test_rooms_are_known_import_only_those_below_them_and_stand_so_in_the_design_record() -> None:
    assert len(FILES) > 50 and len(all_imports()) > 200
    assert {room_of(file) for file in FILES} <= ROOMS.keys()
    # so imports that obey it run one way
    done: set[str] = set()
    while done != ROOMS.keys():
        ready = {name for name, may in ROOMS.items() if name not in done and may <= done}
        assert ready, f"in a circle: {sorted(ROOMS.keys() - done)}"
        done |= ready
    page = ROOT.parents[1] / "docs" / "architecture.md"
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \| .+ \| (.+) \|$", page.read_text(encoding="utf-8"), flags=re.M)
    built = {room_of(file) for file in FILES} | {"recipes"}
    assert {name for name, _ in rows} | {"__init__", "__main__"} == built
    above: set[str] = set()
    for name, said in rows:
        may = ROOMS[name] & built
        assert may <= above, name
        assert said == "those above" or set(re.findall(r"`(\w+)`", said)) == may, name
        above.add(name)
    # none imports the root, which loads whatever a user asks for
    wrong = [one for one in all_imports() if one.room not in ("", room_of(one.file), *ROOMS[room_of(one.file)])]
    assert [one for one in wrong if (name_of(one.file), one.module) not in LATE] == []


# Files that are read without the limits of `atento.base.limits`: each with its reason.
READ_DIRECTLY = {
    "base/limits.py": "the limits themselves, and what the system says of its memory",
    "config/reading/recipe_layers.py": "a shipped recipe",
    "inspection/standalone.py": "a shipped script",
    "released/read_layout.py": "a shipped table",
    "atento_cli/completion.py": "our own source",
    "atento_serve/studio/studio_routes.py": "shipped files of the page",
    "data/files/source_lines.py": "it checks the kind of the file itself, and reads under the limits",
    "training/allocator.py": "what the system says of this process",
    "training/replica/health.py": "files that the processes of a run have just written",
    "training/replica/launcher.py": "files that the processes of a run have just written",
    "atento_cli/scale/inputs.py": "a file behind a URL",
    "atento_cli/convert/unpickle.py": "what the system says of this process",
}


def test_files_are_read_under_limits() -> None:
    """A pipe in the place of a file would be waited for, and a huge file would fill the memory."""
    found = set()
    for file, call in calls():
        if isinstance(call.func, ast.Attribute) and room_of(file) not in ("benchmarks", "atento_lab"):
            first = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else "r"
            on_os = isinstance(call.func.value, ast.Name) and call.func.value.id == "os"
            opens = call.func.attr == "open" and str(first).startswith("r") and not on_os
            if opens or call.func.attr in ("read_text", "read_bytes"):
                found.add(name_of(file))
    assert found - {"atento_cli/commands/recipes.py"} == READ_DIRECTLY.keys()  # that one writes


# Files that are written in place and not whole (`storage.atomic_files`): each with its reason.
WRITTEN_IN_PLACE = {
    "storage/atomic_files.py": "the file beside, which replaces the other",
    "text/tokenizer_folder.py": "a new folder, which is moved into its place",
    "atento_cli/convert/engines.py": "as the line above",
    "atento_cli/convert/onnx_engine.py": "as the line above",
    "atento_cli/convert/comet_checkpoint.py": "as the line below",
    "atento_cli/convert/unpickling.py": "a folder of our own, which is deleted",
    "models/peft.py": "a new folder, which is moved into its place",
    "atento_cli/scale/ray_texts.py": "a folder of our own on another machine",
    "training/replica/joined.py": "a status, for the process that waits for it",
    "training/replica/lost.py": "what is known of a process that is gone",
}


def test_files_that_a_user_named_are_written_whole() -> None:
    """A full disk leaves the old file."""
    writes = [file for file, call in calls() if getattr(call.func, "attr", "") in ("write_text", "write_bytes")]
    ours = {name for name in map(name_of, writes) if not name.startswith(("atento_lab/notes/checks/", "benchmarks/"))}
    assert ours == WRITTEN_IN_PLACE.keys()


# calls that one module makes for all, why, and the files that may make them too
ONE_PLACE = {
    ("print", "typer.echo", "typer.secho", "click.echo", "sys.stdout.write", "sys.stderr.write"): (
        "`terminal` keeps control characters of texts from a terminal",
        {*("atento_serve/engine/outbox.py", "atento_serve/api/text_process.py"), "benchmarks/family_side.py"},
    ),
    ("unicodedata.normalize",): (
        "`nfc` takes no quadratic time for long runs of marks",
        {"base/nfc.py", "atento_lab/notes/checks/tokens.py"},  # the second compares the forms of short words
    ),
}


@pytest.mark.parametrize("names", ONE_PLACE, ids=lambda names: names[0])
def test_what_one_module_does_for_all_is_done_there(names: tuple[str, ...]) -> None:
    why, files = ONE_PLACE[names]
    assert {name_of(file) for file, call in calls() if ast.unparse(call.func) in names} == files, why


def module(file: Path) -> str:
    """The dotted name of a file; that of a package is its `__init__.py`."""
    parts = file.relative_to(home_of(file)).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def graph() -> dict[str, frozenset[str]]:
    """Which modules each module imports, for the type checker alone included; `atento` itself loads all it names late.

    A package's imports count as its own, so nobody in a package may import it by its name.
    """
    found: dict[str, set[str]] = {module(file): set() for file in FILES}
    for one in all_imports():
        if one.module in found and not one.late and name_of(one.file) != "__init__.py":
            found[module(one.file)].add(one.module)
    return {name: frozenset(others) for name, others in found.items()}


def in_circles(imports: Mapping[str, frozenset[str]]) -> set[str]:
    """The modules that import one another in a circle, and those that import them."""
    left = dict(imports)
    while ready := frozenset(name for name, others in left.items() if not others):
        left = {name: others - ready for name, others in left.items() if name not in ready}
    return set(left)


def reach(name: str) -> set[str]:
    """The modules that must be read to know all that one uses, itself included."""
    seen: set[str] = set()
    todo = [name]
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            todo += graph()[one]
    return seen


def test_modules_do_not_import_one_another_in_a_circle() -> None:
    assert in_circles(graph()) == set()


@pytest.mark.parametrize(
    "name, most",
    [
        ("atento.attention.multihead", 13),  # with the random numbers of `splitmix.py` and the strips of `blocked.py`
        ("atento.networks.layers", 22),
        ("atento.decoding.beam.beam_search", 11),
        # how threads wait; losses of vectors, rankings, teachers; the sum over processes, options
        ("atento.training.step", 50),
    ],
)
def test_what_must_be_read_to_know_a_file_stays_small(name: str, most: int) -> None:
    assert len(reach(name)) <= most, sorted(reach(name))


# A string that is a task's name and means another thing: what it means, and the files where it does.
OTHER_MEANINGS = {
    "cbow": """an architecture: atento_cli/commands/runs.py atento_lab/notes/checks/objectives.py
        atento_lab/notes/checks/pretraining_drawn.py atento_lab/notes/checks/word_models.py benchmarks/words.py
        config/reading/sizes_by_data.py config/sections/network.py config/sections/recurrent.py
        config/tables/objective.py models/word_models.py networks/build.py""",
    "classification": """a kind of head: benchmarks/family_side.py config/tables/head_kinds.py data/objectives/labels.py
        models/peft.py released/encoder_heads.py""",
    "regression": """a kind of head: config/tables/head_kinds.py data/objectives/labels.py models/peft.py
        released/encoder_heads.py""",
    "tagging": """a kind of head: config/tables/head_kinds.py data/objectives/tags.py models/peft.py
        released/encoder_heads.py""",
    "embedding": """a section of a configuration, a part of networks, and a field of OpenAI's replies:
        atento_cli/convert/onnx_graphs.py atento_lab/notes/checks/diagrams.py atento_lab/notes/checks/families.py
        atento_lab/notes/checks/pretraining_drawn.py atento_lab/studies/recurrence.py
        atento_serve/api/openai_completions.py atento_serve/engine/verbs.py benchmarks/decoding_parts.py
        benchmarks/decoding_sides.py benchmarks/serving_comparison.py config/presets/decoders.py
        config/presets/encoder_decoders.py config/presets/encoders.py config/reading/checks.py
        config/sections/network_parts.py config/tables/task_spec.py models/card.py models/load.py models/migration.py
        models/model_folder.py models/write.py networks/describe.py networks/layers.py networks/recurrent/cells.py
        released/elmo_hdf5.py runs/model_config.py runs/teachers.py tasks/decoding_setup.py tasks/explainable_outputs.py
        tasks/features.py tasks/hard_negatives.py tasks/model_vectors.py tasks/split_evaluation.py""",
    "span-corruption": """an objective: atento_lab/studies/race_probes.py config/tables/objective.py
        data/objectives/__init__.py""",
}


def test_a_tasks_name_stands_in_the_table_of_tasks_alone() -> None:
    names = {*TASKS, TEXT_TO_TEXT}
    found: set[tuple[str, str]] = set()
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value in names and name_of(file) != "config/tables/tasks.py":
                found.add((str(node.value), name_of(file)))
    other = {name: text.partition(":")[2].split() for name, text in OTHER_MEANINGS.items()}
    assert found == {(name, file) for name, files in other.items() for file in files}


def test_each_task_has_one_spec_one_row_and_one_command() -> None:
    """The verb of each is a method, a command, shown by `train` and the model card, and a row where it is scored."""
    from atento.config.tables.verbs import VERBS as SHOWN_VERBS
    from atento_cli.main import application

    commands = [command.name for command in application().registered_commands]
    for name, spec in TASKS.items():
        assert spec.verb is not None and commands.count(spec.verb) == 1, name
        assert callable(getattr(Model, spec.verb)), name
        assert spec.verb in VERBS or spec.outputs is None, name
        assert spec.verb in SHOWN_VERBS, name
        assert spec.objective in config_objective.OBJECTIVES, name
        metrics = (*spec.metrics, *spec.evaluated, *spec.scored_metrics)
        assert all(METRICS[metric].scores(spec.outputs) for metric in metrics), name
        assert set(spec.columns) <= set(COLUMNS), name
    assert VERBS.keys() == {TASKS[name].verb for name in scored()}


def test_each_command_and_each_objective_has_its_row_its_module_and_its_loss() -> None:
    """And loading the module of one command alone registers that command."""
    from atento_cli.main import COMMANDS, application

    for app, commands in [(application(), list(COMMANDS)), *((application(name), [name]) for name in COMMANDS)]:
        registered = [command.name for command in app.registered_commands]
        registered += [group.name for group in app.registered_groups]
        assert set(commands) <= set(registered) <= COMMANDS.keys()
    assert list(config_objective.OBJECTIVES) == list(objectives.OBJECTIVES)
    for name, spec in config_objective.OBJECTIVES.items():
        assert any(set(fields) <= set(task.columns) for fields in spec.fields for task in TASKS.values()), name
    kinds = {HEAD_KINDS[head] for spec in config_objective.OBJECTIVES.values() for head in spec.heads}
    kinds |= {HEAD_KINDS[head] for spec in TASKS.values() for head in spec.heads}
    assert kinds <= LOSSES.keys()


def test_late_imports_of_our_own_stand_only_where_allowed() -> None:
    """In the lazy door of `atento`, in commands, and in the few places listed here with a reason."""
    late = [one for one in all_imports() if one.late and not one.typing and one.room]
    found = {(name_of(one.file), one.module) for one in late if room_of(one.file) not in ("__init__", "atento_cli")}
    listed = {(file, module if (file, module) in LATE else module.rpartition(".")[0]) for file, module in found}
    assert listed == LATE.keys(), f"not allowed: {sorted(listed - LATE.keys())}; gone: {sorted(LATE.keys() - listed)}"


@pytest.mark.parametrize("name", [*TORCH_FREE, "atento_cli"])
def test_rooms_without_torch_do_not_name_it(name: str) -> None:
    """A command imports it in its first lines, when it runs."""
    named = [one for one in all_imports() if one.module.split(".")[0] == "torch" and room_of(one.file) == name]
    named = [one for one in named if not one.typing and name_of(one.file) not in WITH_TORCH]
    assert [at(one.file, one.line) for one in named if not (name == "atento_cli" and one.late)] == []


def python(program: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


IMPORTED = """
import sys
from importlib import import_module
root, light, modules, opened = sys.argv[1], sys.argv[2].split(), sys.argv[3:], []
def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(root):
        if not arguments[0].endswith((".py", ".pyc")) and ".pyc." not in arguments[0]:
            opened.append(arguments[0])
sys.addaudithook(watch)
for module in light:
    import_module(module)
    assert "torch" not in sys.modules, module
import torch
before = torch.get_num_threads(), torch.get_default_dtype(), torch.initial_seed()
for module in modules:
    import_module(module)
assert not opened, opened
assert not torch.cuda.is_initialized()
assert before == (torch.get_num_threads(), torch.get_default_dtype(), torch.initial_seed())
"""  # what is opened is noted


def test_importing_loads_torch_where_it_may_reads_no_file_of_ours_and_touches_no_device() -> None:
    """Every module, in a fresh process, those of the light rooms first."""
    rooms = ROOMS.keys() - {"benchmarks", "atento_serve"}  # which need more packages
    modules = [module(file) for file in FILES if room_of(file) in rooms and file.name != "__main__.py"]
    light_rooms = (*TORCH_FREE, "__init__", "atento_cli")
    light = [module(file) for file in FILES if room_of(file) in light_rooms and name_of(file) not in WITH_TORCH]
    python(IMPORTED, str(ROOT.parent), " ".join(light), *modules)


# Others: `test_torch_is_loaded_only_to_run_a_network` in test_cli_commands.py.
@pytest.mark.parametrize("command", ["config check micro-world-en-pt", "score --help"])
def test_light_commands_load_no_torch(command: str) -> None:
    program = """
import sys
from atento_cli.main import main
sys.argv = ["atento", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
assert "torch" not in sys.modules
"""
    assert python(program, *command.split())


FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
FORBIDDEN_MODULES |= {"tarfile", "zipfile"}
# Word documents are archives: their parts are read in memory, after `refuse_swelling`, and none is written by its name
ARCHIVES = {("zipfile", "text/documents/word_files.py"), ("zipfile", "atento_serve/api/text_work.py")}
FORBIDDEN_CALLS = {"torch.load", "torch.save", "pickle.load", "pickle.loads", "pickle.dump", "os.system", "os.popen"}
FORBIDDEN_CALLS |= {"yaml.load", "yaml.unsafe_load", "yaml.full_load"}


def test_cwe_502_nothing_that_runs_or_unpacks_what_it_reads_is_imported() -> None:
    found = [(one.module.split(".")[0], one.file, one.line) for one in all_imports()]
    wrong = [one for one in found if one[0] in FORBIDDEN_MODULES and (one[0], name_of(one[1])) not in ARCHIVES]
    assert [at(file, line) for _, file, line in wrong] == []


def test_cwe_94_nothing_evaluates_text_or_loads_by_a_name_it_was_given() -> None:
    wrong = []
    models = {file: ast.parse(file.read_text("utf-8")) for file in (ROOT.parent / "atento_models").rglob("*.py")}
    theirs = [(file, one) for file, tree in models.items() for one in ast.walk(tree) if isinstance(one, ast.Call)]
    for file, call in [*calls(), *theirs]:
        name = ast.unparse(call.func)
        safe = any(keyword.arg == "weights_only" and ast.unparse(keyword.value) == "True" for keyword in call.keywords)
        if name == "torch.load" and safe and name_of(file) == "atento_cli/convert/unpickle.py":
            continue  # a program of its own, that takes weights alone
        if name in {"eval", "exec", "compile", "__import__"} | FORBIDDEN_CALLS:
            wrong.append(f"{at(file, call.lineno)} {name}")
        if (
            name.endswith("import_module")
            and not isinstance(call.args[0], ast.Constant)
            and name_of(file) not in ("__init__.py", "base/old_names.py", "atento_cli/main.py")  # by their own tables
        ):
            wrong.append(f"{at(file, call.lineno)} {name} with a variable")
        for keyword in call.keywords:
            unsafe = keyword.arg in ("shell", "allow_pickle") and ast.unparse(keyword.value) != "False"
            if unsafe or keyword.arg == "trust_remote_code":
                wrong.append(f"{at(file, call.lineno)} {keyword.arg}")
    assert wrong == []


def reads_by_locale(call: ast.Call) -> bool:
    """Whether a call opens a text file and names no encoding."""
    name = ast.unparse(call.func)
    owner, _, verb = name.rpartition(".")
    if name != "open" and (not owner or verb not in ("open", "fdopen", "read_text", "write_text")):
        return False
    if name in ("os.open", "webbrowser.open"):  # of bytes, and of a page
        return False
    given = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    if verb in ("open", "fdopen"):
        given += call.args[:2]  # of a path, the mode is the first argument; of a function, the second
    modes = [one.value for one in given if isinstance(one, ast.Constant) and re.fullmatch("[rwaxbt+]+", str(one.value))]
    text = any("t" in str(mode) for mode in modes) if owner == "gzip" else not any("b" in str(mode) for mode in modes)
    return text and not any(keyword.arg == "encoding" for keyword in call.keywords)


def test_text_files_are_opened_with_an_encoding_and_each_file_says_its_charge_first() -> None:
    """What a machine's locale would have decided is said in the code."""
    wrong = [f"{at(file, call.lineno)} {ast.unparse(call)[:60]}" for file, call in calls() if reads_by_locale(call)]
    assert wrong == []
    wrong = []
    for file, tree in trees().items():
        text = ast.get_docstring(tree, clean=False) or ""
        first = text.splitlines()[0] if text else ""
        if len(first) < 15 or not first.rstrip().endswith((".", ":", "!", "?")):
            wrong.append(name_of(file))
    assert wrong == []


Function = ast.FunctionDef | ast.AsyncFunctionDef


def length(node: Function) -> int:
    """Lines from the `def` to the end without the docstring, which says shapes, units and errors."""
    first = node.body[0]
    stated = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return _lines(node) - (_lines(first) if stated else 0)


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_files_and_functions_are_small_and_named_after_what_they_hold() -> None:
    """400 lines a file, with a tenth of room; 60 lines of code a function, 75 with the options of a command."""
    large = [name_of(file) for file in FILES if len(file.read_text(encoding="utf-8").splitlines()) > 440]
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, Function) and length(node) > (75 if room_of(file) == "atento_cli" else 60):
                large.append(f"{at(file, node.lineno)} {node.name}")
    vague = {"utils", "util", "helpers", "helper", "common", "misc"}
    named = [name_of(file) for file in FILES if vague & set(file.relative_to(home_of(file)).with_suffix("").parts)]
    assert large == [] and named == []


def test_what_the_rules_look_for_would_be_found() -> None:
    """The reader of imports sees through functions, conditions and both ways of importing."""
    tree = ast.parse(
        "import torch\nif TYPE_CHECKING:\n    import json\n"
        "def f():\n    from atento.base import errors\n    class A:\n        import pickle\n"
    )
    seen = [(one.module, one.late, one.typing) for one in imports(ROOT / "x.py", tree)]
    assert seen[:2] == [("torch", False, False), ("json", False, True)]
    assert seen[2:] == [("atento.base.errors", True, False), ("pickle", True, False)]
    planted_calls = {
        "open('table')": True,
        "open('table', 'rb')": False,
        "path.open()": True,
        "path.open('rb')": False,
        "path.write_text('a label')": True,
        "path.read_text(encoding='utf-8')": False,
        "gzip.open(path)": False,
        "gzip.open(path, 'rt')": True,
        "os.fdopen(number, mode='wb')": False,
    }
    read = {text: reads_by_locale(ast.parse(text, mode="eval").body) for text in planted_calls}  # type: ignore[arg-type]
    assert read == planted_calls
    planted = {"a": frozenset({"b", "c"}), "b": frozenset({"a"}), "c": frozenset[str]()}
    assert in_circles(planted) == {"a", "b"} and in_circles(planted | {"b": frozenset({"c"})}) == set()

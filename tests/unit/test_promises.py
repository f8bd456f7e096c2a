"""Each promise of SECURITY.md and of the section Security of docs/serving.md has a test, which a table names (K12)."""

import ast
import inspect
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {"SECURITY.md": "What the project promises", "docs/serving.md": "Security"}
# how a sentence begins: the tests that hold it, `folder/file: functions`
PROMISES: dict[str, dict[str, list[str]]] = {
    "SECURITY.md": {
        "Loading a model, a checkpoint, a tokenizer or a recipe runs no code": [
            "integration/test_convert.py: test_c16_a_hostile_file_runs_nothing",
            "unit/test_config_yaml12.py: test_any_text_is_read_or_refused",
        ],
        "Weights are safetensors": [
            "unit/test_checkpoint_manifest.py: test_s1_a_pickle_under_any_name_never_runs",
            "unit/test_house_rules.py: test_cwe_94_nothing_evaluates_text_or_loads_by_a_name_it_was_given",
        ],
        "A checkpoint carries the SHA-256": [
            "unit/test_checkpoint_manifest.py: "
            "test_manifest_lists_name_size_and_hash_of_each_file_and_its_own_hash_last"
        ],
        "It is verified before it is used": [
            "unit/test_checkpoint_manifest.py: test_r4_no_damage_is_silent_and_the_file_is_named",
            "unit/test_model.py: test_one_flipped_bit_in_any_file_is_named",
        ],
        "A YAML file is limited": [
            "unit/test_config_yaml12.py: test_refused_with_its_place",
            "unit/test_config_yaml12.py: test_what_the_limits_allow",
        ],
        "Header lengths of weight files": [
            "unit/test_checkpoint_manifest.py: test_s1_safetensors_headers_that_lie_are_refused"
        ],
        "File names from a manifest": [
            "unit/test_checkpoint_manifest.py: test_plain_names",
            "unit/test_checkpoint_manifest.py: test_s1_what_is_not_a_plain_file_is_refused",
            "unit/test_checkpoint_manifest.py: test_a_checkpoint_directory_that_is_a_link_is_no_candidate",
        ],
        "A folder that Atento wrote and that has lost its manifest": [
            "unit/test_hostile_files.py: test_k12_a_folder_of_ours_without_its_manifest_is_a_warning",
            "unit/test_hostile_files.py: "
            "test_k12_a_folder_of_others_has_no_manifest_and_the_hubs_cache_is_made_of_links",
        ],
        "Files of models, runs and stores are plain files": [
            "unit/test_hostile_files.py: test_s1_no_file_of_a_model_is_waited_for_or_read_without_an_end",
            "unit/test_house_rules.py: test_files_are_read_under_limits",
        ],
        "Numbers of a configuration are bounded": [
            "unit/test_hostile_models.py: test_s1_no_number_of_our_own_configuration_costs_more_than_its_folder",
            "unit/test_hostile_models.py: test_s1_layers_are_counted_against_the_tensors_before_they_are_built",
            "unit/test_hostile_models.py: test_k12_sizes_are_compared_with_the_tensors_before_they_take_memory",
        ],
        "A folder causes no request": ["unit/test_hostile_files.py: test_k12_a_local_adapter_asks_nobody_for_its_base"],
        "The modules of a folder": ["unit/test_hostile_files.py: test_k12_the_modules_of_a_folder_are_inside_it"],
        "The events of a run": [
            "integration/test_run_again.py: test_a_run_whose_events_were_changed_goes_on_and_says_so"
        ],
        "Text is text": [
            "unit/test_tokenizer.py: test_user_text_never_makes_special_ids",
            "unit/test_inspection_drawing.py: test_hostile_tokens_end_no_element_and_pages_allow_their_script_alone",
            "unit/test_chat_rendering.py: "
            "test_no_string_of_a_request_makes_a_special_token_whatever_the_template_does_with_it",
        ],
        "A terminal is shown control characters": [
            "integration/test_terminal.py: test_no_command_lets_a_text_steer_the_terminal",
            "integration/test_terminal.py: test_files_and_pipes_get_text_as_it_is",
            "unit/test_house_rules.py: test_what_one_module_does_for_all_is_done_there",
        ],
        "The attention page carries a content policy": [
            "unit/test_inspection_drawing.py: test_hostile_tokens_end_no_element_and_pages_allow_their_script_alone"
        ],
        "The service reads texts in linear time": [
            "unit/test_linear_time.py: test_work_grows_as_the_text",
            "unit/test_serve_hosts.py: test_on_this_machine_alone_only_its_own_names_are_answered",
        ],
        "Each refusal is logged and counted": [
            "integration/test_serve_http_refusals.py: test_each_refusal_is_logged_and_counted_once"
        ],
        "The packages of the image": [
            "unit/test_repository.py: test_the_lock_has_each_dependency_at_a_version_of_its_range",
            "unit/test_repository.py: test_the_image_and_the_service_have_the_versions_of_the_tests",
        ],
        "`make sbom` lists them": ["unit/test_repository.py: test_the_bill_of_materials_has_every_package_and_torch"],
        "Nothing is sent anywhere": ["unit/test_promises.py: test_few_files_can_reach_the_network"],
        "The network is used only where": [
            "unit/test_promises.py: test_few_files_can_reach_the_network",
            "unit/test_models_find.py: test_hub_names_offline_from_the_cache_or_refused",
        ],
    },
    "docs/serving.md": {
        "The service listens on 127.0.0.1": [
            "unit/test_promises.py: test_the_service_is_alone_on_its_machine_by_default"
        ],
        "It refuses another address without a key": [
            "integration/test_serve_http_faults.py: test_wrong_usage_is_refused_before_a_model_is_loaded"
        ],
        "`--api-key KEY`, or better the variable": [
            "integration/test_deploy_service.py: *",
            "integration/test_serve_http_faults.py: test_keys_are_needed_and_each_has_its_share",
        ],
        "Clients send `Authorization": [
            "integration/test_serve_http_faults.py: test_keys_are_needed_and_each_has_its_share"
        ],
        "Health, version and the pages of the routes need no key": [
            "integration/test_serve_http_faults.py: test_keys_are_needed_and_each_has_its_share"
        ],
        "Put TLS in front": [],  # advice
        "On an address of this machine alone": [
            "unit/test_serve_hosts.py: test_on_this_machine_alone_only_its_own_names_are_answered"
        ],
        "`--allow-host NAME`": [
            "unit/test_serve_hosts.py: "
            "test_beyond_this_machine_all_names_or_those_that_are_allowed_and_the_addresses_of_probes"
        ],
        "On other addresses every name is answered": [
            "unit/test_serve_hosts.py: "
            "test_beyond_this_machine_all_names_or_those_that_are_allowed_and_the_addresses_of_probes"
        ],
        "Web pages of other origins": ["integration/test_serve_http.py: test_only_named_origins_may_read_answers"],
        "The log has one JSON object a request": [
            "integration/test_serve_http.py: test_the_log_has_no_text_of_a_user",
            "integration/test_serve_http_refusals.py: test_each_refusal_is_logged_and_counted_once",
        ],
        "No route names a path or an address": ["unit/test_promises.py: test_no_field_of_a_request_names_a_path"],
        "Of the files of a model only a chat template is a program": [
            "unit/test_chat_rendering.py: test_a_template_that_is_wrong_or_passes_a_limit_is_refused_in_one_sentence"
        ],
    },
}
NETWORK = {  # what may open a connection, and when
    "models/model_hub.py": "a hub name is given",
    "data/files/hub.py": "`dataset` is given",
    "atento_cli/scale/inputs.py": "a URL is given",
    "atento_cli/scale/ray_workers.py": "--cluster is given",
    "training/trackers.py": "`training.trackers` is given",
    "atento_serve/http/tracing.py": "the variables OTEL_* or --tracing are given",
    "atento_serve/start.py": "the socket that the service listens on",
    "atento_serve/server.py": "the socket that the service listens on",
    "training/replica/health.py": "the name of this machine; `--nproc`",
    "storage/lock.py": "the name of this machine",
}
LIBRARIES = (
    r"(socket|ssl|urllib\.request|http\.client|requests|httpx|aiohttp|fsspec|datasets|wandb|mlflow|ray|opentelemetry)"
)


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def sentences(page: str) -> list[str]:
    """The sentences of the section of a page that makes promises."""
    section = (ROOT / page).read_text(encoding="utf-8").split(f"\n## {PAGES[page]}\n")[1].partition("\n## ")[0]
    items = [line.removeprefix("- ") for line in section.splitlines() if line.startswith("- ")]
    return [sentence for item in items for sentence in re.split(r"(?<=\.) (?=\S)", item)]


@pytest.mark.parametrize("page", PAGES)
def test_each_promise_is_in_the_table_and_the_table_promises_no_more(page: str) -> None:
    for sentence in sentences(page):
        assert sum(sentence.startswith(begin) for begin in PROMISES[page]) == 1, sentence
    for begin in PROMISES[page]:
        assert any(sentence.startswith(begin) for sentence in sentences(page)), begin
    for begin, tests in PROMISES[page].items():
        assert tests or begin == "Put TLS in front", begin
        for test in tests:
            file, name = test.split(": ")
            assert name in functions(file) or (name == "*" and functions(file)), test


def test_few_files_can_reach_the_network() -> None:
    importing = re.compile(rf"^\s*(import|from) {LIBRARIES}\b|^\s*from huggingface_hub import snapshot_download", re.M)
    files = [file for file in (ROOT / "src").rglob("*.py") if importing.search(file.read_text(encoding="utf-8"))]
    found = {file.relative_to(ROOT / "src").as_posix().removeprefix("atento/") for file in files}
    assert {name for name in found if not name.startswith("atento_lab/")} == NETWORK.keys()


def test_the_service_is_alone_on_its_machine_by_default() -> None:
    from atento_cli.main import command_function

    assert inspect.signature(command_function("serve")).parameters["host"].default == "127.0.0.1"


def test_no_field_of_a_request_names_a_path() -> None:
    """A model is a name of the service's own table."""
    pytest.importorskip("fastapi", reason="the service needs the extra serve")
    import atento_serve.app  # noqa: F401  with all classes of requests
    from atento_serve.http.fields import Fields

    names = {name for kind in Fields.__subclasses__() for name in kind.model_fields}
    assert not {name for name in names if re.search("path|file|folder|url|dir$|address", name)}

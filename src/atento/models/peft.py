"""PEFT's folders of LoRA adapters (adapter_config.json and weights): read with their base model, and written."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from atento.base.errors import CapabilityError, ModelError, UsageError
from atento.config.reading.loading import load_recipe
from atento.config.sections.initial import LoraConfig
from atento.config.sections.network import NetworkConfig, network_to_dict
from atento.config.tables.released_keys import FILES
from atento.models.model_folder import CONFIG, LORA, find_model, lora_config, network_config, read_config
from atento.networks.adapters import parts_of
from atento.released import FAMILIES, read_released
from atento.released.family import Family
from atento.released.load_report import LoadReport
from atento.released.lora_weights import adapted, by_map, initialization, is_of_training, is_part, join, spans
from atento.released.read_layout import Over, family_of
from atento.released.weight_rows import Row
from atento.released.write_layout import in_plain_numbers
from atento.storage.atomic_files import atomic_folder
from atento.storage.checkpoint import load_checkpoint
from atento.storage.tensorfile import TensorFiles

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_OURS = "atento.json"  # what PEFT has no place for: the names of labels, the task, special tokens around a text
_NOT_KEPT = ("model_type", "version", "atento_version", "network", LORA)
_PREFIX = "base_model.model."  # before the names of the model that PEFT wraps
_CLASSES = {  # their name of a task -> what their class of such models is called
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
}
# the last layers of their heads
_OUTPUTS = ("classifier.weight", "classifier.out_proj.weight", "classification_head.out_proj.weight", "score.weight")
# the embeddings of their models
_TABLES = tuple(
    f".{name}.weight" for name in ("embed_tokens", "word_embeddings", "tok_embeddings", "wte", "tokens_embed", "shared")
)
_TASKS = {
    "classification": "SEQ_CLS",
    "multi-label": "SEQ_CLS",
    "regression": "SEQ_CLS",
    "tagging": "TOKEN_CLS",
    "answer": "QUESTION_ANS",
}


def read_peft(
    folder: Path, *, allow_missing: bool = False, allow_unused: bool = False, fetch: bool = True
) -> tuple[Path, dict[str, object], NetworkConfig, dict[str, Tensor], LoadReport]:
    """Read an adapter and its base model, and join the adapter to the weights.

    Args:
        folder: with `adapter_config.json`, whose `base_model_name_or_path` is a path (from this folder, or from the
            working directory) or a hub name; a folder that holds a whole model too is its own base.
        fetch: whether a base that is named so may be fetched; a folder does not cause requests that nobody asked for.
        allow_missing, allow_unused: as in `read_released`.

    Returns:
        The base's folder, its `config.json`, and the network, weights by our names, and load report of both.

    Raises:
        UsageError: there is no such base. ModelError: another kind of adapter, or one of maps that the base has not.
    """
    settings = read_config(folder / ADAPTER_CONFIG)
    if settings.get("peft_type") != "LORA":
        raise ModelError(
            f"{folder / ADAPTER_CONFIG}: only LoRA is read here: `peft_type` is {settings.get('peft_type')!r}"
        )
    for key, neutral in FILES[ADAPTER_CONFIG].refused.items():
        if settings.get(key) is not None and settings[key] not in neutral:
            raise ModelError(f"{folder / ADAPTER_CONFIG}: `{key}` {settings[key]!r} is not read here")
    initialization(settings, folder / ADAPTER_CONFIG)  # refuses a kind of it that is not built here
    base = _base_of(settings, folder, fetch)
    data = read_config(base / CONFIG)
    with TensorFiles(folder, ADAPTER_WEIGHTS) as files:
        read = (name for name in files.entries if ".original_module." not in name and not is_of_training(name))
        # those of the base model; with `bias`, biases are saved by their names inside what PEFT wraps
        inside = {name: name.removeprefix(_PREFIX).replace(".base_layer.", ".") for name in read}
        names = {name: plain.replace(".modules_to_save.", ".") for name, plain in inside.items()}
        maps = by_map({plain: files.read(name) for name, plain in names.items() if is_part(plain)})
        replaced = {name: plain for name, plain in names.items() if not is_part(plain)}
        shapes = {plain: files.entries[name].shape for name, plain in replaced.items()}
    strange = sorted(plain for plain in shapes if "lora_" in plain)
    if strange:
        raise ModelError(f"{folder}: weights of an adapter that are not read here: {', '.join(strange[:3])}")
    family = family_of(data, str(base / CONFIG))
    # the base's configuration as one of a model with the adapter's head: its class, and how many labels it has
    headed, task = dict(data), settings.get("task_type")
    dotted = {f".{name}": shape for name, shape in shapes.items()}
    tables = [shape for name, shape in dotted.items() if name.endswith(_TABLES) and ".decoder." not in name]
    headed |= {"vocab_size": tables[0][0]} if tables else {}  # an embedding may be longer, for new tokens
    headed |= {"architectures": [_CLASSES[task]]} if task in _CLASSES else {}
    out = next((shapes[name] for name in _OUTPUTS if name in shapes), None)
    if out is not None and len(headed.get("id2label") or {}) != out[0]:
        headed.pop("id2label", None)
        headed["num_labels"] = out[0]
    network, weights, report = read_released(
        base,
        headed,
        allow_missing=allow_missing,
        allow_unused=allow_unused,
        over=Over(folder / ADAPTER_WEIGHTS, replaced, adapted(maps), bool(settings.get("ensure_weight_tying"))),
    )
    rows = family.rows(network)
    join(weights, rows, maps, family, settings, folder)
    of_heads = (row for row in rows if row.head and row.ours.startswith("heads."))
    heads = {row.ours.split(".")[1] for row in of_heads if set(row.theirs) & set(shapes)}
    others = {head.name for head in network.heads} - heads
    if others and heads & {head.name for head in network.heads}:  # heads that the base had for other tasks are left out
        network = replace(network, heads=tuple(head for head in network.heads if head.name in heads))
        of_others = tuple(f"heads.{name}." for name in others)
        weights = {name: value for name, value in weights.items() if not name.startswith(of_others)}
    return base, data, network, weights, report


def _base_of(settings: Mapping[str, object], folder: Path, fetch: bool) -> Path:
    """The folder of an adapter's base model: its own, where a whole model is in it."""
    # a whole model beside the adapter is its base
    if (folder / CONFIG).exists() and any(folder.glob("model*.safetensors")):
        return folder
    named = settings.get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise ModelError(
            f"{folder / ADAPTER_CONFIG}: `base_model_name_or_path` must name the base model: got {named!r}"
        )
    # relative to the adapter, else to where we are
    local = next((path for path in (folder / named, Path(named)) if path.exists()), None)
    if local is None and settings.get("revision") not in (None, "main"):
        raise ModelError(
            f"{folder / ADAPTER_CONFIG}: `revision` {settings['revision']!r} of the base {named} is not fetched here: "
            "name a folder with that revision in `base_model_name_or_path`"
        )
    try:
        return find_model(local or named, fetch=fetch)
    except UsageError as error:
        if local or fetch or "/" not in named:  # found, or not a name on the hub
            raise
        raise UsageError(
            f"{folder / ADAPTER_CONFIG}: the base model {named} is not on this machine, and a folder fetches nothing: "
            f"`hf download {named}` fetches it, or name its folder in `base_model_name_or_path`"
        ) from error


def with_ours(config: dict[str, object], network: NetworkConfig, folder: Path) -> dict[str, object]:
    """Add what `save_adapter` kept beside an adapter to our `config.json` and to the labels of the network's heads."""
    if not (folder / _OURS).exists():
        return config
    kept = read_config(folder / _OURS)
    labels = kept.pop("labels", {})
    heads = tuple(
        replace(head, labels=tuple(names)) if (names := labels.get(head.name)) and len(names) == head.outputs else head
        for head in network.heads
    )
    return {**config, **kept, "network": network_to_dict(replace(network, heads=heads))}


def save_adapter(run: str | Path, directory: str | Path, *, base: str | Path | None = None) -> Path:
    """Write the adapters of a LoRA run as PEFT reads them, with the head that was trained beside them.

    `atento.json` beside them keeps what PEFT has no place for: names of labels, the task, special tokens of a text.

    Several adapters of one matrix of theirs (query and value of GPT-2's `c_attn`) become one of their summed rank,
    which computes the same.

    Args:
        run: a run folder, or one of its checkpoints.
        directory: the folder to write; it must be empty or not exist.
        base: what `base_model_name_or_path` says; None: the model that the run started from.

    Raises:
        UsageError: the run has no adapters, its base is not in the Hugging Face layout, or the folder is not empty.
        CapabilityError: the network is of no released family, or its heads have no place there.
    """
    path, directory = find_model(run), Path(directory)
    if not (path / "state.json").exists():
        raise UsageError(f"{path} is no checkpoint of a run; a loaded model has its adapters joined to its weights")
    checkpoint = load_checkpoint(path)
    lora, network = lora_config(checkpoint.config, path), network_config(checkpoint.config, path)
    network, weights = in_plain_numbers(network, checkpoint.weights)
    if lora is None:
        raise UsageError(f"{path} has no adapters: it was not trained with `init.train` lora")
    if network.family not in FAMILIES:
        raise CapabilityError(f"PEFT has adapters of released families ({', '.join(FAMILIES)}): {path} is of none")
    if network.layer_mix or any(head.center for head in network.heads):
        lost = "a mix of layers" if network.layer_mix else "the center of a head without a bias"
        raise CapabilityError(f"PEFT has no place for {lost}, which {path} has")
    family = FAMILIES[network.family]
    try:
        architecture = str(family.write(network)["architectures"][0])
        rows = family.rows(network)
    except ModelError as error:
        raise CapabilityError(f"PEFT has no adapters of this network: {error}") from None
    prefix = family.prefix_of(architecture)
    tensors, ranks = _adapters(rows, weights, network, lora, prefix)
    saved = {
        ("" if row.head else prefix) + name: part
        for row in rows
        # the output matrix is the base's; heads and pooler were trained whole
        if row.ours.startswith(("heads.", "pooler.")) and row.ours != "heads.vocabulary.output.weight"
        for name, part in zip(row.theirs, row.split(weights[row.ours]))
    }
    if base is None:
        recipe = path.parent.parent / "recipe.yaml"
        init = load_recipe(recipe, environment={}).recipe.init if recipe.exists() else None
        if init is None:
            raise UsageError(f"{path}: the run's recipe is missing, so `base` must name the base model")
        base = init.model
    theirs = Path(base) / CONFIG
    if Path(base).is_dir() and (not theirs.exists() or read_config(theirs).get("model_type") == "atento"):
        raise UsageError(
            f"{base} is not in the Hugging Face layout, which PEFT loads: save it there (`atento convert {base} --to "
            "huggingface --out DIR`) and give `base`"
        )
    settings = _settings(lora, ranks, sorted(saved), str(base), family, network)
    kept = {key: value for key, value in checkpoint.config.items() if key not in _NOT_KEPT}
    kept["labels"] = {head.name: list(head.labels) for head in network.heads if head.labels}
    tensors |= {_PREFIX + name: value for name, value in saved.items()}
    with atomic_folder(directory, "folder") as temporary:
        save_file(tensors, temporary / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        for name, content in ((ADAPTER_CONFIG, settings), (_OURS, kept)):
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            (temporary / name).write_text(text, encoding="utf-8", newline="\n")
    return directory


def _adapters(
    rows: list[Row], weights: Mapping[str, Tensor], network: NetworkConfig, lora: LoraConfig, prefix: str
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """A and B of each of their matrices, and the rank of each."""
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    for row in rows:
        ours = row.ours.removesuffix(".weight")
        # name -> (first row, rows) of our matrix, where it has an adapter
        parts = {part: span for part, span in parts_of(ours, network).items() if f"{ours}.adapters.{part}.b" in weights}
        # each of their matrices, and the rows of ours that it is
        for name, (start, stop) in spans(row, weights) if parts else ():
            factors = []
            for part, (first, count) in parts.items():
                low, high = max(first, start), min(first + count, stop)  # the rows of this part within theirs
                if low < high:
                    b = torch.zeros(stop - start, lora.rank)  # rows of theirs without the part stay 0
                    b[low - start : high - start] = weights[f"{ours}.adapters.{part}.b"][low - first : high - first]
                    factors.append((weights[f"{ours}.adapters.{part}.a"], b))
            if factors:
                plain = prefix + name.removesuffix(".weight")
                ranks[plain] = lora.rank * len(factors)
                # one product of the stacked factors: B1·A1 + B2·A2 = [B1 B2]·[A1; A2]
                tensors[f"{_PREFIX}{plain}.lora_A.weight"] = torch.cat([a for a, _ in factors]).contiguous()
                tensors[f"{_PREFIX}{plain}.lora_B.weight"] = torch.cat([b for _, b in factors], dim=1).contiguous()
    return tensors, ranks


def _settings(
    lora: LoraConfig, ranks: Mapping[str, int], saved: list[str], base: str, family: Family, network: NetworkConfig
) -> dict[str, object]:
    """`adapter_config.json`: alpha grows with the rank, so that every matrix has the factor of the run."""
    rank = Counter(ranks.values()).most_common(1)[0][0]  # the usual rank; others are patterns
    others = {name: own for name, own in ranks.items() if own != rank}
    kind = next((head.kind for head in network.heads if head.kind in _TASKS), None)
    # of a network without a head that PEFT has a task for
    writes = {"decoder": "CAUSAL_LM", "encoder-decoder": "SEQ_2_SEQ_LM"}.get(network.architecture)
    modules = {family.bare(name).split(".")[0] for name in saved}
    return {
        "peft_type": "LORA",
        "task_type": _TASKS[kind] if kind else writes,
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": lora.scale * rank,
        "lora_dropout": lora.dropout,
        "rank_pattern": others,
        "alpha_pattern": {name: lora.scale * own for name, own in others.items()},
        "target_modules": sorted(ranks),
        "modules_to_save": sorted(modules) or None,
        "fan_in_fan_out": family.transposed,
        "bias": "none",
        "inference_mode": True,
    }

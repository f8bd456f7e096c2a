"""The model that training starts from, and transplants (M14): what is carried over, what is new, what cannot be."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from torch import Tensor

from atento.attention.masks import bidirectional, causal, prefix
from atento.base.errors import CapabilityError, ModelError, RecipeError
from atento.config.reading.dumping import sections
from atento.config.reading.loading import load_recipe
from atento.config.reading.recipe_layers import type_at
from atento.config.reading.schema import flatten
from atento.config.sections.initial import InitConfig
from atento.config.sections.network import NetworkConfig, changed, network_to_dict
from atento.config.sections.position_scheme import PositionConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.data.records.splits import Split
from atento.decoding import Greedy, generate
from atento.models.initial_model import check_new_positions, fine_tuned, pretrained_weights, with_longer_positions
from atento.models.load import ModelFiles, check_weights
from atento.models.model_folder import network_config
from atento.models.transplant import extended, to_decoder, to_encoder, to_encoder_decoder, trimmed, with_positions
from atento.networks import Decoder, Encoder, EncoderDecoder, build_network, presets
from atento.runs.fine_tuning import changed_heads, with_inherited
from atento.runs.multilingual import network_of_run
from atento.runs.task_heads import with_objective_heads, with_task_heads
from atento.text import Tokenizer
from failing import fails

TOKENIZER = Tokenizer.from_vocabulary("word", ["a", "b", "c", "d"])
SMALL: dict[str, Any] = {"vocab_size": 9, "d_model": 8, "d_ff": 8, "n_heads": 2, "n_layers": 1}
LEARNED = PositionConfig("learned")


def started(folder: Path, architecture: Any, **more: Any) -> ModelFiles:
    """A model of three positions."""
    fingerprint = TOKENIZER.fingerprint
    config = NetworkConfig(architecture, **SMALL | {"max_len": 3, "tokenizer_fingerprint": fingerprint} | more)
    files = {"model_type": "atento", "network": network_to_dict(config)}
    return ModelFiles(folder, files, build_network(config).state_dict())


@pytest.mark.parametrize("longer", ["grown", "interpolated"])
def test_b2_a_learned_table_is_made_longer_when_training_starts_from_a_shorter_one(tmp_path: Path, longer: str) -> None:
    """Grown: the old rows, then new ones. Interpolated: old ends stay ends, and the middle row is the old middle."""
    learned = PositionConfig("learned", longer=longer, shift=1)  # type: ignore[arg-type]
    start = started(tmp_path, "encoder-decoder", positions=learned)
    wanted = NetworkConfig(max_len=5, **SMALL, positions=learned)
    config = fine_tuned(start, wanted, TOKENIZER)
    assert config.max_len == 5
    network = EncoderDecoder(config)
    with pytest.raises(ModelError, match=r"positions\.schemes\.0\.weight has shape \(4, 8\), config\.json says"):
        check_weights(network, start)
    ready = with_longer_positions(start, network, wanted)
    check_weights(network, ready)
    name = "target_inputs.positions.schemes.0.weight"
    before, after = start.weights[name], ready.weights[name]
    assert before.shape == (4, 8) and after.shape == (6, 8)
    assert torch.equal(after[0], before[0])  # the row left free
    if longer == "grown":
        assert torch.equal(after[:4], before) and bool((after[4:] != 0).all())
    else:
        torch.testing.assert_close(after[[1, 3, 5]], before[[1, 2, 3]])
    assert all(torch.equal(ready.weights[other], start.weights[other]) for other in start.weights if "pos" not in other)


def tuned(start: ModelFiles, task: str, train: str, **network: Any) -> NetworkConfig:
    """The network of a recipe that fine-tunes the model."""
    columns = {"classification": {"text": 0, "label": 1}, "translation": {"source": 0, "target": 1}}
    data = {"train": {"file": "train.tsv", **columns.get(task, {"text": 0})}}
    sections = {"task": task, "data": data, "init": {"model": "model", "train": train}, "network": network}
    loaded = with_inherited(load_recipe(sections, environment={}), network_config(start.config, start.path))
    config = fine_tuned(start, loaded.recipe.network, TOKENIZER, loaded.recipe.init)
    check_new_positions(start, config, loaded.recipe)
    return config


@pytest.mark.parametrize(
    ("architecture", "task"),
    [("encoder", "classification"), ("decoder", "language-modeling"), ("encoder-decoder", "translation")],
)
@pytest.mark.parametrize("train", ["all", "head", "bias", "lora", "last-1"])
def test_f7_no_table_of_the_model_grows_unasked(tmp_path: Path, architecture: str, task: str, train: str) -> None:
    """A table of 160 positions became 512, whose new random rows `head`, `lora`, `bias` and `last-N` never trained."""
    start = started(tmp_path, architecture, positions=LEARNED)
    config = tuned(start, task, train)
    assert config.position_limit == 3
    fresh = {name: value.shape for name, value in build_network(config).state_dict().items()}
    assert fresh == {name: value.shape for name, value in start.weights.items()}


def test_b2_f7_new_rows_are_trained_or_refused_and_what_is_not_learned_stays_as_it_is(tmp_path: Path) -> None:
    for train in ("all", "head", "bias", "lora", "last-1"):
        start = started(tmp_path, "encoder", positions=LEARNED)
        longer = {"positions": {"kind": "learned", "longer": "interpolated"}}
        assert tuned(start, "classification", train, max_len=5, **longer).max_len == 5
        if train == "all":
            assert tuned(start, "classification", train, max_len=5).max_len == 5
        else:
            with pytest.raises(RecipeError, match=rf"at most 3, .* with `init.train` {train}, .*: got 5; leave it out"):
                tuned(start, "classification", train, max_len=5)
    start, wanted = started(tmp_path, "encoder-decoder"), NetworkConfig(max_len=5, **SMALL)
    assert fine_tuned(start, wanted, TOKENIZER).max_len == 3
    network = build_network(network_config(start.config, tmp_path))
    assert with_longer_positions(start, network, wanted).weights.keys() == start.weights.keys()


@pytest.mark.parametrize(("architecture", "stack"), [("encoder", "stack"), ("encoder-decoder", "decoder")])
def test_fewer_layers_keep_their_relative_positions(tmp_path: Path, architecture: Any, stack: str) -> None:
    """Tables of each layer (Shaw) are numbered through the layers, so that what follows them has another number."""
    schemes = PositionConfig("shaw", heads=(0,)), PositionConfig("shaw", heads=(1,)), PositionConfig("t5")
    start = started(tmp_path, architecture, n_layers=3, positions=schemes)
    config = network_config(start.config, tmp_path)
    old = build_network(config)
    old.load_state_dict(start.weights)
    network = build_network(fine_tuned(start, config, TOKENIZER, InitConfig(model="x", layers=1)))
    pretrained_weights(network, start, config)
    before, after = (one.get_submodule(f"{stack}.positions") for one in (old, network))
    assert len(before.relative) == 3 and len(after.relative) == 1
    pairs = [one.relative_schemes(0) for one in (before, after)]
    assert len(pairs[0]) == 3
    for ours, theirs in zip(*pairs):
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


# of networks that the task refuses
PARTS_OF_OTHERS = ("network.heads.", "network.features", "network.elmo.", "network.cbow.", "network.recurrent.")
KEYS = [
    entry.key
    for _, entries in sections()
    for entry in entries
    if entry.key.startswith("network.") and not entry.keys and not entry.key.startswith(PARTS_OF_OTHERS)
]


def values_of(hint: object) -> list[object]:
    """Values that a key of a type may have."""
    if get_origin(hint) is Literal:
        return [*get_args(hint)]
    if get_origin(hint) is tuple:
        return [list(some) for some in ([0], [[1, 4]])]
    plain: dict[object, list[object]] = {bool: [True, False], int: [1, 2, 4, 7, 9], float: [0.5, 0.25], str: ["x"]}
    return [value for arm in get_args(hint) for value in values_of(arm)] if get_args(hint) else plain.get(hint, [])


def outcome(start: ModelFiles, task: str, changes: dict[str, Any]) -> tuple[NetworkConfig, Any]:
    """The network of a run, and what is said of it."""
    columns = {"classification": {"text": 0, "label": 1}}.get(task, {"text": 0})
    recipe = {"task": task, "data": {"train": {"file": "train.tsv", **columns}}, "init": "model"}
    loaded = load_recipe(recipe, changes, environment={})
    loaded, said = with_inherited(loaded, network_config(start.config, start.path)), list(loaded.warnings)
    start, config = network_of_run(loaded, start, TOKENIZER, said.append, True)
    split = Split({"text": ["a", "b"], "label": ["x", "y"]} if task == "classification" else {"text": ["a", "b"]}, "")
    config = with_objective_heads(with_task_heads(config, loaded.recipe, split), loaded.recipe)
    said += changed_heads(loaded.recipe, start.network_config, config)
    return config, [one for one in said if "no effect" in one or "left out" in one]


@pytest.mark.parametrize(
    ("architecture", "key"),
    [
        *(("encoder", key) for key in [*KEYS, "network.preset", "network.heads"]),
        *(("decoder", f"network.{key}") for key in ("dropout", "max_len", "preset", "positions.longer", "norm")),
    ],
)
def test_each_key_beside_a_model_has_an_effect_or_a_warning(tmp_path: Path, key: str, architecture: str) -> None:
    """Never both, and never neither: `max_len` made a table longer and was said to have none, a preset was silent."""
    start = started(tmp_path, architecture, positions=LEARNED)
    TOKENIZER.save(tmp_path)
    task = {"encoder": "classification", "decoder": "language-modeling"}[architecture]
    usual, said = outcome(start, task, {})
    assert said == []
    own: dict[str, list[object]] = {
        "network.preset": [{"encoder": "bert-tiny", "decoder": "gpt1"}[architecture]],
        "network.heads": [[{"kind": "classification", "hidden": True}]]
        + [[{"kind": kind}] for kind in ("next-sentence", "tagging")],
    }
    tried = refused = 0
    for value in own.get(key) or values_of(type_at(key, "key")):
        try:
            config, said = outcome(start, task, {key: value})
        except RecipeError:  # no value of this key, or a part of another architecture
            refused += 1
            continue
        if value == flatten(usual).get(key.removeprefix("network.")) and not said and config == usual:
            continue  # what the model has
        tried += 1
        assert (config != usual) == (not said), (value, said)
        if tried == 2:
            break
    assert tried or refused


def test_a_head_of_other_labels_begins_again_and_has_the_dropout_of_the_recipe(tmp_path: Path) -> None:
    for before, after, way in (
        (("NEG", "POS"), ("neg", "pos"), "data with 'NEG' for 'neg', 'POS' for 'pos' keep it"),
        (("NEG", "POS"), ("0", "1"), "data with 'NEG' for '0', 'POS' for '1' keep it"),
        (("LABEL_0", "LABEL_1"), ("0", "1"), "data with 'LABEL_0' for '0', 'LABEL_1' for '1' keep it"),
        (("0", "1"), ("LABEL_0", "LABEL_1"), "data with '0' for 'LABEL_0', '1' for 'LABEL_1' keep it"),
        (("neg", "pos"), ("neg", "new", "pos"), "data with its labels alone keep it"),
        (("neg", "pos"), ("neg", "pos"), None),
        ((), ("neg", "pos"), None),
    ):
        recipe = {
            "task": "classification",
            "data": {"train": {"file": "a.tsv", "text": 0, "label": 1}},
            "init": "model",
        }
        heads = ((HeadConfig("classification", labels),) if labels else () for labels in (before, after))
        was, now = (NetworkConfig("encoder", heads=own) for own in heads)
        said = list(changed_heads(load_recipe(recipe, environment={}).recipe, was, now))
        if way is None:
            assert said == []
        else:
            assert said[0].startswith(f"the labels of the data are {', '.join(map(repr, after))}, those of the classif")
            assert said[0].endswith(f"its output begins with random weights; {way}")
    # That of a released head stayed where all three rates were 0
    for rate, heads in ((None, 0.3), (0.0, 0.0), (0.2, 0.2)):
        start = started(tmp_path, "encoder", positions=LEARNED)
        TOKENIZER.save(tmp_path)
        network = network_config(start.config, tmp_path)
        of_labels = HeadConfig("classification", ("x", "y"), dropout=0.3)
        network = replace(network, heads=(of_labels, HeadConfig("answer", dropout=0.0)))
        start = replace(start, config=start.config | {"network": network_to_dict(network)})
        config, _ = outcome(start, "classification", {} if rate is None else {"network.dropout": rate})
        assert config.heads == (replace(of_labels, dropout=heads),)


SIZES = {"vocab_size": 23, "d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 2}
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 0, 0, 0]])
REAL = IDS != 0


def tiny(config: NetworkConfig, seed: int = 0) -> Encoder | Decoder | EncoderDecoder:
    """A network of that kind, small, every weight random, float64."""
    torch.manual_seed(seed)
    ids = {"pad": 0, "bos": 0, "unk": 0, "eos": 3, "start": 2, "mask": None}
    network = build_network(changed(config, SIZES, ids=ids, dropout=0.0))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.4)
    return network.double().eval()


def bert(**changes: object) -> Encoder:
    return tiny(presets.bert_base(max_len=12, **changes))


def hidden(network: Encoder | Decoder, **options: object) -> Tensor:
    with torch.no_grad():
        return network(IDS, token_mask=REAL, **options).hidden[REAL]


def test_m14_w4_an_encoder_as_a_language_model_reads_as_before_and_writes_one_way_by_its_matrix() -> None:
    """Bidirectional hidden vectors are the encoder's; causal ones are the encoder's under a causal mask; it writes."""
    encoder = bert(heads=(HeadConfig("masked-language-model"),))
    decoder, load_report = to_decoder(encoder)
    torch.testing.assert_close(hidden(decoder, mask=bidirectional()), hidden(encoder), rtol=0, atol=1e-12)
    torch.testing.assert_close(hidden(decoder), hidden(encoder, mask=causal()), rtol=0, atol=1e-12)
    torch.testing.assert_close(hidden(decoder, mask=prefix(3)), hidden(encoder, mask=prefix(3)), rtol=0, atol=1e-12)
    assert torch.equal(decoder.vocabulary_head.bias, encoder.vocabulary_head.bias) and not load_report.new
    parts = ("heads.vocabulary.transform.dense", "heads.vocabulary.transform.norm", "pooler.dense")
    assert sorted(load_report.unused) == [f"{part}.{name}" for part in parts for name in ("bias", "weight")]
    found = generate(decoder, IDS, Greedy(), max_new_tokens=4, token_mask=REAL, eos_id=())
    assert [len(row[0].ids) for row in found] == [4, 4]
    # An encoder whose head has a matrix beside the embedding: the language model writes with that matrix
    encoder = bert(heads=(HeadConfig("masked-language-model"),), output={"tied": False})
    decoder, load_report = to_decoder(encoder)
    head = encoder.vocabulary_head.output
    assert torch.equal(decoder.vocabulary_head.output.weight, head.weight) and not load_report.new
    assert not torch.equal(head.weight, encoder.embedding.weight)
    plain, load_report = to_decoder(bert(output={"tied": False}))
    assert plain.config.output.tied and not load_report.new
    reader, _ = to_decoder(bert())
    fails(CapabilityError, "looks ahead", reader, IDS, mask=bidirectional(), state=reader.begin())
    with pytest.raises(CapabilityError, match=r"`feed_forward\.activation`: got 'gelu' and 'gelu-tanh'"):
        to_encoder_decoder(bert(), tiny(presets.gpt2(max_len=12)))


def test_m14_two_checkpoints_become_an_encoder_decoder_and_a_vocabulary_trimmed_is_the_old_network() -> None:
    """Both halves carry every weight; the reading half computes as before; cross-attention alone is new."""
    reader, writer = bert(), bert()
    with torch.no_grad():
        for parameter in writer.parameters():
            parameter.add_(0.1)
    both, load_report = to_encoder_decoder(reader, writer)
    assert load_report.new and all(".cross_" in name for name in load_report.new)
    with torch.no_grad():
        read = both.encode(IDS, source_token_mask=REAL)[REAL]
    torch.testing.assert_close(read, hidden(reader), rtol=0, atol=1e-12)
    own = both.state_dict()
    for name, value in writer.state_dict().items():
        if name.startswith("stack."):
            assert torch.equal(own[name.replace("stack.", "decoder.")], value)
    assert torch.equal(both.target_embedding.weight, writer.embedding.weight)
    alone, _ = to_encoder_decoder(reader, reader)
    assert alone.target_embedding is None
    assert all(len(row[0].ids) <= 3 for row in generate(both, IDS, Greedy(), max_new_tokens=3, token_mask=REAL))
    # New tokens change no old logit; kept tokens keep theirs under their new ids
    for tied in (True, False):
        network = tiny(presets.gpt2(max_len=12, output={"tied": tied, "bias": True}))
        longer, load_report = extended(network, 30)
        assert not load_report.new and not load_report.unused and longer.config.vocab_size == 30
        with torch.no_grad():
            before = network(IDS).logits
            torch.testing.assert_close(longer(IDS).logits[..., :23], before, rtol=0, atol=1e-12)
            torch.testing.assert_close(
                longer.embedding.weight[25], network.embedding.weight.mean(0), rtol=0, atol=1e-12
            )
            kept = [3, 0, 2, 13, 12, 11, 10, 9, 8, 7, 6, 5]
            shorter, _ = trimmed(network, kept)
            place = torch.tensor([kept.index(i) if i in kept else -1 for i in range(23)])
            torch.testing.assert_close(shorter(place[IDS]).logits, before[..., kept], rtol=0, atol=1e-12)
        assert (shorter.config.eos_id, shorter.config.pad_id, shorter.config.start_id) == (0, 1, 2)
    network = tiny(presets.gpt2(max_len=12))
    fails(ValueError, "at least the present 23: got 5", extended, network, 5)
    fails(ValueError, r"must hold `ids\.eos`: 3", trimmed, network, [0, 2, 5])
    fails(ValueError, "different ids below 23", trimmed, network, [0, 2, 3, 3])


def test_m14_the_reading_half_of_t5_classifies_and_positions_become_relative() -> None:
    """T5's encoder computes as before; the head is new and reads the mean of real tokens."""
    whole = tiny(presets.t5_small(attention={"d_head": 4}))
    encoder, load_report = to_encoder(whole, [HeadConfig("classification", labels=("no", "yes"), pooling="mean")])
    with torch.no_grad():
        torch.testing.assert_close(hidden(encoder), whole.encode(IDS, source_token_mask=REAL)[REAL], rtol=0, atol=1e-12)
        out = encoder(IDS, token_mask=REAL)
        mean = torch.stack([out.hidden[0].mean(0), out.hidden[1, :3].mean(0)])
        torch.testing.assert_close(out.logits, encoder.heads["classification"](mean), rtol=0, atol=1e-12)
    assert sorted(load_report.new) == ["heads.classification.out.bias", "heads.classification.out.weight"]
    assert all(name.startswith("decoder.") for name in load_report.unused)
    encoder = bert()
    changed, load_report = with_positions(encoder, (PositionConfig("t5"), PositionConfig("rotary")))
    assert load_report.new == ["stack.positions.schemes.0.weight"]
    assert load_report.unused == ["inputs.positions.schemes.0.weight"]
    bare, _ = with_positions(encoder, PositionConfig("none"))
    encoder.load_state_dict(encoder.state_dict() | {"inputs.positions.schemes.0.weight": torch.zeros(12, 8).double()})
    torch.testing.assert_close(hidden(bare), hidden(encoder), rtol=0, atol=1e-12)
    assert isinstance(changed, Encoder) and hidden(changed).shape == (9, 8)

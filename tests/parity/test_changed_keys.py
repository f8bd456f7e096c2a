"""Each key of a released folder's files, changed in turn in a small folder of each family, beside theirs.

Of `config.json`: the outputs are the same, or the load report names the key, or a sentence refuses the value.
"""

import json
import math
import os
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers.pre_tokenizers import Metaspace

import atento
from atento.base.errors import AtentoError, TokenizerError
from atento.config.tables.released_keys import FILES
from atento.released.read_layout import class_defaults
from atento.tasks.classification import classifications
from atento.text.tokenizer import Tokenizer
from released import CASES, saved
from released import theirs as their_network
from released_folders import FAIRSEQ, FRONT, TEXTS, TOKENIZERS, _byte_level, _wordpiece, bpe, modernbert, unigram
from test_families import compare as compare_networks

CONFIG, MAP = "tokenizer_config.json", "special_tokens_map.json"
DEFINITION, ADDED = "tokenizer.json", "added_tokens.json"
SOME = [*TEXTS[:3], "  a menina  viu o cão ", "AÇÃO, Coração e ``Avó''!", "não 漢字kanji x\r\ny <x> <extra>"]
SOME += ["o gato , a ave . o n't", "não <x> 12.5%", "é", " ", ""]


def _bytes_of_bpe() -> dict[str, Any]:
    """Llama's pieces: BPE over characters that falls back to bytes."""
    front = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return bpe(front, 600, pre_tokenizer=Metaspace(split=True), unk_token="<unk>", byte_fallback=True, fuse_unk=True)


CASED: dict[str, Any] = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
CASED |= {"strip_accents": False, "lowercase": False}
OTHER_RULES = {"normalizer": CASED, "post_processor": None}
LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
CAMEMBERT = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"]
DEBERTA = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
PLAIN = ("distilbert", "electra", "mpnet", "modernbert")
# how a family's tokenizer is made, the `model_type` beside it, and parts of `tokenizer.json` that are others
LAYOUTS: dict[str, tuple[Callable[[], Any], str, dict[str, Any]]] = {
    **{name: (TOKENIZERS[name], name, {}) for name in (*PLAIN, "qwen2", "albert", "mbart", "pegasus")},
    "bert": (lambda: hf.BertTokenizer(vocab=_wordpiece().get_vocab()), "bert", {}),
    "bert, generic class": (modernbert, "bert", {}),
    "bert, other rules": (lambda: hf.BertTokenizer(vocab=_wordpiece().get_vocab()), "bert", OTHER_RULES),
    "bert, generic class, other rules": (modernbert, "bert", OTHER_RULES),
    "roberta": (lambda: hf.RobertaTokenizer(**_byte_level(FAIRSEQ)), "roberta", {}),
    "bart": (lambda: hf.BartTokenizer(**_byte_level(FAIRSEQ)), "bart", {}),
    "gpt2": (lambda: hf.GPT2Tokenizer(**_byte_level(["<|endoftext|>"])), "gpt2", {}),
    "deberta-v2": (lambda: hf.DebertaV2Tokenizer(vocab=unigram(DEBERTA), unk_id=3), "deberta-v2", {}),
    "xlm-roberta": (lambda: hf.XLMRobertaTokenizer(vocab=[*unigram(FRONT), ("<mask>", 0.0)]), "xlm-roberta", {}),
    "camembert": (lambda: hf.CamembertTokenizer(vocab=[*unigram(CAMEMBERT), ("<mask>", 0.0)]), "camembert", {}),
    "t5": (lambda: hf.T5Tokenizer(vocab=unigram(["<pad>", "</s>", "<unk>"]), extra_ids=5), "t5", {}),
    "mbart50": (lambda: hf.MBart50Tokenizer(vocab=unigram(["<unk>", "<s>", "</s>"]), src_lang="en_XX"), "mbart", {}),
    "nllb": (lambda: hf.NllbTokenizer(**_byte_level(FRONT), src_lang="eng_Latn"), "m2m_100", {}),
    "llama": (lambda: hf.LlamaTokenizer(**_bytes_of_bpe()), "llama", {}),
    "llama, ByteLevel alone": (lambda: hf.LlamaTokenizer(**_bytes_of_bpe()), "llama", {"post_processor": LEVEL}),
    "gemma": (lambda: hf.GemmaTokenizer(**_bytes_of_bpe()), "gemma", {}),
}
PIECE = "piece"  # stands for a piece of the vocabulary that is in none of the texts
_TOKENS = [f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
_LISTS = ("additional_special_tokens", "extra_special_tokens")
# key -> values that a file may have in place of its own
_ONE: dict[str, Any] = {"added_tokens_decoder": "new", "model_max_length": 5, "offset": 0, "mask_token_sent": None}
_ONE |= {"chat_template": "{{ messages[0].content }}", "language_codes": "m2m100", "truncation_side": "left"}
_ONE |= {"atento": {"kind": "unigram", "lowercase": False}, "name_or_path": "other", "vocab_file": "other.txt"}
_ONE |= dict.fromkeys(("special_tokens_map_file", "tokenizer_file"), "other.json") | {"merges_file": "other.txt"}
_ONE |= dict.fromkeys(("spm_file", "source_spm", "target_spm"), "other.model") | {"auto_map": {"AutoTokenizer": None}}
_ONE |= {"backend": "tokenizers", "processor_class": "Processor", "model_input_names": ["input_ids"], "stride": 1}
_ONE |= {"padding_side": "left", "pad_to_multiple_of": 8, "cls_token_type_id": 2, "truncation_strategy": "only_first"}
_ONE |= {"model_specific_special_tokens": {"other_token": PIECE}, "errors": "ignore", "never_split": ["gato"]}
_ONE |= {"tgt_lang": "ro_RO", "source_lang": "en", "target_lang": "pt", "vocab_type": "spm", "sep": " "}
_ONE |= {"special_tokens": ["gato"], "sp_model_kwargs": {"enable_sampling": True}}
_ONE |= dict.fromkeys(("extra_ids", "pad_token_type_id", "max_length", "max_len", "num_madeup_words"), 3)
_ONE |= dict.fromkeys(("separate_vocabs", "legacy_behaviour", "split_special_tokens", "is_local", "padding"), True)
_ONE |= dict.fromkeys(("local_files_only", "return_token_type_ids", "truncation", "add_special_tokens"), True)
_ONE |= dict.fromkeys(("add_prefix_space_char", "from_slow", "use_default_system_prompt"), True)
_ONE |= dict.fromkeys(("use_fast", "trim_offsets", "do_basic_tokenize", "do_split", "remove_space"), False)
_ONE |= {"spaces_between_special_tokens": False, "markers": [PIECE]} | {key: [PIECE] for key in _LISTS}
_BOTH = ["add_bos_token", "add_eos_token", "do_lower_case", "tokenize_chinese_chars", "keep_accents", "split_by_punct"]
VALUES: dict[str, dict[str, list[Any]]] = {
    CONFIG: {key: [value] for key, value in _ONE.items()}
    | {key: [PIECE, None] for key in _TOKENS}
    | {key: [True, False] for key in (*_BOTH, "legacy", "clean_up_tokenization_spaces")}
    | {key: [True, False, None] for key in ("add_prefix_space", "strip_accents")}
    | {"tokenizer_class": [None, "PreTrainedTokenizerFast", "TokenizersBackend"]}
    | {"src_lang": ["ro_RO", "fra_Latn"], "language": ["pt_XX", "por_Latn"]},
    MAP: {key: [PIECE] for key in _TOKENS} | {key: [[PIECE]] for key in _LISTS},
    ADDED: {"a token": ["new"], "a piece": ["old"]},
}
# file, key -> why ours is another than theirs, or refused by a sentence; each of them differs somewhere
BY_DESIGN = {
    (CONFIG, "unk_token"): "another unknown token than that of the model in `tokenizer.json` is refused",
    (MAP, "unk_token"): "as in the settings",
    (CONFIG, "eos_token"): "theirs takes an id that the class states in place of a token that is not there",
    (CONFIG, "bos_token"): "as `eos_token`",
    (CONFIG, "cls_token"): "as `eos_token`",
    (CONFIG, "sep_token"): "as `eos_token`",
    (CONFIG, "src_lang"): "a language that the tokenizer has not is refused; theirs reads the unknown token",
    (CONFIG, "language"): "ours, of an adapted translator: the language of sources; refused where there are none",
    (CONFIG, "atento"): "ours, of a tokenizer that Atento trained; refused for another",
    (CONFIG, "markers"): "ours: special tokens that texts may spell",
    (CONFIG, "tokenizer_class"): "mBART-50 without its class is read by its frame, not as the first mBART",
    (CONFIG, "add_special_tokens"): "theirs cannot be built from it",
    (CONFIG, "add_prefix_space"): "theirs refuses null, which is the default here",
    (CONFIG, "additional_special_tokens"): "theirs does not read it beside `extra_special_tokens`",
    (MAP, "additional_special_tokens"): "as in the settings",
    (CONFIG, "clean_up_tokenization_spaces"): "a text is decoded as its tokens spell it",
}
# not seen in ids: what they say has its own test
ELSEWHERE = {"model_max_length", "chat_template", "truncation_side", "split_special_tokens"}
# read without `tokenizer.json`
NO_FILE = {"extra_ids", "offset", "mask_token_sent", "language_codes", "separate_vocabs", *_BOTH[:2]}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    place = tmp_path_factory.mktemp("layouts")

    @cache
    def make(name: str) -> Path:
        folder = place / name
        made, model_type, other = LAYOUTS[name]
        made().save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        definition = json.loads((folder / DEFINITION).read_text()) | other
        (folder / DEFINITION).write_text(json.dumps(definition))
        return folder

    return make


def changed(folder: Path, place: Path, file: str, key: str, value: Any) -> Path:
    """A copy of the folder in which one key of one file has that value."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place)
    definition = json.loads((place / DEFINITION).read_text())
    vocabulary = definition["model"]["vocab"]
    ids = vocabulary if isinstance(vocabulary, dict) else {piece: n for n, (piece, _) in enumerate(vocabulary)}
    pieces = sorted(ids, key=ids.__getitem__)
    free = max(len(pieces), *(token["id"] + 1 for token in definition["added_tokens"]))
    spelled = "".join(SOME).lower()
    ends = "#▁Ġ"
    piece = next(one for one in pieces[40:] if one.strip(ends).isalpha() and one.strip(ends).lower() not in spelled)
    path = place / file
    data = json.loads(path.read_text()) if path.exists() else {}
    if file == ADDED:
        known = next(one for one in pieces[40:] if one.strip("#▁Ġ").isalpha())
        data = {"<x>": free} if value == "new" else {known: ids[known]}
    elif key == "added_tokens_decoder":
        plain = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word", "special"), False)
        kept = {str(token.pop("id")): token for token in definition["added_tokens"]}
        data[key] = kept | {str(free): {"content": "<x>"} | plain}
    else:
        data[key] = json.loads(json.dumps(value).replace(f'"{PIECE}"', json.dumps(piece)))
    path.write_text(json.dumps(data))
    return place


def has_segments(folder: Path) -> bool:
    return json.loads((folder / "config.json").read_text())["model_type"] in ("bert", "deberta-v2")


def theirs(folder: Path) -> Any:
    """Ids with special tokens, without, of a pair, text, and the ids that have none; or the class of the error."""
    try:
        peer = hf.AutoTokenizer.from_pretrained(folder)
        plain = [peer(text, add_special_tokens=False)["input_ids"] for text in SOME]
        said = [peer.decode(ids, skip_special_tokens=True) for ids in plain if peer.unk_token_id not in ids]
        both = peer("o gato", TEXTS[0])
        given = both.get("token_type_ids", [0] * len(both["input_ids"]))
        pair = both["input_ids"], given if has_segments(folder) else []
        shown = set(range(40, 400)) - {peer.unk_token_id}
        hidden = [number for number in sorted(shown) if not peer.decode([number], skip_special_tokens=True)]
        return [peer(text)["input_ids"] for text in SOME], plain, pair, said, hidden
    except Exception as error:  # of any class
        return type(error)


def ours(folder: Path) -> Any:
    try:
        tokenizer = Tokenizer.load(folder)
        plain = tokenizer.encode_batch(SOME)
        unknown = tokenizer.specials.get("unk") if tokenizer.specials.visible_ids else None
        said = [tokenizer.decode(ids) for ids in plain if unknown not in ids]
        both, given = tokenizer.with_specials(tokenizer.encode("o gato"), tokenizer.encode(TEXTS[0]))
        pair = both, given if has_segments(folder) else []
        hidden = [number for number in sorted({*range(40, 400)} - {unknown}) if not tokenizer.decode([number])]
        return [tokenizer.with_specials(ids)[0] for ids in plain], plain, pair, said, hidden
    except TokenizerError as error:
        assert len(str(error)) > 20
        return type(error)


def grid() -> list[tuple[str, str, Any]]:
    return [(file, key, value) for file, keys in VALUES.items() for key, values in keys.items() for value in values]


def compare(layouts: list[str], rows: list[tuple[str, str, Any]], base: Any, place: Path) -> dict[str, set[Any]]:
    """The rows whose outcome differs between the two, moves theirs, and moves ours."""
    found: dict[str, set[Any]] = {"differs": set(), "theirs move": set(), "ours move": set()}
    for name in layouts:
        plain = theirs(base(name))
        assert ours(base(name)) == plain, name
        for file, key, value in rows:
            folder = changed(base(name), place, file, key, value)
            peer, own = theirs(folder), ours(folder)
            cases = {"differs": peer != own, "theirs move": peer != plain, "ours move": own != plain}
            for case in (case for case, holds in cases.items() if holds):
                found[case].add((file, key))
                if case == "differs" and (file, key) not in BY_DESIGN:
                    pytest.fail(f"{name}: {file}: {key} {value!r}: {peer} is theirs, {own} ours")
    return found


def test_every_key_has_values() -> None:
    for file in (CONFIG, MAP):
        keys = FILES[file]
        assert VALUES[file].keys() == {*keys.computed, *keys.harmless, *keys.refused}, file


def test_some_keys_changed_in_turn(base: Callable[[str], Path], tmp_path: Path) -> None:
    """A part drawn from the seed of the day before the gate runs: each layout, and each key somewhere."""
    drawn, rows = random.Random(int(os.environ.get("ATENTO_KEYS_SEED", "60"))), grid()
    drawn.shuffle(rows)
    names = list(LAYOUTS)
    for number, name in enumerate(names):
        compare([name], rows[number :: 3 * len(names)], base, tmp_path / "changed")


@pytest.mark.slow
def test_every_key_changed_in_turn(base: Callable[[str], Path], tmp_path: Path) -> None:
    found = compare(list(LAYOUTS), grid(), base, tmp_path / "changed")
    assert found["differs"] == set(BY_DESIGN), "a row that does nothing, or a key that has none"
    for file in (CONFIG, MAP):
        keys = FILES[file]
        moved = {key for place, key in found["ours move"] if place == file}
        assert set(keys.computed) - moved <= ELSEWHERE | NO_FILE, "computed, and changes nothing"
        still = {key for place, key in found["theirs move"] if place == file and (place, key) not in BY_DESIGN}
        assert not still & {*keys.harmless, *keys.refused}, "said to change nothing, and does"


@pytest.mark.parametrize("name", ["bert, generic class, other rules", "llama, ByteLevel alone"])
@torch.no_grad()
def test_what_the_folder_adds_is_read_in_use(name: str, base: Callable[[str], Path], tmp_path: Path) -> None:
    """Texts, pairs, labels, perplexity, outputs and an export, where `tokenizer.json` adds nothing around a text."""
    folder = shutil.copytree(base(name), tmp_path / "released")
    peer = hf.AutoTokenizer.from_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    torch.manual_seed(0)
    if name.startswith("bert"):
        network = hf.BertForSequenceClassification(hf.BertConfig(vocab_size=len(peer), num_labels=3, **sizes)).eval()
        network.classifier.weight.normal_(std=4.0)
        network.save_pretrained(folder)
        model = atento.load(folder)
        for given, read in (((TEXTS[0],), [TEXTS[0]]), ((TEXTS[0], TEXTS[1]), [(TEXTS[0], TEXTS[1])])):
            wanted = network(**peer(*given, return_tensors="pt")).logits.softmax(-1)[0].tolist()
            found = [label.probability for label in classifications(model, read)[0]]
            assert sorted(found) == pytest.approx(sorted(wanted), abs=1e-5)
    else:
        config = hf.LlamaConfig(vocab_size=len(peer), num_key_value_heads=1, bos_token_id=1, eos_token_id=2, **sizes)
        network = hf.LlamaForCausalLM(config).eval()
        network.save_pretrained(folder)
        model = atento.load(folder)
        ids = peer(TEXTS[0], return_tensors="pt")["input_ids"]
        nll = float(network(input_ids=ids, labels=ids).loss)
        assert model.perplexity([TEXTS[0]]).value == pytest.approx(math.exp(nll), rel=1e-4)
        out = network.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :]
        assert model.generations([TEXTS[0]], max_new_tokens=6)[0][0].hypothesis.ids == out.tolist()
    exported = hf.AutoTokenizer.from_pretrained(model.save(tmp_path / "out", layout="huggingface"))
    assert [exported(text)["input_ids"] for text in SOME] == [peer(text)["input_ids"] for text in SOME]


FIRST = list({case[1].model_type: name for name, case in reversed(CASES.items())}.values())  # a case of each family
OUTPUTS_BY_DESIGN = {  # key of `config.json` -> why the outputs differ from theirs although the load report is silent
    "decoder_start_token_id": "`generation_config.json` holds, as in `generate`; their networks alone read this one",
    "is_encoder_decoder": "theirs cannot be run",
    "is_decoder": "the family says which way a network reads",
    "pad_token_id": "M2M-100's positions count padding by its id in theirs, by the mask here",
}


def values_of(key: str, value: Any) -> list[Any]:
    """Other values that a file may have."""
    if isinstance(value, bool):
        return [not value]
    if "act" in key.split("_")[-1] or key.startswith(("activation", "hidden_act")):
        names = ("relu", "silu", "gelu_new", "quick_gelu")
        return [name for name in names if name != value] if isinstance(value, str) else []
    if key == "feed_forward_proj":
        return ["gated-gelu", "gated-silu", "gelu", "silu"]
    if key == "position_embedding_type":
        return ["relative_key"]
    if isinstance(value, int):
        return [value + 1, 0]
    return [value * 2 + 0.125] if isinstance(value, float) else []


def rows_of(name: str, folder: Path) -> list[tuple[str, Any]]:
    keys = class_defaults(CASES[name][1].model_type) | json.loads((folder / "config.json").read_text())
    return [(key, value) for key, now in sorted(keys.items()) for value in values_of(key, now)]


def outcome(name: str, folder: Path, key: str, value: Any) -> str:
    """What becomes of a folder with that value: same, named, refused, or what is wrong."""
    path = folder / "config.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | {key: value}))
    try:
        try:
            model = atento.load(folder)
        except AtentoError as error:
            assert len(str(error)) > 30
            return "refused"
        try:
            other = CASES[name][0].from_pretrained(folder).eval()
        except Exception:  # of any class
            return "theirs is refused"
        assert model.load_report is not None
        if key in model.load_report.unread:
            return "named"
        try:
            for side in ("right", "left"):
                compare_networks(model.network, other, side)
        except Exception as error:  # a difference, or one of the two cannot be run
            return f"differs: {type(error).__name__} {str(error)[:80]}"
        return "same"
    finally:
        path.write_text(before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FIRST)
def test_some_keys_of_config_changed_in_turn(name: str, tmp_path: Path) -> None:
    folder = saved(their_network(name), tmp_path)
    seed = f"{name} {os.environ.get('ATENTO_KEYS_SEED', '60')}"
    for key, value in random.Random(seed).sample(rows_of(name, folder), 3):
        found = outcome(name, folder, key, value)
        assert not found.startswith("differs") or key in OUTPUTS_BY_DESIGN, (key, value, found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_every_key_of_config_changed_in_turn(tmp_path: Path) -> None:
    differs, outcomes = set(), set()
    for number, name in enumerate(FIRST):
        folder = saved(their_network(name), tmp_path / str(number))
        for key, value in rows_of(name, folder):
            found = outcome(name, folder, key, value)
            outcomes.add(found.partition(":")[0])
            if found.startswith("differs"):
                assert key in OUTPUTS_BY_DESIGN, (name, key, value, found)
                differs.add(key)
    assert differs == set(OUTPUTS_BY_DESIGN), "a row that does nothing"
    assert outcomes >= {"same", "refused", "differs"}

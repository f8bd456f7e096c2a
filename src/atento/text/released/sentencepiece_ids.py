"""Tokenizers whose pieces are those of a SentencePiece model and whose ids are in `vocab.json`: Marian and M2M-100.

`vocab.json` may serve two languages, so a piece of a model may have no id, which makes it unknown, and an id may have
no piece. The package `sentencepiece` splits the text, so that its normalisation is exact.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atento.base.errors import MissingPartError, TokenizerError, install_hint, nearest
from atento.text.kinds import SPACE
from atento.text.released import families
from atento.text.released.spm import fields, read_model
from atento.text.specials import SpecialTokens, Template, languages_of
from atento.text.tokenizer_folder import Parts, read_file, specials_of

TYPES = {"Marian": "marian", "M2M100": "m2m_100"}
"""The `type` of the model in the definition of these tokenizers -> the family."""

_M2M_CODES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy "
    "id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru "
    "sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)
M2M_LANGUAGES = {"m2m100": tuple(_M2M_CODES.split()), "wmt21": ("en", "ha", "is", "ja", "cs", "ru", "zh", "de")}
"""The languages of M2M-100 and of its successor of WMT 2021, in the order of their ids, behind the pieces."""

TemplateOf = Callable[[Mapping[str, object], SpecialTokens], Template]
"""(settings, special tokens) -> the special tokens around texts."""


@dataclass(frozen=True)
class Cut:
    """A text split into pieces; `offsets` count characters."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]


class SentencePieceIds:
    """The tokenizer of a SentencePiece model and a vocabulary."""

    def __init__(self, model: bytes, vocabulary: Mapping[str, int], specials: Mapping[str, int], unk: str, path: Path):
        """Args:
            model: the bytes of the SentencePiece model.
            vocabulary: piece -> id.
            specials: the special pieces, with their ids.
            unk: the unknown piece, one of `specials`.
            path: its file, for messages.

        Raises:
            TokenizerError: the file is truncated or not a SentencePiece model.
            MissingPartError: the package `sentencepiece` is not installed.
        """
        self.kind = read_model(model, path).kind
        try:
            import sentencepiece
        except ImportError:
            raise MissingPartError(f"reading {path.name} needs sentencepiece: {install_hint('spm')}") from None
        self._processor: Any = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except (RuntimeError, ValueError, OSError, TypeError) as error:
            raise TokenizerError(f"{path} must be a complete SentencePiece model: {error}") from None
        self._ids = vocabulary
        self._pieces = {i: piece for piece, i in vocabulary.items()}
        self._specials = specials
        self._unk_id = vocabulary[unk]

    def _id(self, piece: str) -> int:
        """The id of a piece of user text, which is never a special id except that of `unk`."""
        return self._unk_id if piece in self._specials else self._ids.get(piece, self._unk_id)

    def encode_batch_fast(self, input: Sequence[str], *, add_special_tokens: bool = False) -> list[Cut]:
        """Split many texts, without offsets; no special tokens are added."""
        cut = self._processor.Encode(list(input), out_type=str, num_threads=1)
        return [Cut([self._id(piece) for piece in pieces], list(pieces), []) for pieces in cut]

    def encode(self, sequence: str, *, add_special_tokens: bool = False) -> Cut:
        """Split a text, with the character offsets of each piece."""
        serialized = self._processor.Encode(sequence, out_type="serialized_proto")  # in the fields of SentencePieceText
        parts = (value for number, value in fields(serialized) if number == 2 and isinstance(value, bytes))
        piece_fields = [dict(fields(part)) for part in parts]
        pieces = [bytes(piece_field.get(1, b"")).decode("utf-8", "replace") for piece_field in piece_fields]
        char_at: list[int] = []  # of each byte of the text, and of its end
        for i, char in enumerate(sequence):
            char_at += [i] * len(char.encode("utf-8"))
        char_at.append(len(sequence))
        offsets = [(char_at[int(one.get(4, 0))], char_at[int(one.get(5, 0))]) for one in piece_fields]
        return Cut([self._id(piece) for piece in pieces], pieces, offsets)

    def normalize(self, text: str) -> str:
        """Normalise a text as SentencePiece does."""
        return str(self._processor.Normalize(text)).replace(SPACE, " ").strip(" ")

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of the pieces; special tokens have a space on both sides."""
        out: list[str] = []
        run = ""
        for i in ids:
            piece = self._pieces.get(i, "")
            if piece not in self._specials:
                run += piece  # pieces between special tokens
            elif not skip_special_tokens:
                out += [self._spelled(run), piece, " "]
                run = ""
        return ("".join(out) + self._spelled(run)).strip()

    @staticmethod
    def _spelled(run: str) -> str:
        return run.replace(SPACE, " ").removeprefix(" ")

    def id_to_token(self, id: int) -> str | None:
        """The piece of an id; None if the vocabulary has a gap there."""
        return self._pieces.get(id)

    def token_to_id(self, token: str) -> int | None:
        """The id of a piece; None if it has none."""
        return self._ids.get(token)

    def get_vocab(self, *, with_added_tokens: bool = True) -> Mapping[str, int]:
        """Piece -> id."""
        return self._ids


def marian(sources: families.Sources, template_of: TemplateOf) -> Parts:
    """Both sides of a Marian model; tokens such as `>>fra<<`, which choose the target language, are special."""
    directory, files = sources.directory, dict(sources.files)
    tables = {"source": "vocab.json", "target": "vocab.json"}
    if sources.config.get("separate_vocabs"):
        tables["target"] = "target_vocab.json"
        files[tables["target"]] = read_file(directory / tables["target"])
    dropped = ("bos_token", "cls_token", "sep_token")
    settings = {key: value for key, value in sources.config.items() if key not in dropped}
    sides: dict[str, Parts] = {}
    for side in ("target", "source"):  # the source's parts hold the target's
        path = directory / tables[side]
        vocabulary = families.numbered(files[tables[side]], path)
        codes = [piece for piece in vocabulary if piece.startswith(">>") and piece.endswith("<<")]
        unk = families.unknown(settings, "<unk>", vocabulary, path)
        data = {
            "model": {"type": "Marian", "unk_token": unk, "vocab": vocabulary},
            "added_tokens": [{"content": text, "id": vocabulary[text], "special": True} for text in codes],
            "side": side,
            "models": [families.digest(files[name]) for name in ("source.spm", "target.spm")],
        }
        spm = directory / f"{side}.spm"
        sides[side] = _parts(data, settings, families.Sources(directory, settings, files), spm, template_of, sides)
    return sides["source"]


def m2m_100(sources: families.Sources, template_of: TemplateOf) -> Parts:
    """M2M-100 (Fan et al. 2021): the tokens of its languages, such as `__pt__`, follow the pieces of `vocab.json`.

    Setting: `language_codes`, a row of `M2M_LANGUAGES` (m2m100).
    """
    path = sources.directory / "vocab.json"
    pieces = families.numbered(sources.files["vocab.json"], path)
    name = sources.config.get("language_codes") or "m2m100"
    if name not in M2M_LANGUAGES:
        raise TokenizerError(
            f"`language_codes` in {sources.directory}: unknown list {name!r}{nearest(str(name), list(M2M_LANGUAGES))}"
        )
    languages = {f"__{code}__": len(pieces) + number for number, code in enumerate(M2M_LANGUAGES[name])}
    stated = {token.content: number for number, token in families.stated_tokens(sources).items()}
    languages |= {token: stated[token] for token in languages_of(stated).values()}  # those that were added
    spm = sources.directory / "sentencepiece.bpe.model"
    unk = families.unknown(sources.config, "<unk>", pieces, path)
    data = {
        "model": {"type": "M2M100", "unk_token": unk, "vocab": pieces | languages},
        "added_tokens": [{"content": text, "id": number, "special": True} for text, number in languages.items()],
        "models": [families.digest(sources.files[spm.name])],
    }
    return _parts(data, sources.config, sources, spm, template_of, {})


def _parts(
    data: dict[str, Any],
    settings: Mapping[str, object],
    sources: families.Sources,
    spm: Path,
    template_of: TemplateOf,
    sides: Mapping[str, Parts],
) -> Parts:
    """The parts of one tokenizer; `sides` has the target's where there is one."""
    model = data["model"]
    specials = specials_of(data, dict(settings), sources.directory)
    backend = SentencePieceIds(sources.files[spm.name], model["vocab"], specials.ids, model["unk_token"], spm)
    definition, files, target = json.dumps(data, ensure_ascii=False), sources.files, sides.get("target")
    family, template = TYPES[model["type"]], template_of(settings, specials)
    return Parts(definition, backend.kind, specials, False, False, files, template, backend, target, family=family)

"""`atento translate MODEL FILE.srt`: a document in place of lines."""

import locale
import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from atento.base.errors import UsageError
from atento_cli.command_progress import show_batches
from atento_cli.lines import LineOptions
from atento_cli.options import check_order, progress
from atento_cli.output_paths import output_file


def translate_document(
    shared: LineOptions,
    model: str,
    options: dict[str, Any],
    out: Path | None,
    refused: Mapping[str, object],
    **reading: bool,
) -> None:
    """Translate the document in a file, and write it to a file, else to standard output.

    Args:
        shared: the options of the command.
        model: its argument.
        options: of `Model.translations`.
        out: the file.
        refused: flags that have no effect on documents, with their values.
        reading: the options of `read_document`.

    Raises UsageError: one of them is given, or `out` has another ending. DataError: the document is wrong; says where.
    """
    from atento.data.files.source_lines import open_binary
    from atento.storage.atomic_files import write_output
    from atento.text.documents import read_document
    from atento.text.documents.document_sentences import DocumentSentences
    from atento.text.documents.segments import MOST
    from atento.text.glossary import Glossary

    file = shared.file
    check_order(model, file)
    for flag, value in refused.items():
        if value not in (None, False):
            raise UsageError(f"{flag} has no effect on a document: --lines reads {file} as plain lines")
    ending = Path(file).suffix.lower()
    if out is not None:
        output_file(out, (ending,))
    elif ending == ".docx" and sys.stdout.isatty():
        raise UsageError("--out FILE.docx: a terminal shows no Word documents")
    with open_binary(Path(file), file) as stream:
        document = read_document(stream.read(MOST + 1), file, **reading)  # one more shows that it is too large
    work = DocumentSentences(document)
    if not work.sentences:
        progress(f"warning: {file}: no text to translate was found in it")
    with shared.loaded(model) as loaded, show_batches("translate"):
        outputs = [rows[0].text for rows in loaded.translations(work.sentences, **{"protect": True, **options})]
    written = work.written(outputs, _language(model, options.get("target_language")))
    if out is None:
        sys.stdout.buffer.write(written)
        sys.stdout.buffer.flush()
    else:
        write_output(out, written)
        progress(f"wrote {out}: {len(work.sentences):,} sentences of {len(document.texts):,} texts")
    glossary = options.get("glossary")
    if isinstance(glossary, Glossary):
        kept = [is_kept for pair in zip(work.sentences, outputs) for is_kept in glossary.report(*pair).values()]
        progress(f"terms of the glossary: {len(kept)} met, {sum(kept)} kept")


def _language(model: str, named: str | None) -> str | None:
    """The code of the language that a model writes, such as "pt" or "pt-BR"; None: it is unknown.

    It is that of the option, such as pt_XX or por_Latn, or else the last of two that end the name of the model.
    """
    pair = re.search(r"(?:^|[-_])([a-z]{2})[-_]([a-z]{2})$", Path(model).name)
    if named is None:
        is_pair = pair is not None and {*pair.groups()} <= locale.locale_alias.keys()
        return pair[2] if pair is not None and is_pair else None
    code, _, region = named.replace("_", "-").partition("-")
    if len(code) == 3 and find_spec("langcodes") is not None:
        from langcodes import standardize_tag

        code = standardize_tag(code, macro=True)
    is_region = re.fullmatch("[A-Z]{2}", region) is not None and region != "XX"
    return (f"{code}-{region}" if is_region else code) if re.fullmatch("[a-z]{2,3}", code) else None

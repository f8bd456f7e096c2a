"""`atento translate MODEL FILE.srt`: a document in place of lines."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atento.cli.command_progress import show_batches
from atento.cli.lines import LineOptions
from atento.cli.options import check_order, progress
from atento.cli.output_paths import output_file
from atento.errors import UsageError


def translate_document(
    shared: LineOptions, model: str, options: dict[str, Any], out: Path | None, refused: Mapping[str, object]
) -> None:
    """Translate the document in a file, and write it to a file, else to standard output.

    Args:
        shared: the options of the command.
        model: its argument.
        options: of `Model.translations`.
        out: the file.
        refused: flags that have no effect on documents, with their values.

    Raises UsageError: one of them is given, or `out` has another ending. DataError: the document is wrong; says where.
    """
    from atento.data.files.source_lines import open_binary
    from atento.storage.whole_file import write_output
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
        document = read_document(stream.read(MOST + 1), file)  # one more shows that it is too large
    work = DocumentSentences(document)
    with shared.loaded(model) as loaded, show_batches("translate"):
        outputs = [rows[0].text for rows in loaded.translations(work.sentences, **{"protect": True, **options})]
    written = work.written(outputs)
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

"""`--explain`: the words that a prediction comes from, in place of the prediction."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atento.base.errors import UsageError, nearest
from atento.base.terminal import write
from atento.config.tables.verbs import EXPLANATIONS
from atento_cli.completion import words
from atento_cli.lines import Check, LineOptions
from atento_cli.options import progress
from atento_cli.output_paths import output_file

if TYPE_CHECKING:
    from atento.inspection.explanation import Explanation
    from atento.model import Model

MOST = 64  # lines that --explain-out takes
_PANEL = "Explanations"
_HELP = f"How: {', '.join(EXPLANATIONS[:-1])} or {EXPLANATIONS[-1]}; implies --explain."


@dataclass(frozen=True)
class ExplainOptions(LineOptions):
    """The options of commands whose predictions can be explained, for `with_options`."""

    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Print how much each word adds to the prediction, not the prediction.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    explain_method: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help=_HELP, autocompletion=words(*EXPLANATIONS), rich_help_panel=_PANEL),
    ] = None
    explain_out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.html",
            help=f"Also write a page, of at most {MOST} lines; implies --explain.",
            rich_help_panel=_PANEL,
        ),
    ] = None

    def explains(
        self,
        command: str,
        model: str,
        texts: "Callable[[str], str | tuple[str, str]]",
        *,
        excluded: Mapping[str, object],
        check: Check | None = None,
        head: str | None = None,
        **options: Any,
    ) -> bool:
        """Print the explanation of each line, if one of the flags asks for it.

        Args:
            command: its name, which is the verb.
            model: the argument of the command.
            texts: a line -> the text or the two texts of it.
            excluded: flags of the command that have no effect on explanations, with their values.
            check, head: as in `LineOptions.answer`.
            options: of `Model.explain`.

        Returns:
            False if no explanation is asked for, and nothing was done.

        Raises UsageError: there is no such method, or a flag has no effect.
        """
        if not self.explain and self.explain_method is None and self.explain_out is None:
            return False
        method = self.explain_method or EXPLANATIONS[0]
        if method not in EXPLANATIONS:
            raise UsageError(f"--explain-method: unknown method {method!r}{nearest(method, list(EXPLANATIONS))}")
        for flag, value in {"--cluster": self.cluster, **excluded}.items():
            if value not in (None, False):
                raise UsageError(f"--explain and {flag} exclude each other")
        if self.explain_out is not None:
            output_file(self.explain_out, (".html",), "--explain-out")
        explained: list[Explanation] = []

        def show(loaded: "Model", lines: list[str], *_: object) -> None:
            for line in lines:
                if not line.strip():
                    write("\n")
                    continue
                explanation = loaded.explain(texts(line), method, verb=command, **options)
                record = json.dumps(explanation.to_dict(), ensure_ascii=False) if self.as_json else explanation.text()
                write(record + "\n")
                sys.stdout.flush()
                if self.explain_out is not None:
                    explained.append(explanation)
                if len(explained) > MOST:
                    raise UsageError(f"--explain-out takes at most {MOST} lines: got more")

        self.answer(command, model, show, ready=lambda _: None, check=check, per_line=False, head=head)
        if explained:
            from atento.inspection.explanation import explanation_page
            from atento.storage.atomic_files import write_output

            write_output(Path(str(self.explain_out)), explanation_page(explained))
            progress(f"wrote {self.explain_out}")
        return True

"""The release: its notes come from the changelog, which is in order; the version is that of the newest section."""

import re
import sys
from pathlib import Path

import pytest
from packaging.version import Version
from tools import release

CHANGELOG = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_notes_of_a_version_are_its_section_alone_and_versions_fall() -> None:
    text = "## [Unreleased]\n\n- c\n\n## [0.2.0] - 2026-11-26\n\n### Added\n\n- b\n\n## [0.1.0] - 2026-01-02\n\n- a\n"
    assert release.notes("0.2.0", text) == "### Added\n\n- b" and release.notes("0.1.0", text) == "- a"
    for number in ("0.3.0", "0.2", "0x2.0", "Unreleased"):
        with pytest.raises(SystemExit, match=re.escape(f"no section `## [{number}] - YEAR-MONTH-DAY`")):
            release.notes(number, "## [Unreleased]\n\n- c\n\n## [0.2.0] - 2026-11-26\n\n- b\n")
    with pytest.raises(SystemExit, match=r"status 3\nno such thing"):
        release.run(sys.executable, "-c", "import sys; print('no such thing', file=sys.stderr); sys.exit(3)")
    # Keep a Changelog: Unreleased first, then versions from the newest, each with a date, under six headings
    first, *headings = re.findall(r"^## (.+)$", CHANGELOG, flags=re.M)
    assert first == "[Unreleased]"
    found = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", heading) for heading in headings]
    assert all(found), headings
    versions = [Version(one[1]) for one in found if one]
    assert versions == sorted(versions, reverse=True) and versions[0] == Version(release.version())
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", CHANGELOG, flags=re.M)) <= kinds
    assert len(release.notes(release.version(), CHANGELOG)) > 1000


def test_an_interpreter_is_this_one_or_one_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shim with nothing behind it, as pyenv puts on the path, is passed over."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert release.interpreter(own) == sys.executable
    shim = tmp_path / "python9.9"
    shim.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert release.interpreter("9.9") is None
    kept = tmp_path / "pyenv" / "versions" / "9.9.1" / "bin" / "python9.9"
    kept.parent.mkdir(parents=True)
    kept.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    kept.chmod(0o755)
    assert release.interpreter("9.9") == str(kept)

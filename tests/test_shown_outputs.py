"""What the written pages show of a terminal is what the commands print today.

A fenced block that begins with ``$ tracekit`` is a command and its output, on files of this
repository. ``TRACEKIT_UPDATE_GOLDEN=1`` writes the outputs anew: read the diff.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from soaks import soak
from tracekit.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/tutorial.md", "docs/compare.md", "docs/whatif.md")
BLOCK = re.compile(r"^```\n\$ (tracekit .*(?:\\\n.*)*)\n((?:(?!```).*\n)*)```$", re.M)
LEFT_OUT = "[...]\n"
"""Ends an output of which only the beginning is shown."""
MORE_RULES = re.compile(r"\d+(?= more rules: --all)")
"""What every new rule adds one to; pages are not written anew for that."""


def shown() -> list[tuple[str, str]]:
    """Each page with each command that it shows."""
    return [
        (page, found[1])
        for page in PAGES
        for found in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8"))
    ]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all commands: they show the same few jobs."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize(
    ("page", "command"), soak(shown(), fast=[s for s in shown() if s[0] == "README.md"])
)
def test_a_page_shows_what_a_command_prints(
    page: str,
    command: str,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(cache))
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit, match=r"^0$"):
        main(shlex.split(command.replace("\\\n", " "))[1:])
    printed = capsys.readouterr().out
    text = (ROOT / page).read_text(encoding="utf-8")
    found = next(f for f in BLOCK.finditer(text) if f[1] == command)
    output = found[2]
    if output.endswith(LEFT_OUT):
        count = output.count("\n") - 1
        printed = "".join(printed.splitlines(keepends=True)[:count]) + LEFT_OUT
    if os.environ.get("TRACEKIT_UPDATE_GOLDEN"):
        text = text[: found.start(2)] + printed + text[found.end(2) :]
        (ROOT / page).write_text(text, encoding="utf-8")
    else:
        assert MORE_RULES.sub("N", output) == MORE_RULES.sub("N", printed)


def test_every_page_shows_something() -> None:
    assert {page for page, _ in shown()} == set(PAGES)

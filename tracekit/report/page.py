"""Lines with a label in the left column: the look of everything that a terminal shows."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from tracekit.target import COMMAND
from tracekit.wording import safe

INDENT = 10
_TIED = "\ue000"
"""Stands for a blank that no line may break at; private, so ``safe`` leaves none in a text."""
MIN_WIDTH = 40


class Page:
    """Lines of a report. Everything given passes ``safe``; colour is added after."""

    def __init__(self, *, width: int, color: bool) -> None:
        self._width = width
        self._color = color
        self._lines: list[str] = []

    def blank(self) -> None:
        self._lines.append("")

    def say(self, label: str, text: str, sgr: str = "1", lead: str = "") -> None:
        """A labelled paragraph, wrapped under its label and its lead (a verb, a padding)."""
        head = f"{label:<{INDENT}}{lead}" if len(label) < INDENT else f"{label}  {lead}"
        # A line break in a foreign name is a blank; other controls are made visible.
        shown = safe(re.sub(r"[\r\n\t]+", " ", text))
        body = textwrap.wrap(
            COMMAND.sub(lambda found: found[0].replace(" ", _TIED), shown),
            self._width,
            initial_indent=head,
            subsequent_indent=" " * (INDENT + len(lead)),
            break_on_hyphens=False,
            break_long_words=_TIED not in shown,
            drop_whitespace=True,
        )
        body = [line.replace(_TIED, " ") for line in body]
        if body and label:
            body[0] = self._styled(label, sgr) + body[0][len(label) :]
        self._lines += body

    def commands(self, label: str, commands: Sequence[str]) -> None:
        """Commands to paste, beside each other where they fit, and never wrapped: a shell would
        take the rest of a line for another one."""
        together = "    ".join(commands)
        for i, line in enumerate([together] if self.fits(together) else commands):
            head = f"{label:<{INDENT}}" if i == 0 else " " * INDENT
            self._lines.append(
                (self._styled(label, "1") + head[len(label) :] if i == 0 and label else head)
                + safe(line)
            )

    def title(self, text: str) -> None:
        """The first line, from the left edge."""
        self._lines += textwrap.wrap(
            safe(re.sub(r"[\r\n\t]+", " ", text)), self._width, subsequent_indent=" " * INDENT
        )

    def fits(self, text: str) -> bool:
        """Whether a labelled text needs one line only."""
        return INDENT + len(safe(text)) <= self._width

    def row(self, cells: Sequence[str], sgr: str = "", label: str = "") -> None:
        """One line of cells that are already padded, cut at the width."""
        line = safe((f"{label:<{INDENT}}" + "  ".join(cells)).rstrip())
        if len(line) > self._width:
            line = line[: self._width - 3] + "..."
        if label:
            line = self._styled(label, "1") + line[len(label) :]
        self._lines.append(self._styled(line, sgr) if sgr else line)

    def _styled(self, text: str, sgr: str) -> str:
        return f"\x1b[{sgr}m{text}\x1b[0m" if self._color and sgr else text

    @property
    def count(self) -> int:
        """Lines so far."""
        return len(self._lines)

    def text(self, limit: int | None, keep_from: int | None = None) -> str:
        """At most ``limit`` lines; those from ``keep_from`` on are not what is left out."""
        lines = self._lines
        if limit is not None and len(lines) > limit:
            end = lines[keep_from:] if keep_from is not None else []
            shown = max(0, limit - 1 - len(end))
            left_out = len(lines) - len(end) - shown
            lines = [*lines[:shown], f"{'':<{INDENT}}{left_out} more lines: --all", *end]
        return "\n".join(lines) + "\n"

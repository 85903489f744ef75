"""Lines with a label in the left column: the look of everything that a terminal shows."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from tracekit.target import COMMAND
from tracekit.wording import cut, safe, tied

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
        """A labelled paragraph, wrapped under its label and its lead (a verb, a padding).

        A long label stands in the blanks of its lead.
        """
        head = (
            f"{label:<{INDENT}}{lead}" if len(label) < INDENT else f"{label:<{INDENT + len(lead)}}"
        )
        shown = COMMAND.sub(lambda command: command[0].replace(" ", _TIED), _one_line(text))
        shown = tied(shown, _TIED)
        body = self._wrapped(shown, head, INDENT + len(lead))
        if body and label:
            body[0] = self._styled(label, sgr) + body[0][len(label) :]
        self._lines += body

    def parts(self, label: str, text: str) -> None:
        """As ``say``, for parts with three blanks between them: lines break there only."""
        body = self._wrapped(self._tied(text, 3), f"{label:<{INDENT}}", INDENT)
        if body and label:
            body[0] = self._styled(label, "1") + body[0][len(label) :]
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
        self._lines += self._wrapped(self._tied(text, 2), "", INDENT)

    def _tied(self, text: str, blanks: int) -> str:
        """The text with no blank to break at within a part that a line has room for; parts stand
        so many blanks apart."""
        return "".join(
            part if len(part) > self.room or not part.strip() else part.replace(" ", _TIED)
            for part in re.split(f"( {{{blanks},}})", _one_line(text))
        )

    def _wrapped(self, text: str, head: str, indent: int) -> list[str]:
        lines = textwrap.wrap(
            text,
            self._width,
            initial_indent=head,
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
            break_long_words=not COMMAND.search(text.replace(_TIED, " ")),
        )
        return [line.replace(_TIED, " ") for line in lines]

    @property
    def room(self) -> int:
        """Characters that a line has beside the label."""
        return self._width - INDENT

    def fits(self, text: str) -> bool:
        """Whether a labelled text needs one line only."""
        return INDENT + len(safe(text)) <= self._width

    def row(self, cells: Sequence[str], sgr: str = "", label: str = "") -> None:
        """One line of cells that are already padded, cut at the width."""
        line = cut(safe((f"{label:<{INDENT}}" + "  ".join(cells)).rstrip()), self._width)
        if label:
            line = self._styled(label, "1") + line[len(label) :]
        self._lines.append(self._styled(line, sgr) if sgr else line)

    def _styled(self, text: str, sgr: str) -> str:
        return f"\x1b[{sgr}m{text}\x1b[0m" if self._color and sgr else text

    def cut(self, count: int) -> None:
        """Forget the lines after so many."""
        del self._lines[count:]

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


def _one_line(text: str) -> str:
    """A line break in a foreign name is a blank; other controls are made visible."""
    return safe(re.sub(r"[\r\n\t]+", " ", text))

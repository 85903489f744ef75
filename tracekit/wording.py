"""How numbers and foreign names become words that a tired person can read.

Everything that reaches a sentence or a terminal goes through here: one spelling of durations,
shares and rank lists, and no control character from a stranger's file.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence

from tracekit.ranges import Ranges


def safe(text: str) -> str:
    """The text with everything unprintable written as an escape.

    Control characters, bidirectional overrides and lone surrogates in a kernel name or a path
    could move the cursor, recolour the terminal or reorder a line.
    """
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def safe_lines(text: str) -> str:
    """As ``safe``, for text of several lines: what follows a line break is indented.

    So nothing foreign can pass for a line of ours (``hint:``) or move the cursor.
    """
    return "\n  ".join(safe(line.expandtabs(4)) for line in text.rstrip("\n").split("\n"))


def shell_word(word: str) -> str:
    """The word as a shell reads it back, whatever is in it; plain names stay as they are.

    What no terminal can show is spelled in ``$'...'``, which every shell but dash knows.
    """
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_spelled, word))}'"


def _spelled(char: str) -> str:
    if char.isprintable():
        return f"\\{char}" if char in "\\'" else char
    # A byte of a file name that is not UTF-8 comes as a lone surrogate, and goes back as that byte.
    how = "surrogateescape" if 0xDC80 <= ord(char) <= 0xDCFF else "surrogatepass"
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", how))


def shell_path(path: str | os.PathLike[str]) -> str:
    """A path as an argument: quoted, and never taken for an option."""
    text = os.fspath(path)
    return shell_word(f"./{text}" if text.startswith("-") else text)


_BEFORE_UNIT = re.compile(
    r"(?<=\d) (?=(?:[mun]?s|min|h|d|%|[kMGT]?B(?:/s)?|[TG]FLOP/s|[MG]Hz|W|°C)(?![\w/]))"
)


def tied(text: str, blank: str) -> str:
    """The text with this in the place of the blank between each number and its unit, where no line
    should end."""
    return _BEFORE_UNIT.sub(blank, text)


def _escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def seconds(value_s: float) -> str:
    """A duration with three significant digits in the unit that suits it: 2.26 s, 312 ms."""
    magnitude = abs(value_s)
    if magnitude == 0:
        return "0 s"
    if magnitude >= 1000:
        return f"{value_s:.0f} s"
    # 0.9995 s would round to "1000 ms"; the next unit says it better.
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us"), (1e9, "ns")):
        if magnitude * factor >= 0.9995:
            return f"{_three_digits(value_s * factor)} {unit}"
    return f"{value_s * 1e9:.2g} ns"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"


def between(low_s: float, high_s: float) -> str:
    """``95.2 to 102 ms``; one number where both read alike."""
    low, high = seconds(low_s), seconds(high_s)
    if low == high:
        return low
    if low.split()[-1] == high.split()[-1] or low_s == 0:
        low = low.split()[0]
    return f"{low} to {high}"


def span(span_s: float) -> str:
    """A time that may be long: 40 min, 3.1 h, 2.5 d."""
    for limit_s, unit_s, unit in ((120, 1, ""), (7200, 60, "min"), (172_800, 3600, "h")):
        if span_s < limit_s:
            return seconds(span_s) if not unit else f"{span_s / unit_s:.3g} {unit}"
    return f"{span_s / 86_400:.3g} d"


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """Sort key under which rank2 comes before rank10; equal for equal texts alone."""
    parts = re.split(r"(\d{1,18})", text)  # more digits than that are no number to anybody
    return tuple((int(p), p) if i % 2 else (0, p) for i, p in enumerate(parts))


def share(ratio: float) -> str:
    """A ratio as a percentage: 27 %, 3.4 %, under 0.1 %."""
    percent = ratio * 100
    if percent == 0:
        return "0 %"
    if abs(percent) < 0.1:
        return "under 0.1 %"
    return f"{percent:.0f} %" if abs(percent) >= 9.95 else f"{percent:.1f} %"


def per_step(count: float | None) -> str:
    """How many on average: ``0``, ``2.25``, ``2,586``."""
    number = float(count or 0)
    return f"{number:.3g}" if number < 100 else f"{number:,.0f}"


def cut(text: str, most: int) -> str:
    """The beginning of a text that is longer than so many characters, and dots."""
    return text if len(text) <= most else text[: max(0, most - 3)] + "..."


def sentence(text: str) -> str:
    """The text with its first letter large, as a sentence begins."""
    return text[:1].upper() + text[1:]


def plural(count: int, noun: str) -> str:
    """``1 rank``, ``8 ranks``, ``1,200 ranks``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as ranges: ``0-3,7``; empty text for none."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs(numbers))


def some_ranges(numbers: Iterable[int], limit: int = 6) -> str:
    """As ``ranges``, but only the first few: ``0,2,4 and 4,997 more``. For prose."""
    stretches = runs(numbers)
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in stretches[:limit])
    left = sum(b - a + 1 for a, b in stretches[limit:])
    return f"{text} and {left:,} more" if left else text


def some(words: Sequence[str], limit: int = 4) -> str:
    """The first few words, and how many more there are."""
    left = len(words) - limit
    return ", ".join(words[:limit]) + (f" and {left:,} more" if left > 0 else "")


def runs(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Maximal runs of consecutive numbers, as (first, last)."""
    if isinstance(numbers, Ranges):
        return numbers.spans
    stretches: list[list[int]] = []
    for number in sorted(set(numbers)):
        if stretches and number == stretches[-1][1] + 1:
            stretches[-1][1] = number
        else:
            stretches.append([number, number])
    return tuple((a, b) for a, b in stretches)


def ranks_phrase(ranks: Sequence[int], everybody: Iterable[int]) -> str:
    """The subject of a sentence: ``Rank 3``, ``Ranks 0-3,7`` or ``All 8 ranks``."""
    if len(ranks) > 1 and set(ranks) == set(everybody):
        return f"All {len(ranks):,} ranks" if len(ranks) > 2 else "Both ranks"
    return ("Rank " if len(ranks) == 1 else "Ranks ") + some_ranges(ranks)


# ---------------------------------------------------------------- for notebooks

LEFT = "text-align:left"
MAX_CELL = 400
"""Characters of a cell: a notebook is no place for a whole kernel name."""


def escaped(text: str) -> str:
    """Text that is text in HTML too, with nothing that reorders it, and not endless."""
    from html import escape  # brings a table of all entities, which few commands need

    return escape(safe(cut(" ".join(text.split()), MAX_CELL)))


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """A table of labels and texts in HTML; a label that repeats stands once."""
    lines, before = [], ""
    for label, text in rows:
        shown = "" if label == before else escaped(label)
        cells = f'<th style="{LEFT}">{shown}</th><td style="{LEFT}">{escaped(text)}</td>'
        lines.append(f"<tr>{cells}</tr>\n")
        before = label
    return f"<table>{''.join(lines)}</table>"


_NAMELESS = {"wait": "waiting for communication", "between": "short gaps between calls"}


def nameless(kind: str) -> str:
    """What a part of a step that has no name is, by its kind in ``self_time``."""
    return _NAMELESS.get(kind, "nothing recorded")


MAX_NAME = 60
"""Characters of a name in a sentence: those of templates are longer than a page."""


def short(name: str) -> str:
    """A name, its middle left out where it is long."""
    half = MAX_NAME // 2
    return name if len(name) <= MAX_NAME else f"{name[:half]}...{name[-half:]}"

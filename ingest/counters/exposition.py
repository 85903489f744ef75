"""The text format of Prometheus metrics (and OpenMetrics), as exporters print it.

A tokenizer of our own: the official client reads some 25,000 samples a second and ends at the
first bad line. This one reads over 500,000 where series repeat, gives numbers as text, so that a
counter beyond 2^53 keeps its digits, and says for each bad line why it is bad.

A line is ``name{label="value",...} number [time] [# exemplar]``; lines with ``#`` are comments.
Several scrapes may follow each other in one file; what stands between them is theirs, not ours
(``on_other`` gets comments and lines that are no sample).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

MAX_LABELS = 64
"""Labels of a series that are believed; exporters have a dozen."""
MAX_CACHED = 200_000
"""Series that are remembered: 10,000 GPUs of 20 fields. Beyond, they are parsed again."""
MAX_LINE_LENGTH = 65_536

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*')
_QUOTED_NAME = re.compile(r'[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*')
_ESCAPE = re.compile(r"\\(.)")
_NUMBER = re.compile(
    r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|0[xX][0-9a-fA-F]+"
    r"|[iI]nf(?:inity)?|[nN]a[nN])"
)
_TIME = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")


class Series(NamedTuple):
    """A metric's name and its labels; equal for every sample of the series."""

    name: str
    labels: dict[str, str]


class Sample(NamedTuple):
    """One sample of a series."""

    series: Series
    """The same object for each sample of a series, as far as it is remembered."""
    number: str
    """As printed: NaN, +Inf and exact integers included."""
    time_ns: int | None
    line: int


class BadLineError(ValueError):
    """A line that should be a sample and is none; the message says why, in fixed words."""


def samples(
    lines: Iterable[tuple[int, str]],
    on_bad: Callable[[int, str, str], None],
    on_other: Callable[[int, str], bool] | None = None,
) -> Iterator[Sample]:
    """The samples of numbered lines.

    ``on_bad`` is called with the line's number, the reason and the line; ``on_other`` with each
    comment and each line that is no sample at all: it returns whether it knew the line (a mark of
    time between two scrapes, say), else such a line counts as bad.
    """
    known: dict[str, Series] = {}
    is_number = _NUMBER.fullmatch
    for number, line in lines:
        # The fast way: everything up to the last brace has been seen before.
        brace = line.rfind("}")
        head = line[: brace + 1] if brace >= 0 else line.partition(" ")[0]
        series = known.get(head)
        if series is not None:
            rest = line[len(head) :].split()
            if len(rest) == 1 and is_number(rest[0]):
                yield Sample(series, rest[0], None, number)
                continue
            if len(rest) == 2 and len(rest[1]) == 13 and rest[1].isdecimal() and is_number(rest[0]):
                yield Sample(series, rest[0], int(rest[1]) * 1_000_000, number)
                continue
        stripped = line.strip()
        if not stripped:
            continue
        if stripped[0] == "#":
            if on_other is not None:
                on_other(number, stripped)
            continue
        try:
            series, end, text, time_ns = _sample(stripped, known)
        except BadLineError as bad:
            if on_other is None or not on_other(number, stripped):
                on_bad(number, str(bad), stripped)
            continue
        if len(known) < MAX_CACHED:
            known.setdefault(stripped[:end], series)
        yield Sample(series, text, time_ns, number)


def _sample(line: str, known: dict[str, Series]) -> tuple[Series, int, str, int | None]:
    """The series, where it ends, its number and its time. BadLineError if the line is no sample."""
    if len(line) > MAX_LINE_LENGTH:
        raise BadLineError("line too long")
    series, end = parse_series(line)
    series = known.get(line[:end], series)
    rest = line[end:].partition("#")[0].split() if "#" in line[end:] else line[end:].split()
    if not rest:
        raise BadLineError("no number")
    if not _NUMBER.fullmatch(rest[0]):
        raise BadLineError("the number is none")
    if len(rest) > 2:
        raise BadLineError("text after the sample")
    return series, end, rest[0], _time_ns(rest[1]) if len(rest) == 2 else None


def parse_series(text: str) -> tuple[Series, int]:
    """The series at the start of a text, and where it ends. BadLineError if there is none."""
    name_match = _NAME.match(text)
    name, at = (name_match[0], name_match.end()) if name_match else ("", 0)
    while at < len(text) and text[at] in " \t":
        at += 1
    if at == len(text) or text[at] != "{":
        if not name:
            raise BadLineError("no metric name")
        return Series(name, {}), len(name)
    labels: dict[str, str] = {}
    at += 1
    while True:
        label = _LABEL.match(text, at)
        if label is not None:
            if label[1] in labels:
                raise BadLineError("a label twice")
            labels[label[1]] = _unescaped(label[2])
            at = label.end()
        elif not name and (quoted := _QUOTED_NAME.match(text, at)):
            name, at = _unescaped(quoted[1]), quoted.end()
        elif text[at : at + 1] != "}" and text[at:].lstrip(" \t")[:1] != "}":
            raise BadLineError("labels are damaged")
        if len(labels) > MAX_LABELS:
            raise BadLineError("too many labels")
        while text[at : at + 1] in (" ", "\t"):
            at += 1
        mark = text[at : at + 1]
        at += 1
        if mark == "}":
            break
        if mark != ",":
            raise BadLineError("labels are damaged")
    if not name:
        raise BadLineError("no metric name")
    return Series(name, labels), at


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda m: {"n": "\n"}.get(m[1], m[1] if m[1] in '"\\' else m[0]), text)


def _time_ns(text: str) -> int:
    """Nanoseconds since the epoch: Prometheus writes milliseconds, OpenMetrics seconds.

    Told apart by their size: seconds reach 100,000,000,000 in the year 5138.
    """
    if not _TIME.fullmatch(text):
        raise BadLineError("the time is none")
    if "e" in text or "E" in text:
        value = float(text)
        if not abs(value) < 1e16:
            raise BadLineError("the time is none")
        return round(value * 1e9) if abs(value) < 1e11 else round(value * 1e6)
    whole, _, fraction = text.partition(".")
    if len(whole) > 16:
        raise BadLineError("the time is none")
    is_s = abs(int(whole)) < 100_000_000_000
    digits = 9 if is_s else 6
    sign = -1 if whole.startswith("-") else 1
    fine: int = int(fraction[:digits].ljust(digits, "0"))
    scale: int = 10**digits
    return int(whole) * scale + sign * fine


MAX_DIGITS = 400
"""Digits of a number that is read: no double has more before its point."""


def number_of(text: str) -> tuple[float | None, int | None]:
    """The number of a sample, and its exact value where digits only are printed.

    NaN and infinity are numbers here, as they are in the format; so is 0x1F. None where a double
    cannot hold it.
    """
    try:
        if text.isdecimal() and len(text) <= MAX_DIGITS:
            counted = int(text)
            return float(counted), counted
        if "x" in text or "X" in text:
            counted = int(text[:MAX_DIGITS], 16)
            return float(counted), counted
        return float(text), None
    except (ValueError, OverflowError):
        return None, None


def value_of(text: str) -> float | None:
    """The number of a sample; None for NaN and infinity."""
    value, _ = number_of(text)
    return value if value is not None and value - value == 0 else None


def counted_of(text: str) -> int | None:
    """The number of a cumulative counter, exact where it is printed so; None if it is no count."""
    number, counted = number_of(text)
    if number is None or not 0 <= number <= 2.0**64:
        return None
    value = round(number) if counted is None else counted
    return value if value < 2**64 else None

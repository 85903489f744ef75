"""How long a job's output stood still before what ended the job.

A job that hangs is ended by its time limit, by somebody, or by a timeout long after: the last line
tells who ended it, and the one before it when it stood still.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

SECOND_NS = 1_000_000_000
MIN_SILENCE_S = 60
MAX_SILENCE_S = 60 * 86_400
"""Beyond it a clock was set."""
MAX_LINES = 20_000
"""Behind the last step, of which the last so many are looked at."""
STAMP_BYTES = 300

_STAMP = re.compile(
    rb"(?<!\d)(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,]\d{1,9})?"
    rb"(Z|[+-]\d\d:?\d\d)?"
)
_MONTH_FIRST = re.compile(rb"\[(\d\d)/(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)\]")
"""Of Rich."""
_YEARLESS = re.compile(rb"(?:^|[\[\]: ])[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.\d{1,9} ")
"""Of glog, as PyTorch's launcher and watchdog write it."""
_SOME_YEAR = 2000


class Silence(NamedTuple):
    """The longest time between two lines."""

    place: int
    """The line behind it."""
    lasted_ns: int


def longest(lines: Iterable[tuple[int, bytes]]) -> Silence | None:
    """The longest time between lines with one, of lines with their places; None below a minute.

    Dates without a year are of the year that brings them next to the last line with one. Lines
    that state a zone are passed over where the first with a time states none, and the other way
    round.
    """
    found = None
    last_s: int | None = None
    is_zoned: bool | None = None
    has_year = False
    for place, line in lines:
        stamp = _stamp_of(line[:STAMP_BYTES], last_s if has_year else None)
        if stamp is None:
            continue
        second, zoned, of_year = stamp
        if of_year and not has_year:  # what stands before has no year to be compared by
            has_year, last_s, is_zoned = True, None, zoned
        if has_year and zoned != is_zoned:
            continue
        silent_s = second - last_s if last_s is not None else 0
        if MIN_SILENCE_S <= silent_s <= MAX_SILENCE_S and (
            found is None or silent_s * SECOND_NS >= found.lasted_ns
        ):
            found = Silence(place, silent_s * SECOND_NS)
        last_s = max(second, last_s) if last_s is not None else second
    return found


def moment_ns(line: bytes, *, zoned: bool) -> int | None:
    """The time that a line states with a full date, to the second, if it states a zone or, without
    one, as if it were UTC: as ``zoned`` says; None where it has none, or the other kind."""
    stamp = _stamp_of(line[:STAMP_BYTES], None)
    if stamp is None or not stamp[2] or stamp[1] is not zoned:
        return None
    return stamp[0] * SECOND_NS


def _stamp_of(line: bytes, near_s: int | None) -> tuple[int, bool, bool] | None:
    """Seconds, whether a zone is stated, and whether a year is."""
    # What stands before every line is of one clock; what the program says itself may be of another.
    yearless = _YEARLESS.search(line)
    is_head = yearless is not None and yearless.start() == 0
    if not is_head and (at := _STAMP.search(line)):
        second = _second(*(int(x) for x in at.groups()[:6]))
        if second is None:
            return None
        zone = at[7]
        if zone and zone != b"Z":
            shift_s = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
            second += shift_s if zone[:1] == b"-" else -shift_s
        return second, zone is not None, True
    if not is_head and (at := _MONTH_FIRST.search(line)):
        month, day, year, *clock = (int(x) for x in at.groups())
        second = _second(2000 + year, month, day, *clock)
        return None if second is None else (second, False, True)
    if yearless is not None:
        parts = [int(x) for x in yearless.groups()]
        near = _SOME_YEAR if near_s is None else datetime.fromtimestamp(near_s, UTC).year
        years = (near,) if near_s is None else (near - 1, near, near + 1)
        seconds = [s for year in years if (s := _second(year, *parts)) is not None]
        if seconds:
            return min(seconds, key=lambda s: abs(s - (near_s or s))), False, False
    return None


def _second(year: int, month: int, day: int, hour: int, minute: int, second: int) -> int | None:
    try:
        return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp())
    except (ValueError, OverflowError):
        return None

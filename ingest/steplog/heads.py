"""What stands before a log's lines: dates and clocks in a dozen forms, and what carried them.

Programs, launchers, systemd, Docker and Kubernetes put it there. One text has mostly one form, so
it is told from its first lines; then whatever reads the text finds dates as ISO 8601 writes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import msgspec

HEAD_BYTES = 80
"""A date begins within so many bytes of a line."""
SAMPLED_LINES, SAMPLED_BYTES = 400, 1 << 17
"""Of each text, until one has told: at most."""
LOOKED_BYTES = 300
"""Of a line."""
MICROSECOND_DIGITS = 16
"""Of the time since the epoch, until the year 2286."""
MIN_LINES = 5
MIN_RATIO = 0.05
"""Least share of the lines that have a date of this kind: a message may name one, too."""
CARRIED_RATIO = 0.95
"""From this share of the lines on what stands before them was put there by what carried them."""

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NAME = "|".join(_MONTHS).encode()
_CLOCK = rb"(\d\d:\d\d:\d\d)"
_PART = rb"(?:[.,](\d{1,9}))?"
_ISO = re.compile(rb"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d|\[\d\d/\d\d/\d\d \d\d:\d\d:\d\d\]")
"""What is read as it is: ISO's, and Rich's."""

Written = Callable[["re.Match[bytes]"], bytes]


class Form(NamedTuple):
    """One way to write a date and a clock."""

    pattern: re.Pattern[bytes]
    """Of a line's head; its first group is what stands before the date."""
    written: Written
    is_number: bool = False
    """Seconds of the epoch, which any number may look like: they must not fall."""
    look: Callable[[bytes], None] | None = None
    """To be asked of each text before."""


_RECORDS = (
    ("log", "time"),  # Docker's json-file
    ("MESSAGE", "__REALTIME_TIMESTAMP"),  # journalctl -o json
    ("textPayload", "timestamp"),  # Google's Cloud Logging
    ("line", "timestamp"),  # Loki's logcli -o jsonl
)
"""What carries lines as records of JSON, a line each: where they keep its text and its time."""

_STAMP = (
    rb"\[?(?:\d{4}[-/]\d\d[-/]\d\d[ T]|I\d{4} )\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
    rb"(?:Z|[+-]\d\d:?\d\d)?\]?"
)
_CARRIERS = (
    re.compile(_STAMP + rb" std(?:out|err) [FP] "),  # containerd's files
    re.compile(_STAMP + rb" [\w.-]{1,64} [\w.:/@-]{1,64}\[\d{1,10}\]: "),  # journalctl, syslog
    re.compile(rb"[\w.-]{1,64} +\| (?:" + _STAMP + rb" )?"),  # docker compose
    re.compile(_STAMP + rb"(?: \||:)? "),  # ts, kubectl logs --timestamps, clouds
)


class Heads:
    """The heads of a text's lines."""

    def __init__(self) -> None:
        self._line_of: Callable[[bytes], bytes] | None = None
        self._form: Form | None = None
        self._is_form_told = False
        self._carrier: re.Pattern[bytes] | None = None
        self._is_carrier_told = False

    def texts(self, texts: Iterable[bytes]) -> Iterator[bytes]:
        """Texts of whole lines, in which dates at the heads of lines are ISO's.

        Lines stay lines; what is not at a head, and texts with ISO's dates, stay as they are. A
        date without a year becomes one of glog, which has none either. Of two numbers for day and
        month the first is the month, unless a date says otherwise. Records of JSON that
        carry lines become their time and their line.
        """
        return map(self._rewritten, texts)

    def _rewritten(self, text: bytes) -> bytes:
        if self._line_of is None and text.startswith(b"{"):
            self._line_of = _line_of(text)
        if self._line_of is not None:
            text = b"\n".join(map(self._line_of, text.split(b"\n")))
        if not self._is_form_told:
            self._form, self._is_form_told = _told(text)
        if self._form is not None:
            if self._form.look is not None:
                self._form.look(text)
            text = self._form.pattern.sub(self._form.written, text)
        if not self._is_carrier_told:
            self._tell_carrier(text)
        return text

    def without(self, line: bytes) -> bytes:
        """A line without what stands before each: no two lines of a traceback share a time."""
        if self._carrier is not None and (at := self._carrier.match(line)):
            return line[at.end() :]
        return line

    def _tell_carrier(self, text: bytes) -> None:
        lines = _sample(text)
        if len(lines) < MIN_LINES:
            return
        self._is_carrier_told = True
        for carrier in _CARRIERS:
            if sum(carrier.match(line) is not None for line in lines) >= CARRIED_RATIO * len(lines):
                self._carrier = carrier
                return


def _line_of(text: bytes) -> Callable[[bytes], bytes] | None:
    """What takes a line and its time out of its record; none where the first is no such record."""
    try:
        first = msgspec.json.decode(text.partition(b"\n")[0])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    for name, of_time in _RECORDS:
        if isinstance(first, dict) and name in first and of_time in first:
            return _of_records(name, of_time)
    return None


def _of_records(name: str, of_time: str) -> Callable[[bytes], bytes]:
    fields = [("said", str), ("time", str)]
    record_type = msgspec.defstruct("Record", fields, rename={"said": name, "time": of_time})
    decode = msgspec.json.Decoder(record_type).decode

    def line_of(line: bytes) -> bytes:
        try:
            record = decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return line
        time, said = record.time, record.said  # type: ignore[attr-defined]  # made above
        if time.isdecimal() and len(time) == MICROSECOND_DIGITS:
            time = _of_epoch(int(time[:-6]), time[-6:].encode()).decode()
        said = said.removesuffix("\n").replace("\n", "\\n")
        return f"{time} {said}".encode()

    return line_of


def _sample(text: bytes) -> list[bytes]:
    lines = text[:SAMPLED_BYTES].split(b"\n", SAMPLED_LINES)[:SAMPLED_LINES]
    return [line[:LOOKED_BYTES] for line in lines if line]


def _told(text: bytes) -> tuple[Form | None, bool]:
    """How dates are written, and whether the lines have told."""
    lines = _sample(text)
    least = max(MIN_LINES, MIN_RATIO * len(lines))
    has_iso = sum(_ISO.search(line) is not None for line in lines) >= least
    for form in (*_FORMS, _numbered()):
        found = [at for line in lines if (at := form.pattern.match(line))]
        if len(found) < least or (form.is_number and _falls(found)):
            continue
        heads_count = sum(at[1] in (b"", b"[") for at in found)
        if not has_iso or heads_count >= CARRIED_RATIO * len(lines):
            return form, True
    return None, has_iso


def _falls(found: list[re.Match[bytes]]) -> bool:
    """Whether numbers fall oftener than those of several writers do."""
    numbers = [int(at[2]) for at in found]
    return sum(b < a for a, b in pairwise(numbers)) * 10 > len(numbers)


def _form(pattern: bytes, written: Written) -> Form:
    return Form(re.compile(rb"(?m)^([^\n]{0,%d}?)(?<![\w.])" % HEAD_BYTES + pattern), written)


def _iso(
    before: bytes, date: bytes, clock: bytes, part: bytes | None = None, zone: bytes | None = None
) -> bytes:
    fraction = b"." + part if part else b""
    zone = b"Z" if zone in (b"UTC", b"GMT") else zone or b""
    return b"".join((before, date, b" ", clock, fraction, zone.strip()))


@lru_cache(maxsize=1024)
def _of_name(month: bytes, day: bytes) -> tuple[bytes, bytes]:
    return b"%02d" % (_MONTHS.index(month.decode()) + 1), day.rjust(2, b"0")


def _month_named(at: re.Match[bytes]) -> bytes:
    before, name, day, early, clock, part, zone, late = at.groups()
    month, day = _of_name(name, day)
    if year := early or late:
        return _iso(before, b"-".join((year, month, day)), clock, part, zone)
    return b"%bI%b%b %b.%b" % (before, month, day, clock, part or b"0")


def _day_named(at: re.Match[bytes]) -> bytes:
    before, day, name, year, clock, part, zone = at.groups()
    month, day = _of_name(name, day)
    return _iso(before, b"-".join((year, month, day)), clock, part, zone)


def _compact(at: re.Match[bytes]) -> bytes:
    before, year, month, day, hour, minute, second, part, zone = at.groups()
    clock = b":".join((hour, minute, second))
    return _iso(before, b"-".join((year, month, day)), clock, part, zone)


def _apart(at: re.Match[bytes]) -> bytes:
    before, year, _, month, day, clock = at.groups()
    return _iso(before, b"-".join((year, month, day)), clock)


@lru_cache(maxsize=64)
def _date_of(day: int) -> bytes:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d").encode()


def _of_epoch(seconds: int, part: bytes | None) -> bytes:
    day, second = divmod(seconds, 86_400)
    clock = b"%02d:%02d:%02d" % (second // 3600, second // 60 % 60, second % 60)
    return _iso(b"", _date_of(day), clock, part, b"Z")


def _number(at: re.Match[bytes]) -> bytes:
    before, seconds, thousandths, part = at.groups()
    return before + _of_epoch(int(seconds), thousandths or part)


_FORMS = (
    _form(  # 2026-07-21,10:00:00 and 2026.07.21 10:00:00
        rb"(\d{4})([-/._])(\d\d)\3(\d\d)(?:, ?|_|-| - | )" + _CLOCK, _apart
    ),
    _form(  # Tue Jul 21 10:00:00 2026, Jul 21 10:00:00, Jul 21, 2026 10:00:00
        rb"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?(" + _NAME + rb")\.? {1,2}(\d\d?)"
        rb"(?:,? (\d{4}),?)? " + _CLOCK + _PART
        + rb"(?: (UTC|GMT)(?= \d{4}))?(?: (\d{4})(?![-/\d]))?",
        _month_named,
    ),
    _form(  # 21-Jul-2026 10:00:00, 21/Jul/2026:10:00:00 +0000
        rb"(\d\d?)[ /-](" + _NAME + rb")[ /-](\d{4})[ :T]" + _CLOCK + _PART
        + rb"(?: ?(Z|[+-]\d\d:?\d\d))?",
        _day_named,
    ),
    _form(  # 20260721 10:00:00, 20260721T100000Z
        rb"(20\d\d)(\d\d)(\d\d)[ T_-](\d\d):?(\d\d):?(\d\d)" + _PART
        + rb"(Z|[+-]\d\d:?\d\d)?(?!\d)",
        _compact,
    ),
    Form(  # 1784602867.123, 1784602867123: journalctl -o short-unix
        re.compile(
            rb"(?m)^((?:\[[^\]\n]{1,30}\]:? ?|\d{1,7}: )?\[?)(1[3-9]\d{8})(\d{3})?(?:\.(\d{1,9}))?"
            rb"(?=[\]\s:,|])"
        ),
        _number,
        is_number=True,
    ),
)  # fmt: skip

_NUMBERED = rb"(\d\d)([-/])(\d\d)\3(\d{4})(?:,? |T)" + _CLOCK + _PART + rb"(?: ([AP])M\b)?"
"""07/21/2026 10:00:00, as logging is mostly set up in examples of Hugging Face."""
_NUMBERS = re.compile(rb"(?<![\w.])(\d\d)[-/](\d\d)[-/](\d{4})[ ,T]")


def _numbered() -> Form:
    """Of one text: its dates tell whether the day or the month comes first."""
    numbered = _Numbered()
    return _form(_NUMBERED, numbered.written)._replace(look=numbered.look)


class _Numbered:
    """Dates of two numbers for day and month: which of them comes first."""

    def __init__(self) -> None:
        self._is_day_first: bool | None = None
        self._is_assumed = False
        """Nothing has told so far; the month comes first far oftener."""
        self._is_wrong = False
        """What was assumed: from here on the clock alone is written, as a leap would be a stall."""

    def look(self, text: bytes) -> None:
        """Learn from the dates of a text."""
        if self._is_day_first is not None and not self._is_assumed:
            return
        told = _is_day_first(list(dict.fromkeys(_NUMBERS.findall(text))))
        self._is_wrong = self._is_wrong or (self._is_assumed and told is True)
        self._is_day_first = self._is_day_first or bool(told)
        self._is_assumed = told is None

    def written(self, at: re.Match[bytes]) -> bytes:
        """The head as ISO has it."""
        before, first, _, second, year, clock, part, half = at.groups()
        month, day = (second, first) if self._is_day_first else (first, second)
        if half:
            hour = int(clock[:2]) % 12 + (12 if half == b"P" else 0)
            clock = b"%02d%b" % (hour, clock[2:])
        if self._is_wrong:
            return before + clock
        return _iso(before, b"-".join((year, month, day)), clock, part)


def _is_day_first(dates: list[tuple[bytes, bytes, bytes]]) -> bool | None:
    """Of different dates in their order; none where none of them tells."""
    for first, second, _ in dates:
        if int(first) > 12 or int(second) > 12:
            return int(first) > 12
    for (first, second, _), (next_first, next_second, _) in pairwise(dates):
        if (first == next_first) != (second == next_second):
            return second == next_second  # a day later, and not a month
    return None

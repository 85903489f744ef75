"""When a dump was made: its own words, its file's name, its file's modification time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING

from tracekit.ingest.base import SourceFile
from tracekit.values import EPOCH_S

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

EARLIEST_NS, LATEST_NS = (s * 10**9 for s in EPOCH_S)
"""No number outside is taken for a time of day."""

_EPOCH = re.compile(r"(\d{9,19})(?:\.(\d{1,12}))?")
_SCIENTIFIC = re.compile(r"\d\.\d{4,17}[eE]\+?\d{1,2}")
_ISO = re.compile(
    r"(\d{4})[-/]?(\d{2})[-/]?(\d{2})[T_ ](\d{2})[:-]?(\d{2})[:-]?(\d{2})(?:[.,](\d{1,9}))?\d*"
    r" ?(Z|UTC|[+-]\d{2}:?\d{2})?"
)
_DATE_COMMAND = re.compile(
    r"(?:[A-Z][a-z]{2},? )?(?:([A-Z][a-z]{2}) +(\d{1,2})|(\d{1,2}) ([A-Z][a-z]{2}) (\d{4}))"
    r",? (\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?(?: ([AP]M))? (UTC|GMT|[+-]\d{4})(?: (\d{4}))?"
)
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_IN_NAME = re.compile(
    r"(?<!\d)(?:(\d{4})-?(\d{2})-?(\d{2})[T_-]?(\d{2})[-:]?(\d{2})[-:]?(\d{2})"
    r"(?:[.,](\d{1,9}))?(Z|UTC)|(\d{10}(?:\.\d{1,9})?|\d{13}|\d{16}|\d{19}))(?!\d)"
)
_MAY_BE_STAMP = re.compile(r"\s*(?:[#=>*-]|[A-Z][a-z]{2},? |time|date|collected_at|\d)", re.I)
_STAMP_LINE = re.compile(
    r"\s*(?:[#=>*-]{1,10}|(?:time(?:stamp)?|date|collected_at)[:=])?\s*(.{9,60}?)"
    r"\s*[#=<*-]{0,10}\s*",
    re.I,
)


_NUMERIC = re.compile(
    r"(\d{4})[/-]?(\d{2})[/-]?(\d{2})[ T](\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?"
)
_CTIME = re.compile(
    r"(?:[A-Z][a-z]{2} )?([A-Z][a-z]{2}) +(\d{1,2}) (\d{2}):(\d{2}):(\d{2}) (\d{4})"
)
_DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4}),? (\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?")
_SLASHED = re.compile(
    r"(\d{1,2})/(\d{1,2})/(\d{4}|\d{2}),? (\d{1,2}):(\d{2}):(\d{2})(?:\.(\d{1,9}))?(?: ?([AP]M))?"
)
_FABRIC = re.compile(r"([A-Z][a-z]{2}) +(\d{1,2}) (\d{4}) (\d{2}):(\d{2}):(\d{2})")


class Local(int):
    """Nanoseconds of a local time without a zone, as if it were UTC: the zone is missing."""


class Elapsed(int):
    """Nanoseconds since a file's beginning, or since midnight: the day is missing."""


DAY_NS = 86_400 * 10**9
_CLOCK = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?")
_SINCE = re.compile(r"\d{1,12}(?:\.\d{0,12})?|\d(?:\.\d{1,17})?[eE][-+]?\d{1,2}")
_UNITS_NS = {"ns": 1, "us": 10**3, "ms": 10**6}


def basis_of(moment: int) -> str:
    """The basis of a moment: epoch, local or elapsed."""
    kinds = ((Local, "local"), (Elapsed, "elapsed"))
    return next((basis for kind, basis in kinds if isinstance(moment, kind)), "epoch")


def elapsed(text: str, unit: str = "s") -> Elapsed | None:
    """A time since some beginning (``12.5``, in ``unit``) or of a day (``12:00:01.5``)."""
    text = text.strip()
    if clock := _CLOCK.fullmatch(text):
        hours, minutes, seconds = (int(n) for n in clock.groups()[:3])
        if hours > 23 or minutes > 59 or seconds > 60:
            return None
        whole = (hours * 60 + minutes) * 60 + seconds
        return Elapsed(whole * 10**9 + int((clock[4] or "").ljust(9, "0")))
    if not _SINCE.fullmatch(text):
        return None
    ns = round(Decimal(text) * _UNITS_NS.get(unit, 10**9))
    return Elapsed(ns) if ns < EARLIEST_NS else None


def from_epoch(whole: str, fraction: str = "") -> int | None:
    """Nanoseconds of an epoch number as text, whose digits tell its unit; None if it is none."""
    digits = len(whole)
    if digits <= 11:
        ns = int(whole) * 10**9 + int(fraction[:9].ljust(9, "0"))
    elif digits <= 14:
        ns = int(whole) * 10**6 + int(fraction[:6].ljust(6, "0"))
    elif digits <= 17:
        ns = int(whole) * 10**3 + int(fraction[:3].ljust(3, "0"))
    else:
        ns = int(whole)
    return ns if EARLIEST_NS <= ns < LATEST_NS else None


def parse(text: str) -> int | None:
    """Nanoseconds since the epoch of a time with a zone or of an epoch number; None for no time.

    A time without a zone gives a ``Local``: no zone is guessed.
    """
    text = text.strip()
    if _SCIENTIFIC.fullmatch(text):  # 1.7638e+12, as spreadsheets and data frames print it
        text = f"{Decimal(text):f}"
    if epoch := _EPOCH.fullmatch(text):
        return from_epoch(epoch[1], epoch[2] or "")
    if iso := _ISO.fullmatch(text):
        *parts, fraction, zone = iso.groups()
        if zone is None:
            ns = _civil([int(p) for p in parts], fraction, "UTC")
            return None if ns is None else Local(ns)
        return _civil([int(p) for p in parts], fraction, zone)
    if dated := _DATE_COMMAND.fullmatch(text):
        return _of_date_command(dated)
    ns = _by_country(text)
    return None if ns is None else Local(ns)


def parse_usual(texts: pl.Series) -> tuple[Ints, Bools, Bools]:
    """``parse`` of thousands at once, where they have a usual form: an epoch number, or an ISO date
    and clock without a zone or in UTC.

    For each text the nanoseconds, whether they are known, and whether they are a ``Local``'s. Of
    those that are not known ``parse`` may still know some.
    """
    import polars as pl

    text = texts.str.strip_chars()
    number = text.str.extract_groups(r"^(?<whole>[0-9]{9,19})(?:\.(?<part>[0-9]{1,12}))?$")
    whole, part = number.struct.field("whole"), number.struct.field("part").fill_null("")
    digits, epoch_ns = whole.str.len_bytes(), pl.lit(None, pl.Int64)
    for most, places in ((19, 0), (17, 3), (14, 6), (11, 9)):
        ns = pl.col("whole").cast(pl.Int64, strict=False)
        if places:
            behind = pl.col("part").str.head(places).str.pad_end(places, "0").cast(pl.Int64)
            is_near = ns <= LATEST_NS // 10**places  # else the product may be beyond 64 bits
            ns = pl.when(is_near).then(ns * 10**places + behind)
        epoch_ns = pl.when(pl.col("digits") <= most).then(ns).otherwise(epoch_ns)
    iso = text.str.extract_groups(
        r"^(?<date>[0-9]{4}[-/][0-9]{2}[-/][0-9]{2})[T_ ](?<clock>[0-9]{2}:[0-9]{2}:[0-5][0-9])"
        r"(?:[.,](?<behind>[0-9]{1,9}))? ?(?<zone>Z|UTC)?$"
    )
    civil = pl.concat_str(
        pl.col("date").str.replace_all("/", "-", literal=True), pl.lit(" "), "clock"
    ).str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ms", strict=False)
    behind = pl.col("behind").fill_null("").str.pad_end(9, "0").cast(pl.Int64)
    said = pl.DataFrame({"whole": whole, "part": part, "digits": digits})
    said = said.with_columns(iso.struct.unnest()).select(
        epoch_ns.alias("epoch"), (civil.dt.epoch("ms") * 10**6 + behind).alias("civil"), "zone"
    )
    said = said.select(
        pl.coalesce("epoch", "civil").alias("ns"),
        (pl.col("epoch").is_null() & pl.col("zone").is_null()).alias("is_local"),
    )
    is_known = said["ns"].is_between(EARLIEST_NS, LATEST_NS, closed="left").fill_null(value=False)
    moments = said["ns"].fill_null(0).to_numpy()
    return moments, is_known.to_numpy(), (said["is_local"] & is_known).to_numpy()


def of_line(line: str) -> int | None:
    """The time that a line states if it states nothing else (a collector's mark); else None."""
    if not 9 <= len(line) <= 100 or not _MAY_BE_STAMP.match(line):
        return None
    stamp = _STAMP_LINE.fullmatch(line)
    return parse(stamp[1]) if stamp else None


def of_file(source: SourceFile) -> tuple[int | None, str | None]:
    """The time in a file's name (with a zone, or an epoch), else its modification time."""
    for stamp in _IN_NAME.finditer(source.name):
        ns = (
            from_epoch(*stamp[9].partition(".")[::2])
            if stamp[9]
            else _civil([int(p) for p in stamp.groups()[:6]], stamp[7], stamp[8])
        )
        if ns is not None:
            return ns, "name"
    if source.mtime_ns > 0:
        return source.mtime_ns, "mtime"
    return None, None


def _of_date_command(dated: re.Match[str]) -> int | None:
    month, day, day2, month2, year2, hour, minute, second, fraction, half, zone, year = (
        dated.groups()
    )
    name = month or month2
    if name not in {_MONTHS[i : i + 3] for i in range(0, 36, 3)} or not (year or year2):
        return None
    hours = int(hour)
    if half:
        hours = hours % 12 + (12 if half == "PM" else 0)
    parts = [
        int(year or year2),
        _MONTHS.index(name) // 3 + 1,
        int(day or day2),
        hours,
        int(minute),
        int(second),
    ]
    return _civil(parts, fraction, "Z" if zone == "GMT" else zone)


def _civil(parts: list[int], fraction: str | None, zone: str | None) -> int | None:
    if zone is None:
        return None
    offset = UTC
    if zone not in ("Z", "UTC"):
        sign = -1 if zone[0] == "-" else 1
        digits = zone[1:].replace(":", "")
        if int(digits[:2]) > 23:
            return None
        offset = timezone(sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:])))
    try:
        year, month, day, hour, minute, second = parts
        moment = datetime(year, month, day, hour, minute, second, tzinfo=offset)
        seconds = int(moment.timestamp())
    except (ValueError, OverflowError):
        return None
    ns = seconds * 10**9 + int((fraction or "").ljust(9, "0"))
    return ns if EARLIEST_NS <= ns < LATEST_NS else None


def local_ns(text: str) -> int | None:
    """Nanoseconds of a local time as if it were UTC; None for what is no such time.

    The zone is the reader's to add: a source whose times come from here has the basis ``local``.
    """
    text = text.strip()
    if numeric := _NUMERIC.fullmatch(text):
        *parts, fraction = numeric.groups()
        return _utc([int(p) for p in parts], fraction or "")
    if (ns := _by_country(text)) is not None:
        return ns
    if ctime := _CTIME.fullmatch(text):
        month, day, hour, minute, second, year = ctime.groups()
    elif fabric_time := _FABRIC.fullmatch(text):
        month, day, year, hour, minute, second = fabric_time.groups()
    else:
        return None
    number = _MONTHS.find(month)
    if number < 0 or number % 3:
        return None
    return _utc([int(year), number // 3 + 1, *(int(p) for p in (day, hour, minute, second))], "")


def _by_country(text: str) -> int | None:
    """The same of 21.7.2026, and of 7/21/2026 or 21/7/2026 where one number is no month.

    7/8/2026 is a day in July or in August: it is none.
    """
    if dotted := _DOTTED.fullmatch(text):
        day, month, year, *clock, fraction = dotted.groups()
        return _utc([int(p) for p in (year, month, day, *clock)], fraction or "")
    if (slashed := _SLASHED.fullmatch(text)) is None:
        return None
    one, other, year, hour, minute, second, fraction, half = slashed.groups()
    months = {int(one), int(other)} & set(range(1, 13))
    if len(months) != 1:
        return None
    (month_number,) = months
    hours = int(hour)
    if half:
        if not 1 <= hours <= 12:
            return None
        hours = hours % 12 + (12 if half == "PM" else 0)
    day_number = int(one) + int(other) - month_number
    whole_year = int(year) + (2000 if len(year) == 2 else 0)
    parts = [whole_year, month_number, day_number, hours, int(minute), int(second)]
    return _utc(parts, fraction or "")


def _utc(parts: list[int], fraction: str) -> int | None:
    try:
        moment = datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]  # six numbers
    except ValueError:
        return None
    ns = int(moment.timestamp()) * 10**9 + int(fraction.ljust(9, "0") or 0)
    return ns if EARLIEST_NS <= ns < LATEST_NS else None


def says_utc(name: str) -> bool:
    """Whether a file's name says that its times without a zone are UTC: nvidia-smi.utc.csv.

    ``tracekit capture`` names its files so: it runs nvidia-smi with TZ=UTC, which prints no zone.
    """
    return ".utc." in name.lower()

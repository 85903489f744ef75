"""Local times without a zone, as the tools of NVIDIA and the kernel print them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_NUMERIC = re.compile(
    r"(\d{4})[/-]?(\d{2})[/-]?(\d{2})[ T](\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?"
)
_CTIME = re.compile(
    r"(?:[A-Z][a-z]{2} )?([A-Z][a-z]{2}) +(\d{1,2}) (\d{2}):(\d{2}):(\d{2}) (\d{4})"
)
_FABRIC = re.compile(r"([A-Z][a-z]{2}) +(\d{1,2}) (\d{4}) (\d{2}):(\d{2}):(\d{2})")


def local_ns(text: str) -> int | None:
    """Nanoseconds of a local time as if it were UTC; None for what is no such time.

    The zone is the reader's to add: a source whose times come from here has the basis ``local``.
    """
    text = text.strip()
    if found := _NUMERIC.fullmatch(text):
        *parts, fraction = found.groups()
        return _ns([int(p) for p in parts], fraction or "")
    if found := _CTIME.fullmatch(text):
        month, day, hour, minute, second, year = found.groups()
    elif found := _FABRIC.fullmatch(text):
        month, day, year, hour, minute, second = found.groups()
    else:
        return None
    number = _MONTHS.find(month)
    if number < 0 or number % 3:
        return None
    return _ns([int(year), number // 3 + 1, *(int(p) for p in (day, hour, minute, second))], "")


def _ns(parts: list[int], fraction: str) -> int | None:
    try:
        moment = datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]  # six numbers
    except ValueError:
        return None
    return int(moment.timestamp()) * 10**9 + int(fraction.ljust(9, "0") or 0)


def says_utc(name: str) -> bool:
    """Whether a file's name says that its times without a zone are UTC: nvidia-smi.utc.csv.

    ``tracekit capture`` names its files so: it runs nvidia-smi with TZ=UTC, which prints no zone.
    """
    return ".utc." in name.lower()

"""Units as tables write them, and how much of the canonical unit one of each is.

Case tells bits from bytes, so a spelling is looked up as it stands first. Memory is counted by
1,024 whatever the prefix, as nvidia-smi does; what is sent is counted by 1,000.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

Sizes = dict[str, Fraction]


def _of(size: float | Fraction, *spellings: str) -> Sizes:
    return dict.fromkeys(spellings, Fraction(size))


def _prefixed(base: int, prefixes: Iterable[str], *units: str) -> Sizes:
    return {f"{p}{u}": Fraction(base**i) for i, p in enumerate(prefixes) for u in units}


def _times(sizes: Sizes, factor: Fraction) -> Sizes:
    return {unit: size * factor for unit, size in sizes.items()}


_DECIMAL = ("", "k", "M", "G", "T")
_BINARY = _prefixed(1024, ("", "Ki", "Mi", "Gi", "Ti"), "B")
_BYTES = (
    _of(1, "bytes", "octets") | _of(4, "words") | _of(Fraction(1, 8), "bits")
    | _prefixed(1000, _DECIMAL, "B") | _of(1000, "KB") | _BINARY
)  # fmt: skip
_BITS = _prefixed(1000, _DECIMAL, "bit/s", "bits/s", "b/s", "bps")
_SHARE = _of(1, "ratio") | _of(Fraction(1, 100), "%", "percent", "pct")
_SECONDS = {
    "s": Fraction(1), "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "ns": Fraction(1, 10**9),
}  # fmt: skip
_CELSIUS = _of(1, "celsius", "C", "c", "degC", "°C", "℃", "Celsius Degree")

SIZES: dict[str, Sizes] = {
    "bytes": _BYTES,
    "bytes/s": {f"{u}/s": size for u, size in _BYTES.items()} | _times(_BITS, Fraction(1, 8)),
    "bits/s": _BITS,
    "packets": _of(1, "packets", "pkts", "frames"),
    "packets/s": _of(1, "packets/s", "pkts/s", "pps") | _of(1000, "kpps"),
    "count": _of(1, "count", "errors", "events", "times"),
    "ticks": _of(1, "ticks"),
    "lanes": _of(1, "lanes"),
    "ns": _times(_SECONDS, Fraction(10**9)),
    "us": _times(_SECONDS, Fraction(10**6)),
    "ms": _times(_SECONDS, Fraction(10**3)),
    "0..1": _SHARE,
    "ratio": _SHARE,
    "percent": _times(_SHARE, Fraction(100)),
    "Hz": _prefixed(1000, _DECIMAL, "Hz"),
    "W": _of(1, "W") | _of(Fraction(1, 1000), "mW") | _of(1, "watts", "watt") | _of(1000, "kW"),
    "mJ": _of(1, "mJ") | _of(1000, "J"),
    "degrees Celsius": _CELSIUS,
    "celsius": _CELSIUS,
    "dBm": _of(1, "dBm"),
    "mA": _of(1, "mA") | _of(1000, "A") | _of(Fraction(1, 1000), "uA"),
    "rpm": _of(1, "rpm"),
    "V": _of(1, "V") | _of(Fraction(1, 1000), "mV"),
}
"""Of each canonical unit, the units that can be turned into it."""

_HELD = _BINARY | _of(1, "bytes") | _prefixed(1024, ("", "K", "M", "G", "T"), "B")
MEMORY = _HELD | {unit.lower(): size for unit, size in _HELD.items()}
"""The units of bytes that a device holds."""

_WORDS = {
    "watt": "W", "hertz": "Hz", "byte": "B", "octet": "B", "bit": "bit", "joule": "J",
    "celsius": "C", "cel": "C", "packet": "packets", "percentage": "%", "fraction": "ratio",
    "by": "B", "second": "s", "1": "ratio",
}  # fmt: skip
_PREFIXES = {
    "milli": "m", "micro": "u", "kilo": "k", "mega": "M", "giga": "G", "tera": "T",
    "kibi": "Ki", "mebi": "Mi", "gibi": "Gi", "tebi": "Ti",
}  # fmt: skip


_BYTES_PS = re.compile(r"((?:[kKMGT]i?)?B)ps")


def with_slash(unit: str) -> str:
    """``MBps`` and ``Bps``, whose capital B says bytes, as ``MB/s`` and ``B/s``; others as they
    stand."""
    return _BYTES_PS.sub(r"\1/s", unit) if _BYTES_PS.fullmatch(unit) else unit


def symbol(spelled: str) -> str:
    """``mebibytes per second`` as ``MiB/s``, and UCUM's ``By`` as ``B``; what is no such word as it
    stands. A share without a unit (``1``, as OpenTelemetry has it) is ``ratio``."""
    said = spelled.strip().replace(" per ", "/").replace("/second", "/s").replace("/sec", "/s")
    whole, per, _ = said.partition("/s")
    word = whole.lower().removeprefix("degrees ").removeprefix("degree ").removeprefix("degree_")
    word = word if word in _WORDS else word.removesuffix("s")
    prefix = next((p for p in _PREFIXES if word.startswith(p) and word[len(p) :] in _WORDS), "")
    known = _WORDS.get(word[len(prefix) :])
    if known is None:
        return said
    if known == "B" and not prefix:
        known = "bytes"
    return f"{_PREFIXES.get(prefix, '')}{known}" + ("/s" if per else "")

"""The numbers that a file prints, found by no code of the ingestors, and which of them are rows.

What is an identifier or a time is no number here: each reader below says what it leaves out. Every
printed number takes one row of its value in one of the units that the row's unit can be printed
in; two numbers never share a row. What is left must be counted among the file's issues.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

from memory_sink import MemorySink

Printed = tuple[str, Fraction]
"""What stands by a number (a metric, a key, a heading), and the number as it is printed."""

_NUMBER = r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
_TABLES = ("gpu_sample", "net_sample", "host_sample", "storage_sample")
_K, _M, _G = 1000, 10**6, 10**9
_SCALES: dict[str, tuple[Fraction | int, ...]] = {
    # InfiniBand counts words of 4 bytes, disks sectors of 512.
    "bytes": (1, 4, 512, 1024, 1024**2, 1024**3),
    "bytes/s": (1, 4, _K, 1024, _M, 1024**2, _G, Fraction(_M, 8), Fraction(_G, 8)),
    "0..1": (1, Fraction(1, 100)),
    "ratio": (1, Fraction(1, 100)),
    "Hz": (1, _M),
    "ns": (1, _K, _M, _G),
    "pages/s": (1, Fraction(1, 4)),
    "ms": (1, Fraction(1, _K)),
    "W": (1, Fraction(1, _K)),
    "mJ": (1, _K),
}
"""How many of a row's unit one of what is printed may be."""
_OF_NO_NUMBER = frozenset({
    "local_time", "dump_without_time", "parsed_from_documentation", "no_value", "no_time",
})  # fmt: skip
"""Issues that are of no printed number."""


class Balance(NamedTuple):
    """Where the printed numbers of a file went."""

    found: int
    """Numbers that are in rows."""
    missing: Counter[str]
    """What stands by those that are in none, and how many."""
    named: int
    """What the issues say was not read."""


def balance(printed: Iterable[Printed], sink: MemorySink, words: str = "") -> Balance:
    """Look for every number in the rows of a file.

    words: Which counters are no printed numbers, but words (yes, stormed) or sums.
    """
    held: Counter[tuple[str, str]] = Counter()
    for table in _TABLES:
        for row in sink.table(table).to_pylist():
            if re.fullmatch(words, row["counter"]):
                continue
            number = row["counted"] if row["counted"] is not None else row["value"]
            held[row["unit"] or "", _key(number)] += 1
    units = sorted({unit for unit, _ in held})
    ways = [(unit, scale) for unit in units for scale in _SCALES.get(unit, (1,))]
    by_label: dict[str, Counter[Fraction]] = {}
    for label, number in printed:
        by_label.setdefault(label, Counter())[number] += 1
    found = 0
    for is_last in (False, True) if ways else ():
        for numbers in by_label.values():
            # What has one name has one unit: the one in which most of its numbers are rows.
            for unit, scale in ways if is_last else [max(ways, key=partial(_held, held, numbers))]:
                for number, n in numbers.items():
                    key = (unit, _key(number * scale))
                    taken = min(n, held[key])
                    held[key] -= taken
                    numbers[number] -= taken
                    found += taken
    missing = Counter({label: numbers.total() for label, numbers in by_label.items()})
    named = sum(n for name, n in sink.counters.items() if name not in _OF_NO_NUMBER)
    return Balance(found, +missing, named)


def _held(
    held: Counter[tuple[str, str]], numbers: Counter[Fraction], way: tuple[str, Fraction | int]
) -> int:
    unit, scale = way
    return sum(min(n, held[unit, _key(number * scale)]) for number, n in numbers.items())


def _key(number: Fraction | float) -> str:
    """A whole number exactly; another to 12 digits."""
    exact = Fraction(number)
    whole = round(exact)
    if abs(exact - whole) * 10**12 <= abs(exact):  # a float of seconds in ns
        return str(whole)
    return f"{float(number):.12g}"


def _leaves(value: Any, label: str) -> Iterator[Printed]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(part, label)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield label, Fraction(str(value))
    elif isinstance(value, str) and re.fullmatch(_NUMBER, value):
        yield label, Fraction(value)


def of_json(text: str, without: frozenset[str] = frozenset()) -> list[Printed]:
    """Every number of a document, quoted or not, but those under some keys."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: cut(v) for k, v in value.items() if k not in without}
        return [cut(v) for v in value] if isinstance(value, list) else value

    return list(_leaves(cut(json.loads(text)), ""))


def of_exposition(text: str) -> list[Printed]:
    """The numbers of samples, without their times."""
    line = re.compile(rf"^([a-zA-Z_:][\w:]*)(?:\{{.*\}})? +({_NUMBER})(?: +\d+)?$", re.M)
    return [(name, Fraction(number)) for name, number in line.findall(text)]


def of_csv(text: str, without: frozenset[str]) -> list[Printed]:
    """Cells by their heading."""
    header, *lines = text.splitlines()
    names = [n.strip() for n in header.split(",")]
    return [
        (name, Fraction(cell.strip()))
        for line in lines
        for name, cell in zip(names, line.split(","), strict=False)
        if name not in without and re.fullmatch(_NUMBER, cell.strip())
    ]


def of_xml(text: str) -> list[Printed]:
    """Elements of a GPU whose text is a number, with a unit or not; errors of memory are summed."""
    (gpu,) = re.findall(r"<gpu id=.*?</gpu>", text, re.S)
    gpu = re.sub(r"<ecc_errors>.*?</ecc_errors>", "", gpu, flags=re.S)
    element = re.compile(rf"<(\w+)>P?({_NUMBER})(?:x| [A-Za-z%/]{{1,6}})?</\1>")
    return [(name, Fraction(number)) for name, number in element.findall(gpu)]


def of_stalls(text: str) -> list[Printed]:
    """Pressure and quota: ``name=number`` and ``path:name number``."""
    found = re.findall(rf"(?: (\w+)=|:(\w+) )({_NUMBER})\b", text)
    return [(a or b, Fraction(number)) for a, b, number in found]


def of_disks(text: str) -> list[Printed]:
    """What stands after the names in /proc/diskstats, by its place."""
    return [
        (f"field {place}", Fraction(cell))
        for line in text.splitlines()
        if len(line.split()) > 10
        for place, cell in enumerate(re.split(r" (?:loop|vd|sd|nvme|dm-)\w+ ", line)[1].split())
    ]


def of_vmstat(text: str) -> list[Printed]:
    """Columns by their headings."""
    names: list[str] = []
    found = []
    for line in text.splitlines():
        cells = line.split()
        if cells[:1] == ["r"]:
            names = cells[:-1]
        elif cells and cells[0].isdigit():
            found += [(n, Fraction(c)) for n, c in zip(names, cells, strict=False)]
    return found


def of_iostat(text: str) -> list[Printed]:
    """Columns by their headings, of CPUs and of disks."""
    names: list[str] = []
    found = []
    for line in text.splitlines():
        cells = line.split()
        if cells[:1] in (["avg-cpu:"], ["Device"]):
            names = cells
        elif len(cells) == len(names) - (names[:1] == ["avg-cpu:"]) and len(cells) > 2:
            numbers, of = (cells, names[1:]) if names[0] == "avg-cpu:" else (cells[1:], names[1:])
            found += [(n, Fraction(c)) for n, c in zip(of, numbers, strict=True)]
    return found


def of_fields(text: str) -> list[Printed]:
    """Fields of the line protocol: the second part of a line."""
    field = re.compile(rf"([^,= ]+)=({_NUMBER})[iu]?(?=,| |$)")
    return [
        (name, Fraction(number))
        for line in text.splitlines()
        if len(line.split(" ")) > 1
        for name, number in field.findall(line.split(" ")[1])
    ]


def of_links(text: str) -> list[Printed]:
    """``Link N: 25 GB/s``."""
    return [("link", Fraction(n)) for n in re.findall(rf"Link \d+: ({_NUMBER}) GB/s", text)]


def of_dots(text: str) -> list[Printed]:
    """perfquery's ``Name:.....number``; the number of the port that was asked is its name."""
    found = re.findall(r"^(\w+):\.*(\d+)$", text, re.M)
    return [(name, Fraction(number)) for name, number in found if name != "PortSelect"]


def of_rows(text: str, names_count: int = 1) -> list[Printed]:
    """Rows of tables that begin with a port: what stands after the first cells, by its column."""
    port = re.compile(r"\s*(?:Eth|mgmt|port-channel|Po|Vlan|loopback|CPU)[\w/|.-]*\s")
    return [
        (f"column {place}", Fraction(cell.replace(",", "")))
        for line in text.splitlines()
        if port.match(line + " ")
        for place, cell in enumerate(line.split()[names_count:])
        if re.fullmatch(rf"{_NUMBER}|\d{{1,3}}(?:,\d{{3}})+", cell)
    ]


def of_phrases(text: str) -> list[Printed]:
    """What a status of a port counts, by the words behind it: ``7084 packets input``.

    Lines that begin with a number, or with Received or Sent; averages over a while are others'.
    """
    return [
        (words.strip(), Fraction(number))
        for line in text.splitlines()
        if re.match(r" +(?:Received |Sent )?\d", line) and "rate" not in line
        for number, words in re.findall(r"(?<![\w./])(\d+) ([A-Za-z][A-Za-z/ ]*)", line)
    ]


def of_measures(text: str) -> list[Printed]:
    """What a transceiver measures: ``Name: 3.28 V``, of several units the last, no thresholds."""
    unit = r"(?:degrees C|dBm|mA|C|V|Volts)"
    found = []
    for line in text.splitlines():
        name, colon, measured = line.partition(":")
        numbers = re.findall(rf"({_NUMBER}) ?{unit}(?![A-Za-z])", measured)
        if colon and numbers and "threshold" not in name:
            found.append((name.strip(), Fraction(numbers[-1])))
    return found

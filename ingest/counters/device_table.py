"""CSV with a column for each counter of each device, as collectors of one's own write them.

``ib3_tx_bytes_s``, ``gpu0_bmc_temp_c``, ``power_w_gpu1``: a kind of device with its number, a
metric and a unit, the device in front or behind. Devices of several kinds stand in one row, whose
time they share. GPUs go to gpu_sample, ports of NICs to net_sample; what else the header names
(fans, totals, a phase) is listed as not read, with the reason.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tracekit.errors import InputError
from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import fields, net_words, times
from tracekit.ingest.counters.gpu_samples import Gpu, GpuSamples
from tracekit.ingest.counters.gpu_words import GPU
from tracekit.ingest.counters.names import node_in_name
from tracekit.ingest.counters.net_samples import NetSamples, decimal, is_missing
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.table import (
    HOST_WORDS,
    TIME_WORDS,
    bare_name,
    cells_of,
    count_unread,
    header_line,
    header_of,
    unit_of,
)
from tracekit.ingest.counters.units import MEMORY, SIZES
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import Line, lines, shape

KIND = "device_csv"
MIN_COLUMNS = 2
"""Columns of known counters from which a header is surely one of devices."""
MAX_SHARE = 1.5
"""Highest share of the whole that a sensor's error explains."""

_PORTS = ("ib", "eth", "mlx5", "nic", "hca", "roce", "rdma", "port")
_OTHERS = ("nvlink", "nvswitch", "cpu", "disk", "nvme", "fan", "psu", "dimm")
_DEVICE = rf"(gpu|{'|'.join((*_PORTS, *_OTHERS))})[_-]?(\d{{1,4}})"
_BETWEEN = "_.:/ -"
_FRONT = re.compile(rf"{_DEVICE}[{_BETWEEN}]", re.I)
_BEHIND = re.compile(rf"[{_BETWEEN}]{_DEVICE}\Z", re.I)
_SENSORS = frozenset(("bmc", "oob", "ipmi", "redfish", "board", "gpu"))
"""Words that say who read a number, not what it is."""

_NOT_UNITS = {"errors", "events", "times", "frames", "b"}
"""Words that say what is counted, however many of them there are."""
_SIZED = ("bytes/s", "packets/s", "bytes", "packets", "0..1", "Hz", "mJ")
"""Units in which people write several sizes, so that a header must say which."""


def _measures() -> dict[str, tuple[str, float]]:
    measures = {}
    for unit in (*_SIZED, "W", "degrees Celsius", "count"):
        sizes = MEMORY if unit == "bytes" else SIZES[unit]
        for spelling in reversed(sizes):  # bytes stand before bits, and count
            end = spelling.lower().replace("/s", "_s")
            if end not in _NOT_UNITS:
                measures[end] = (unit, float(sizes[spelling]))
    return measures


_MEASURES = _measures()
"""How a header ends, in lower case: its unit, and the size of it. MB/s and Mb/s differ in the case
of one letter, which people leave out: what is written ``bps`` is bits, and ``b/s`` bytes."""
_BITS = {unit: SIZES["bytes/s"][unit] for unit in SIZES["bits/s"]}
"""Mb/s as it is spelled in brackets, where case is not lost."""
_DIRECTIONS = {
    "tx": "tx", "xmit": "tx", "sent": "tx", "send": "tx", "out": "tx", "transmit": "tx",
    "rx": "rx", "rcv": "rx", "recv": "rx", "received": "rx", "in": "rx", "receive": "rx",
}  # fmt: skip
_RATES = {"bytes/s": "rate", "packets/s": "packet_rate"}
_TOTALS = {"bytes": "bytes", "packets": "packets"}


class Column(NamedTuple):
    """A column of numbers."""

    at: int
    kind: str
    """gpu, or port."""
    device: str
    """GPU's number, or the port's name."""
    meaning: Meaning
    header: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Which column is what, and why some are nothing."""

    header: tuple[str, ...]
    delimiter: str
    time: int | None
    host: int | None
    columns: tuple[Column, ...]
    unread: dict[str, list[str]] = field(default_factory=dict)
    """Headers by the reason."""


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise a table by its header: a time, and two counters of numbered devices or more."""
    layout = layout_of(header_line(head))
    if layout is None:
        return None
    devices = len({(c.kind, c.device) for c in layout.columns})
    what = f"a table of {devices} devices, {len(layout.columns)} counters"
    return Recognition(KIND, what, KIND)


def read(source: SourceFile, sink: Sink) -> None:
    """Every number that has a meaning into gpu_sample or net_sample."""
    with source.open() as stream:
        reading = Reading(sink, stream, None, "line")
        table = _Table(source, sink, reading)
        for line in lines(stream):
            table.line(line)
        table.finish()
        reading.finish(table.ports, streams.stream_problem(stream))


def layout_of(line: str) -> Layout | None:
    """The layout that a header declares; None where it is no table of devices."""
    named = header_of(line)
    if named is None:
        return None
    delimiter, header = named
    names = [h.strip() for h in header]
    bare = [bare_name(n) for n in names]
    time = next((bare.index(w) for w in TIME_WORDS if w in bare), None)
    host = next((bare.index(w) for w in HOST_WORDS if w in bare), None)
    if time is None:
        return None
    readable: list[Column] = []
    unread: dict[str, list[str]] = defaultdict(list)
    taken: set[tuple[str, str, str]] = set()
    # A sensor that somebody else reads (a BMC) is second to the device's own of the same meaning.
    order = sorted(range(len(names)), key=lambda at: _is_second(names[at]))
    for at in order:
        if at in (time, host):
            continue
        column = _column(at, names[at])
        if isinstance(column, str):
            unread[column].append(names[at])
        elif (key := (column.kind, column.device, column.meaning.counter)) in taken:
            unread["another column has the same meaning"].append(names[at])
        else:
            taken.add(key)
            readable.append(column)
    if len(readable) < MIN_COLUMNS:
        return None
    columns = tuple(sorted(readable))
    return Layout(tuple(names), delimiter, time, host, columns, dict(unread))


def _is_second(name: str) -> bool:
    return not _SENSORS.isdisjoint(re.split(r"[^a-z]+", name.lower())[1:])


def _column(at: int, name: str) -> Column | str:
    """What a header names; else why it is not read."""
    plain = name.partition("[")[0].strip()
    if device_match := _FRONT.match(plain):
        metric = plain[device_match.end() :]
    elif device_match := _BEHIND.search(plain):
        metric = plain[: device_match.start()]
    else:
        return "it names no device with a number: a total, a system's reading or a label"
    kind, number = device_match[1].lower(), device_match[2]
    if kind in _OTHERS:
        return "no table holds readings of such a device yet"
    words, unit, scale = _measured(metric, unit_of(name))
    is_gpu = kind == "gpu"
    meaning = _gpu(words, unit, scale, name) if is_gpu else _port(words, unit, scale, name)
    if meaning is None:
        return "nobody knows what it counts, or its unit does not fit"
    device = str(int(number)) if is_gpu else f"{kind}{'_' if kind == 'mlx5' else ''}{number}"
    return Column(at, "gpu" if is_gpu else "port", device, meaning, name)


def _measured(metric: str, bracket: str | None) -> tuple[list[str], str | None, float]:
    """The words of a metric, and the unit and its size that stand at its end."""
    plain = re.sub(r"(?:/|_?per_?)s(?:ec(?:ond)?)?$", "_s", metric.strip(), flags=re.I)
    words = [w for w in re.split(r"[^A-Za-z0-9%]+", plain.lower()) if w]
    if bracket is not None:
        said = re.sub(r"/sec$", "/s", bracket.strip())
        if said != said.lower() and (size := _BITS.get(said)):
            return words, "bytes/s", float(size)
        unit, scale = _MEASURES.get(said.lower().replace("/s", "_s"), (None, 1.0))
        return words, unit, scale
    for length in (2, 1):
        if len(words) > length and (known := _MEASURES.get("_".join(words[-length:]))):
            # "tx_bytes": what is counted is its unit too.
            return words[:-length] or words, *known
    return words, None, 1.0


def _gpu(words: Sequence[str], unit: str | None, scale: float, header: str) -> Meaning | None:
    for said in (words, [w for w in words if w not in _SENSORS]):
        counter = fields.counter_of_words(said)
        if counter is not None:
            word = GPU[counter]
            # Bytes or MiB, 0.99 or 99: of these no number says its unit itself.
            if word.unit == unit or (unit is None and word.unit not in _SIZED):
                return GPU.meaning(counter, scale, header[:80])
            return None
    return None


def _port(words: Sequence[str], unit: str | None, scale: float, header: str) -> Meaning | None:
    ways = [_DIRECTIONS[w] for w in words if w in _DIRECTIONS]
    rest = [w for w in words if w not in _DIRECTIONS and w not in ("data", "rate", "throughput")]
    if len(ways) == 1 and not rest and unit is not None:
        end = _RATES.get(unit) or _TOTALS.get(unit)
        return _scaled(f"{ways[0]}_{end}", scale) if end is not None else None
    name = "_".join([*ways, *rest]) if len(ways) == 1 else "_".join(words)
    for said in (name, f"{name}_packets", f"{name}_bytes"):
        if rest and net_words.is_word(said):
            known = net_words.meaning(said)
            fits = unit is None or known.unit in (unit, "packets" if unit == "count" else unit)
            return _scaled(said, scale) if fits else None
    return None


def _scaled(counter: str, scale: float) -> Meaning:
    known = net_words.meaning(counter)
    whole = round(scale)
    return known._replace(scale=whole if whole == scale else scale)


class _Table:
    def __init__(self, source: SourceFile, sink: Sink, reading: Reading) -> None:
        self._source = source
        self._sink = sink
        self._reading = reading
        self.ports = NetSamples(sink, source)
        if self.ports.node is None and (node := node_in_name(source.name)) is not None:
            self.ports.of_name(node)
        self._gpus = GpuSamples(sink, source)
        self._layout: Layout | None = None
        self._series: dict[tuple[str | None, Column], int] = {}
        self._is_local = False
        self._is_utc = times.says_utc(source.name)

    def line(self, line: Line) -> None:
        if not line.text.strip():
            return
        if self._layout is None:
            self._layout = layout_of(line.text)
            if self._layout is None:
                raise InputError(f"{self._source.path}: its first line names no counter of devices")
            self._tell(self._layout.unread)
            return
        cells = cells_of(line.text, self._layout.delimiter)
        if len(cells) != len(self._layout.header):
            self._reading.bad(line.number, "another number of cells", shape(line.text))
        elif tuple(c.strip() for c in cells) != self._layout.header:
            self._row(line.number, cells, self._layout)

    def finish(self) -> None:
        """What is left of the GPUs; the ports are finished with the reading."""
        if self._gpus.rows_count or self._gpus.missing_count:
            self._gpus.finish("local" if self._is_local else "epoch")
            self._reading.good(self._gpus.rows_count)

    def _tell(self, unread: dict[str, list[str]]) -> None:
        for reason, names in unread.items():
            # A name of its own for each reason: the words of the first count stay.
            count_unread(self._sink, names, reason, f"_{_word(reason)}")

    def _row(self, place: int, cells: Sequence[str], layout: Layout) -> None:
        assert layout.time is not None  # noqa: S101 - layout_of wants one
        moment = times.parse(cells[layout.time])
        if moment is None:
            self._reading.bad(place, "no time", shape(cells[layout.time]))
            return
        if isinstance(moment, times.Local) and self._is_utc:
            moment = int(moment)
        self._is_local |= isinstance(moment, times.Local)
        self.ports.at(moment)
        if layout.host is not None:
            self.ports.of_row(cells[layout.host])
        for column in layout.columns:
            text = cells[column.at].strip()
            if column.kind == "port":
                self.ports.add(
                    place, column.device, column.meaning, text, original=column.header[:80]
                )
            else:
                self._gpu(place, column, moment, text)

    def _gpu(self, place: int, column: Column, moment: int, text: str) -> None:
        number = decimal(text)
        if number is None and not is_missing(text):
            self._reading.bad(place, "a cell that should hold a number does not", shape(text))
            return
        share = number * column.meaning.scale if number is not None else 0.0
        if column.meaning.unit == "0..1" and not 0 <= share <= MAX_SHARE:
            self._sink.count(
                "impossible_number",
                doc="A share above 1 (if it is percent, its header must say so: _pct): left out.",
                place=place,
            )
            return
        key = (self.ports.node, column)
        if key not in self._series:
            gpu = Gpu(node=self.ports.node, nvml_index=int(column.device))
            self._series[key] = self._gpus.series(gpu, column.meaning, "content")
        counted = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
        self._gpus.add(self._series[key], column.meaning, place, int(moment), number, counted)


def _word(reason: str) -> str:
    """A reason as the end of a counter's name."""
    return "_".join(re.findall(r"[a-z]+", reason.lower())[:4])

"""CSV with a column for each counter of each device, as collectors of one's own write them.

``ib3_tx_bytes_s``, ``gpu0_bmc_temp_c``, ``power_w_gpu1``: a kind of device with its number, a
metric and a unit, the device in front or behind. Devices of several kinds stand in one row, whose
time they share. GPUs go to gpu_sample, ports of NICs to net_sample, fans, power supplies and the
machine itself to host_sample, and where a label (a phase) stays the same is one annotation. What
else the header names (totals) is listed as not read, with the reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tracekit.errors import InputError
from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.device_headers import column_of, is_second
from tracekit.ingest.counters.device_samples import Column, Devices, tell_unread
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.table import (
    HOST_WORDS,
    LABEL_WORDS,
    MAX_COLUMNS,
    TIME_WORDS,
    bare_name,
    cells_of,
    header_line,
    header_of,
)
from tracekit.ingest.lines import Line, lines, shape

KIND = "device_csv"
_INDEX_WORDS = ("", "unnamed: 0", "index")
"""Headers of the first column where a data frame was written with its index."""
MIN_COLUMNS = 2
"""Columns of known counters from which a header is surely one of devices."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which column is what, and why some are nothing."""

    header: tuple[str, ...]
    delimiter: str
    time: int | None
    host: int | None
    columns: tuple[Column, ...]
    labels: tuple[int, ...] = ()
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
    """Every number that has a meaning into gpu_sample, net_sample or host_sample."""
    with source.open() as stream:
        reading = Reading(sink, stream, None, "line")
        table = None
        for line in lines(stream):
            if table is not None:
                table.line(line)
            elif line.text.strip():
                layout = layout_of(line.text)
                if layout is None:
                    raise InputError(f"{source.path}: its first line names no counter of devices")
                for reason, names in layout.unread.items():
                    tell_unread(sink, names, reason)
                has_host = layout.host is not None
                devices = Devices(source, sink, reading, names_hosts=has_host)
                table = _Table(layout, devices, reading)
        if table is None:
            raise InputError(f"{source.path}: it holds no line")
        table.devices.finish()
        reading.finish(table.devices.ports, streams.stream_problem(stream))


def layout_of(line: str) -> Layout | None:
    """The layout that a header declares; None where it is no table of devices."""
    named = header_of(line)
    if named is None and MIN_COLUMNS < len(line.split()) <= MAX_COLUMNS:
        named = " ", line.split()
    if named is None:
        return None
    delimiter, header = named
    names = [h.strip() for h in header]
    bare = [bare_name(n) for n in names]
    time = next((bare.index(w) for w in TIME_WORDS if w in bare), None)
    host = next((bare.index(w) for w in HOST_WORDS if w in bare), None)
    if time is None and bare[0] in _INDEX_WORDS:
        time = 0
    if time is None:
        return None
    readable: list[Column] = []
    unread: dict[str, list[str]] = defaultdict(list)
    taken: set[tuple[str | None, ...]] = set()
    labels = tuple(at for at, word in enumerate(bare) if word in LABEL_WORDS)
    # A sensor that somebody else reads (a BMC) is second to the device's own of the same meaning.
    order = sorted(range(len(names)), key=lambda at: is_second(names[at]))
    for at in order:
        if at in (time, host, *labels):
            continue
        column = column_of(at, names[at])
        if isinstance(column, str):
            unread[column].append(names[at])
        elif (key := column.key) in taken:
            unread["another column has the same meaning"].append(names[at])
        else:
            taken.add(key)
            readable.append(column)
    if len(readable) < MIN_COLUMNS:
        return None
    columns = tuple(sorted(readable))
    return Layout(tuple(names), delimiter, time, host, columns, labels, dict(unread))


class _Table:
    def __init__(self, layout: Layout, devices: Devices, reading: Reading) -> None:
        self._layout = layout
        self._reading = reading
        self.devices = devices
        self._has_decimal_commas = layout.delimiter == ";"

    def line(self, line: Line) -> None:
        if not line.text.strip():
            return
        cells = [c.strip() for c in cells_of(line.text, self._layout.delimiter)]
        if len(cells) != len(self._layout.header):
            self._reading.bad(line.number, "another number of cells", shape(line.text))
        elif tuple(cells) != self._layout.header:
            self._row(line.number, cells)

    def _row(self, place: int, cells: Sequence[str]) -> None:
        layout = self._layout
        assert layout.time is not None  # noqa: S101 - layout_of wants one
        moment = times.parse(self._number(cells[layout.time]))
        if moment is None:
            self._reading.bad(place, "no time", shape(cells[layout.time]))
            return
        host = cells[layout.host] if layout.host is not None else None
        labels = [(layout.header[at], cells[at]) for at in layout.labels]
        if self._has_decimal_commas:
            cells = [self._number(cell) for cell in cells]
        numbers = [(column, cells[column.at]) for column in layout.columns]
        self.devices.add(place, moment, host, numbers, labels)

    def _number(self, cell: str) -> str:
        """A cell with a point for the comma that stands in it.

        What has both, or several commas, is left as it is and read by nobody.
        """
        if not self._has_decimal_commas or "," not in cell:
            return cell
        return cell.replace(",", ".") if cell.count(",") == 1 and "." not in cell else "?" + cell

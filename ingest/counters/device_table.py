"""CSV with a column for each counter of each device, as collectors of one's own write them.

``ib3_tx_bytes_s``, ``gpu0_bmc_temp_c``, ``power_w_gpu1``: a kind of device with its number, a
metric and a unit, the device in front or behind. Devices of several kinds stand in one row, whose
time they share. GPUs go to gpu_sample, ports of NICs to net_sample, fans, power supplies and the
machine itself to host_sample, and where a label (a phase) stays the same is one annotation. What
else the header names (totals) is listed as not read, with the reason.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain, islice

from msgspec import Struct, field
from msgspec.structs import replace

from tracekit.errors import InputError
from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import open_units, times
from tracekit.ingest.counters.device_headers import (
    NO_COUNT,
    column_of,
    is_second,
    title_of,
    with_title,
)
from tracekit.ingest.counters.device_samples import Column, Devices, tell_unread
from tracekit.ingest.counters.net_samples import decimal
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.table import (
    HOST_WORDS,
    LABEL_WORDS,
    TIME_WORDS,
    bare_name,
    cells_of,
    host_of,
    tell_units,
    unit_of,
)
from tracekit.ingest.counters.table import column_of as column_in
from tracekit.ingest.counters.table_heads import HEAD_LINES, Head, heads, plain_name
from tracekit.ingest.lines import Line, lines, shape

KIND = "device_csv"
ROLES = ("time", "host", *sorted(LABEL_WORDS))
"""Parts of a table that job.toml may name beside its counters."""
_INDEX_WORDS = ("", "unnamed:_0", "index")
"""Headers of the first column where a data frame was written with its index."""
_SINCE_START = re.compile(
    r"(?:t|time|timestamp|elapsed|elapsed_time|elapsedtime|runtime|relative_time|rel_time|time_rel|"
    r"relative_time_\((?:process|wall)\)|"
    r"seconds|secs|sec|time_since_start|since_start|clock|uptime|_runtime)"
    r"(?:_(s|sec|seconds|ms|us|ns))?"
)
"""Headers of times that may count from a beginning."""
MIN_COLUMNS = 2
"""Columns of known counters from which a header is surely one of devices."""


class Layout(Struct, frozen=True):
    """Which column is what, and why some are nothing."""

    head: Head
    time: int
    host: int | None
    columns: tuple[Column, ...]
    labels: tuple[int, ...] = ()
    unread: dict[str, list[str]] = field(default_factory=dict)
    """Headers by the reason."""
    since: str | None = None
    """Unit of times that count from a beginning which the file does not state."""


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise a table by its header: a time, and two counters of numbered devices or more."""
    first = head.decode("utf-8", "replace").split("\n", HEAD_LINES)[:HEAD_LINES]
    layout = layout_of(*first) or _of_title(first, name)
    if layout is None:
        return None
    devices = len({(c.node, c.kind, c.device) for c in layout.columns})
    what = f"a table of {devices} devices, {len(layout.columns)} counters"
    return Recognition(KIND, what, KIND)


def read(source: SourceFile, sink: Sink) -> None:
    """Every number that has a meaning into gpu_sample, net_sample or host_sample."""
    with source.open() as stream:
        reading = Reading(sink, stream, None, "line")
        whole = lines(stream)
        first = list(islice(whole, HEAD_LINES))
        if not any(line.text.strip() for line in first):
            raise InputError(f"{source.path}: it holds no line")
        texts = [line.text for line in first]
        layout = layout_of(*texts, said=_said(source))
        if layout is None and not source.columns:
            layout = _of_title(texts, source.name)
        if layout is None:
            raise InputError(f"{source.path}: its first line names no counter of devices")
        if any(column.is_open for column in layout.columns):
            layout = _settled(layout, source, sink)
        for reason, names in layout.unread.items():
            tell_unread(sink, names, reason)
        devices = Devices(source, sink, reading, names_hosts=layout.host is not None)
        devices.is_utc |= unit_of(layout.head.names[layout.time]) == "UTC"
        table = _Table(layout, devices, reading)
        for line in chain(first[layout.head.lines :], whole):
            table.line(line)
        devices.finish()
        reading.finish(devices.ports, streams.stream_problem(stream))


def recognise(source: SourceFile, head: bytes) -> Recognition:
    """A file whose columns job.toml explains as those of devices."""
    try:
        first = head.decode("utf-8", "replace").split("\n", HEAD_LINES)[:HEAD_LINES]
        layout = layout_of(*first, said=_said(source))
    except InputError as error:
        why = error.message.removeprefix(f"{source.path}: ")
        return Recognition(KIND, why, KIND, status="unreadable")
    if layout is None:
        why = "its first lines and job.toml name no time and no counter of a device"
        return Recognition(KIND, why, KIND, status="unreadable")
    return Recognition(KIND, "a table of devices, as job.toml explains it", KIND)


def _said(source: SourceFile) -> Callable[[Head], Head]:
    """A head with the names that job.toml gives its columns.

    InputError, with path, for a column that the file does not have.
    """

    def named(head: Head) -> Head:
        names = list(head.names)
        for key, text in source.columns:
            at, unit = column_in(head.shown, text)
            if at is None:
                have = ", ".join(head.shown)
                raise InputError(
                    f"{source.path}: its header has no column {text[:80]!r}, which job.toml says "
                    f"is {key}; it has {have[:300]}"
                )
            names[at] = f"{key} [{unit}]" if unit is not None else key
        return head._replace(names=tuple(names))

    return named


def _titled(name: str) -> Callable[[Head], Head]:
    """A head whose columns name devices alone, with the metric that the file's name is."""
    title = title_of(name)
    kept = {*TIME_WORDS, *HOST_WORDS, *LABEL_WORDS}

    def named(head: Head) -> Head:
        names = (n if bare_name(n) in kept else with_title(n, title) for n in head.names)
        return head._replace(names=tuple(names))

    return named


def _of_title(first: Sequence[str], name: str) -> Layout | None:
    """The layout of a table whose metric is its file's name; of a count a panel shows the rate."""
    layout = layout_of(*first, said=_titled(name))
    if layout is None:
        return None
    counts = [column.header for column in layout.columns if column.meaning.kind == "cumulative"]
    columns = tuple(column for column in layout.columns if column.meaning.kind != "cumulative")
    unread = {**layout.unread, NO_COUNT: counts} if counts else layout.unread
    return replace(layout, columns=columns, unread=unread) if columns else None


def layout_of(*first: str, said: Callable[[Head], Head] = lambda head: head) -> Layout | None:
    """The layout that the first lines of a table declare; None where it is no table of devices.

    ``said`` gives a head other names.
    """
    found = (_of_head(said(head)) for head in heads(first))
    return next((layout for layout in found if layout is not None), None)


def _settled(layout: Layout, source: SourceFile, sink: Sink) -> Layout:
    """The layout with a unit for each column that lacks it, by all numbers of the file.

    What one counter of all devices reaches decides: one GPU of them may stand by.
    """
    of_counter: dict[str, open_units.Sizes] = defaultdict(open_units.Sizes)
    open_columns = [column for column in layout.columns if column.is_open]
    has_commas = layout.head.delimiter == ";"
    with source.open() as stream:
        for line in islice(lines(stream), layout.head.lines, None):
            cells = cells_of(line.text, layout.head.delimiter)
            if len(cells) != len(layout.head.names):
                continue
            for column in open_columns:
                text = cells[column.at]
                number = decimal(text.replace(",", ".") if has_commas else text)
                if number is not None:
                    of_counter[column.meaning.counter].add(number)
    unread = {reason: list(names) for reason, names in layout.unread.items()}
    columns: list[Column] = [column for column in layout.columns if not column.is_open]
    said: dict[str, list[str]] = defaultdict(list)
    for column in open_columns:
        meaning = column.meaning
        found = open_units.told(meaning.counter, meaning.unit or "", of_counter[meaning.counter])
        if found is None:
            unread.setdefault(open_units.UNDECIDED, []).append(column.header)
            continue
        said[found.unit].append(column.header)
        columns.append(column._replace(meaning=meaning._replace(scale=found.scale), is_open=False))
    for unit, names in said.items():
        tell_units(sink, names, unit)
    return replace(layout, columns=tuple(sorted(columns)), unread=unread)


def _of_head(head: Head) -> Layout | None:
    bare = [bare_name(n) for n in head.names]
    host = next((bare.index(w) for w in HOST_WORDS if w in bare), None)
    time, since = _time_of(head, bare)
    if time is None:
        return None
    readable: list[Column] = []
    unread: dict[str, list[str]] = defaultdict(list)
    taken: set[tuple[str | None, ...]] = set()
    labels = tuple(at for at, word in enumerate(bare) if word in LABEL_WORDS)
    # A sensor that somebody else reads (a BMC) is second to the device's own of the same meaning.
    # What a NIC's driver counts is second to what its physical port does.
    order = sorted(
        range(len(bare)), key=lambda at: (is_second(head.names[at]), not bare[at].endswith("_phy"))
    )
    for at in order:
        if at in (time, host, *labels):
            continue
        if bare[at] in TIME_WORDS:
            unread["another column is the time"].append(head.shown[at])
            continue
        column = column_of(at, head.names[at])
        if isinstance(column, str) and (printed := head.printed(at)) != head.names[at]:
            column = column_of(at, printed)
        if isinstance(column, str):
            column = column_of(at, head.names[at], may_be_open=True)
        if isinstance(column, str):
            unread[column].append(head.shown[at])
        elif (key := column.key) in taken:
            unread["another column has the same meaning"].append(head.shown[at])
        else:
            taken.add(key)
            readable.append(column._replace(header=head.shown[at]))
    is_said = head.names != tuple(plain_name(name) for name in head.shown)
    is_said |= any(name.startswith("system.gpu.") for name in head.names)  # nobody's but W&B's
    if len(readable) < (1 if is_said else MIN_COLUMNS):
        return None
    return Layout(head, time, host, tuple(sorted(readable)), labels, dict(unread), since)


def _time_of(head: Head, bare: Sequence[str]) -> tuple[int | None, str | None]:
    """The column of times; and its unit, where they count from some beginning."""
    named = [bare.index(w) for w in TIME_WORDS if w in bare]
    moments = {at: times.parse(head.first[at]) for at in named if head.first}
    # Beside a local time an epoch says more.
    placed = [at for at in named if times.basis_of(moments.get(at) or times.Local()) == "epoch"]
    if placed:
        return placed[0], None
    said = [at for at in named if moments.get(at) is not None]
    if said or (at := head.time_at) is None:
        at = said[0] if said else None
    if at is not None:
        return at, None
    for at, name in enumerate(bare):
        if (since := _SINCE_START.fullmatch(name)) and head.first:
            unit = unit_of(head.names[at]) or since[1] or "s"
            if times.elapsed(head.first[at], unit) is not None:
                return at, unit
    if named:
        return named[0], None
    return (0, None) if bare[0] in _INDEX_WORDS else (None, None)


class _Table:
    def __init__(self, layout: Layout, devices: Devices, reading: Reading) -> None:
        self._layout = layout
        self._reading = reading
        self.devices = devices
        self._has_decimal_commas = layout.head.delimiter == ";"
        self._last_ns = 0
        self._days_ns = 0

    def line(self, line: Line) -> None:
        if not line.text.strip():
            return
        cells = [c.strip() for c in cells_of(line.text, self._layout.head.delimiter)]
        if len(cells) != len(self._layout.head.names):
            self._reading.bad(line.number, "another number of cells", shape(line.text))
        elif tuple(cells) != self._layout.head.cells:
            self._row(line.number, cells)

    def _row(self, place: int, cells: Sequence[str]) -> None:
        layout = self._layout
        moment = self._moment(self._number(cells[layout.time]))
        if moment is None:
            self._reading.bad(place, "no time", shape(cells[layout.time]))
            return
        host = host_of(cells[layout.host]) if layout.host is not None else None
        labels = [(layout.head.shown[at], cells[at]) for at in layout.labels]
        if self._has_decimal_commas:
            cells = [self._number(cell) for cell in cells]
        numbers = [(column, cells[column.at]) for column in layout.columns]
        self.devices.add(place, moment, host, numbers, labels)

    def _moment(self, text: str) -> int | None:
        since = self._layout.since
        if since is None:
            return times.parse(text)
        moment = times.elapsed(text, since)
        if moment is not None and ":" in text:  # a clock that went past midnight begins again
            if self._last_ns - moment > times.DAY_NS // 2:
                self._days_ns += times.DAY_NS
            self._last_ns = int(moment)
            moment = times.Elapsed(moment + self._days_ns)
        return moment

    def _number(self, cell: str) -> str:
        """A cell with a point for the comma that stands in it.

        What has both, or several commas, is left as it is and read by nobody.
        """
        if not self._has_decimal_commas or "," not in cell:
            return cell
        return cell.replace(",", ".") if cell.count(",") == 1 and "." not in cell else "?" + cell

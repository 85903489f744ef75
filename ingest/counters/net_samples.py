"""Rows of net_sample: numbers as they are printed, when they were read, and whose they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tracekit.ingest.base import Sink, SourceFile, stated_host, write_columns
from tracekit.ingest.counters import times
from tracekit.ingest.counters.vocabulary import Meaning, direction_of
from tracekit.values import TIME_LIMIT_NS

CHUNK_ROWS = 50_000
"""Rows that are gathered before they are written."""
COUNTED_MAX = 2**64 - 1
PORT_MAX_LENGTH = 200
"""Longest name of a port or node that is believed."""

_MISSING = frozenset({"", "n/a", "na", "-", "--", "none", "null", "unknown", "not available"})
_INTEGER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)")
_DECIMAL = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][+-]?\d{1,4})?")
_NODE = re.compile(
    r"(?:switch|leaf|spine|superspine|tor|core|agg|border|sw|host|node|gpu|dgx|hgx|worker|compute)"
    r"(?:[-_]?[a-z]{0,8}[-_]?\d{1,6})(?:[-.][A-Za-z0-9-]{1,40}){0,4}?(?=$|[._ ]|-\D)",
    re.I,
)
_TREE = re.compile(r"/(?:sys|class|infiniband)/.*|/[\w.-]+/(?:ports|statistics)/.*")

_PORT_IN_NAME = re.compile(
    r"(?<![A-Za-z0-9])((?:eth|ens|enp|eno|enx|ib|bond|swp|rdma|roce|rocep|mlx5_|bnxt_re|rail)"
    r"[a-z0-9]{0,3}\d[a-z0-9]{0,16}(?:_np\d)?)(?![A-Za-z0-9])"
)
_CAPTURED = re.compile(r"ethtool(?:-[a-z]{1,8})?\.([\w.@-]{1,60}?)(?:\.\d{9,19})?\.txt$")

COLUMNS = (
    "place",
    "node",
    "node_source",
    "port",
    "direction",
    "priority",
    "queue",
    "lane",
    "time_ns",
    "time_source",
    "interval_ns",
    "counter",
    "original_name",
    "kind",
    "unit",
    "value",
    "counted",
)


def is_missing(text: str) -> bool:
    """Whether a cell says that there is no number (N/A, a dash, nothing)."""
    return text.strip().lower() in _MISSING


def integer(value: object) -> int | None:
    """A whole number as printed: thousands commas, a text or a number; None for all else."""
    kind = type(value)
    if kind is int:
        return value  # type: ignore[return-value]
    if kind is float:
        return int(value) if value.is_integer() else None  # type: ignore[attr-defined, call-overload]
    if not isinstance(value, str):
        return None
    if len(value) < 30 and value.isdecimal() and value.isascii():
        return int(value)
    text = value.strip()
    if len(text) > 40:
        return None
    if _INTEGER.fullmatch(text):
        return int(text.replace(",", ""))
    number = decimal(text)
    return int(number) if number is not None and number.is_integer() else None


def decimal(value: object) -> float | None:
    """A finite number as printed; None for all else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        number = float(value) if abs(value) < 1e300 else float("inf")
    else:
        text = value.strip() if isinstance(value, str) else ""
        if not text or len(text) > 60 or not _DECIMAL.fullmatch(text):
            return None
        try:
            number = float(text.replace(",", ""))
        except ValueError:
            return None
    return number if number - number == 0 else None


def node_of_path(path: str) -> str | None:
    """A machine that the file's name, or a folder of it, names; None where none clearly does.

    Only names that begin as machines' do and carry a number count (leaf01, gpu-11, host3); a file
    called switch is one too. Anything looser would turn commands into machines. ``tracekit
    capture`` names its folders after hosts.
    """
    plain = re.sub(r"[\\!]", "/", path)
    tree = _TREE.search(plain)
    parts = [p for p in (plain[: tree.start()] if tree else plain).split("/") if p]
    if len(parts) > 2 and parts[-3].startswith("tracekit-capture"):
        return parts[-2]
    for position, part in enumerate(reversed(parts[-3:])):
        found = _NODE.match(part)
        if found:
            return found[0]
        if position == 0 and re.match(r"switch(?=[._]|$)", part):
            return "switch"
    return None


def port_of_name(name: str) -> str | None:
    """An interface that a file's name names, as in ethtool_eth0.txt."""
    found = _CAPTURED.match(name) or _PORT_IN_NAME.search(name)
    return found[1] if found else None


class Samples:
    """Gathers the samples of one file and writes them in chunks.

    ``at`` says when what follows was read. Samples for which nobody said so form dumps: a series
    that comes again begins a new one. Only the last dump of a file can bear the time of the file
    (its name's, else its modification's); those before it have none.
    """

    def __init__(self, sink: Sink, source: SourceFile) -> None:
        self._sink = sink
        self._rows: list[tuple[Any, ...]] = []
        self._untimed: list[tuple[Any, ...]] = []
        self._seen: set[tuple[Any, ...]] = set()
        self._file_time = times.of_file(source)
        self.time_ns: int | None = None
        """The time, stated by the file, of what is read now."""
        self._basis: str | None = None
        self._other_times = 0
        self._window: tuple[int, int] | None = None
        self.node = node_of_path(source.path)
        self.node_source: str | None = "name" if self.node else None
        self.interval_ns: int | None = None
        """Time that what follows was averaged or counted over, where the source says so."""
        self.rows_count = 0
        self.missing_count = 0
        self.dumps_count = 0

    def at(self, time_ns: int | None) -> None:
        """The time, stated by the file, of what follows; None where it states none.

        A file's times are all with a zone or all without: what differs from the first is none.
        """
        if time_ns is not None:
            basis = "local" if isinstance(time_ns, times.Local) else "epoch"
            self._basis = self._basis or basis
            if not 0 <= time_ns < TIME_LIMIT_NS or basis != self._basis:
                time_ns = None
                self._other_times += 1
        if time_ns is None and self.time_ns is not None:
            self._next_dump()
        self.time_ns = None if time_ns is None else int(time_ns)

    def of(self, node: str | None) -> None:
        """The machine, stated by the file, that what follows belongs to."""
        if (name := stated_host(node)) is not None:
            self.node, self.node_source = name, "file"

    def add(
        self,
        place: int,
        port: str | None,
        meaning: Meaning,
        printed: object,
        *,
        original: str,
        priority: int | None = None,
        queue: int | None = None,
        lane: int | None = None,
        direction: str | None = None,
    ) -> bool:
        """One number; False (and counted) where there is none."""
        value: float | None = None
        counted: int | None = None
        if meaning.kind == "cumulative":
            counted = integer(printed)
            if counted is not None:
                counted = round(counted * meaning.scale)  # exact: the scale of a count is whole
            if counted is None or not 0 <= counted <= COUNTED_MAX:
                self._no_number(place, printed)
                return False
        else:
            value = decimal(printed)
            if value is None:
                self._no_number(place, printed)
                return False
            value *= meaning.scale
        if port is not None and len(port) > PORT_MAX_LENGTH:
            port = port[:PORT_MAX_LENGTH]
        row = (
            place,
            self.node,
            self.node_source,
            port,
            direction or direction_of(meaning.counter),
            priority,
            queue,
            lane,
            self.time_ns,
            "content" if self.time_ns is not None else None,
            self.interval_ns,
            meaning.counter,
            original,
            meaning.kind,
            meaning.unit,
            value,
            counted,
        )
        self.rows_count += 1
        if self.time_ns is not None:
            low, high = self._window or (self.time_ns, self.time_ns)
            self._window = (min(low, self.time_ns), max(high, self.time_ns))
            self._put(row)
            return True
        key = (self.node, port, meaning.counter, priority, queue, lane)
        if key in self._seen:
            self._next_dump()
        self._seen.add(key)
        self._untimed.append(row)
        return True

    def where(self, **known: object) -> list[str]:
        """Fields of an event: the machine where it is known, then what is given."""
        node = [f"node={self.node}"] if self.node else []
        return [*node, *(f"{name}={value}" for name, value in known.items() if value is not None)]

    @property
    def is_local(self) -> bool:
        """Whether the file's times lack their zone."""
        return self._basis == "local"

    def finish(self) -> None:
        """Write what is left, and say what the file covers."""
        last = self._untimed
        self._untimed = []
        if last:
            self.dumps_count += 1
            # A file of local times must not hold others beside them.
            time_ns, time_source = (None, None) if self.is_local else self._file_time
            if time_ns is not None:
                low, high = self._window or (time_ns, time_ns)
                self._window = (min(low, time_ns), max(high, time_ns))
            for row in last:
                self._put((*row[:8], time_ns, time_source, *row[10:]))
        self._flush()
        if self.missing_count:
            self._sink.count(
                "no_value",
                self.missing_count,
                severity="info",
                doc="Cells that say that there is no number (N/A, a dash): no sample was written.",
            )
        if self.is_local:
            self._sink.count(
                "local_time",
                severity="info",
                doc="Times without a zone. They mean nothing beside other files until job.toml "
                "says [[source]] path, timezone.",
            )
        if self._other_times:
            self._sink.count(
                "bad_time",
                self._other_times,
                doc="Times that cannot be: without a zone among others that have one, or the "
                "other way round.",
            )
        if self._window:
            low, high = self._window
            self._sink.fact(
                time_basis=self._basis or "epoch", window_start_ns=low, window_end_ns=high
            )
        elif self.rows_count:
            self._sink.fact(time_basis="none")

    def _no_number(self, place: int, printed: object) -> None:
        if printed is None or (isinstance(printed, str) and is_missing(printed)):
            self.missing_count += 1
            return
        self._sink.count(
            "bad_number",
            doc="A cell that should hold a number does not, or one that no counter can reach.",
            place=place,
            shape=shape(str(printed)),
        )

    def _next_dump(self) -> None:
        if not self._untimed:
            return
        self.dumps_count += 1
        self._sink.count(
            "dump_without_time",
            severity="info",
            doc="A dump before the last one of a file that states no times: its order is known, "
            "its time is not.",
            place=self._untimed[0][0],
        )
        for row in self._untimed:
            self._put(row)
        self._untimed = []
        self._seen.clear()

    def _put(self, row: tuple[Any, ...]) -> None:
        self._rows.append(row)
        if len(self._rows) >= CHUNK_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            _write(self._sink, "net_sample", COLUMNS, self._rows)
            self._rows = []


def _write(sink: Sink, name: str, columns: Sequence[str], rows: list[tuple[Any, ...]]) -> None:
    write_columns(sink, name, dict(zip(columns, zip(*rows, strict=True), strict=True)))


def write_links(sink: Sink, links: Iterable[tuple[int, str | None, str, str, str | None]]) -> None:
    """Rows of link: place, node, port, host on the other side, its NIC."""
    rows = [(*link, "file") for link in links]
    if rows:
        columns = ("place", "node", "port", "peer_host", "nic", "link_source")
        _write(sink, "link", columns, rows)


class Event(NamedTuple):
    """A row of log_event."""

    place: int
    time_ns: int | None
    code: str
    severity: str
    fields: list[str]


def write_events(sink: Sink, events: list[Event]) -> None:
    """Rows of log_event."""
    if events:
        columns = ("place", "time_ns", "code", "severity", "fields")
        _write(sink, "log_event", columns, [tuple(e) for e in events])


def shape(text: str) -> str:
    """Masked shape of a text: letters to a, digits to 9."""
    masked = re.sub(r"[^\W\d_]", "a", text[:120])
    return re.sub(r"\d", "9", masked)

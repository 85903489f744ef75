"""Rows of net_sample: numbers as they are printed, when they were read, and whose they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from tracekit.ingest.base import Sink, SourceFile, stated_host, write_columns
from tracekit.ingest.counters import times
from tracekit.ingest.counters.names import node_of_path
from tracekit.ingest.counters.samples import Samples, count_local_time
from tracekit.ingest.counters.vocabulary import Meaning, direction_of
from tracekit.ingest.lines import shape
from tracekit.values import MAX_PRINTED, TIME_LIMIT_NS

COUNTED_MAX = 2**64 - 1
PORT_MAX_LENGTH = 200
"""Longest name of a port or node that is believed."""

_MISSING = frozenset(
    {"", "n/a", "na", "-", "--", "none", "null", "unknown", "not available", "nan", "[n/a]"}
)
_INTEGER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)")
_DECIMAL = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][+-]?\d{1,4})?")


def is_missing(text: str) -> bool:
    """Whether a cell says that there is no number (N/A, a dash, nothing)."""
    return text.strip().lower() in _MISSING


def integer(value: object) -> int | None:
    """A whole number as printed: thousands commas, a text or a number; None for all else."""
    kind = type(value)
    if kind is int:
        return value if -MAX_PRINTED < value < MAX_PRINTED else None  # type: ignore[operator, return-value]
    if kind is float:
        return int(value) if value.is_integer() else None  # type: ignore[attr-defined, call-overload]
    if not isinstance(value, str):
        return None
    if len(value) < 30 and value.isdecimal() and value.isascii():
        return int(value)
    text = value.strip()
    if len(text) > 40:  # as MAX_PRINTED
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


class NetSamples(Samples):
    """The samples of one file.

    ``at`` says when what follows was read. Samples for which nobody said so form dumps: a series
    that comes again begins a new one. Only the last dump of a file can bear the time of the file
    (its name's, else its modification's); those before it have none.
    """

    table = "net_sample"
    columns: ClassVar[tuple[str, ...]] = (
        "node", "node_source", "port", "direction", "priority", "queue", "lane", "interval_ns",
        "counter", "original_name", "kind", "unit", "time_source",
    )  # fmt: skip
    device_columns: ClassVar[tuple[str, ...]] = ("port",)
    devices: ClassVar[str] = "ports"
    keeps_series = False

    def __init__(self, sink: Sink, source: SourceFile) -> None:
        super().__init__(sink, source)
        self._untimed: list[tuple[int, tuple[Any, ...], float | None, int | None]] = []
        """Place, series without its time source, and number."""
        self._seen: set[tuple[Any, ...]] = set()
        self.time_ns: int | None = None
        """The time, stated by the file, of what is read now."""
        self._basis: str | None = None
        self._other_times = 0
        self.node: str | None = None
        self.node_source: str | None = None
        self.of_name(node_of_path(source.path))
        self.interval_ns: int | None = None
        """Time that what follows was averaged or counted over, where the source says so."""

    def at(self, time_ns: int | None) -> None:
        """The time, stated by the file, of what follows; None where it states none.

        A file's times are all with a zone or all without: what differs from the first is none.
        """
        if time_ns is not None:
            basis = times.basis_of(time_ns)
            self._basis = self._basis or basis
            if not 0 <= time_ns < TIME_LIMIT_NS or basis != self._basis:
                time_ns = None
                self._other_times += 1
        if time_ns is None and self.time_ns is not None:
            self._next_dump()
        self.time_ns = None if time_ns is None else int(time_ns)

    def of_name(self, node: str | None) -> None:
        """The machine that the file's name names, for all that says nothing else."""
        self.node, self.node_source = node, "name" if node else None
        self._named = self.node, self.node_source

    def of_row(self, node: str | None) -> None:
        """The machine in a row's own cell; where it names none, what the file's name says."""
        self.node, self.node_source = self._named
        self.of(node)

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
        number = self._number(place, meaning, printed)
        if number is None:
            return False
        if port is not None and len(port) > PORT_MAX_LENGTH:
            port = port[:PORT_MAX_LENGTH]
        series = (
            self.node, self.node_source, port, direction or direction_of(meaning.counter),
            priority, queue, lane, self.interval_ns,
            meaning.counter, original, meaning.kind, meaning.unit,
        )  # fmt: skip
        self._keep(place, series, (self.node, port, meaning.counter, priority, queue, lane), number)
        return True

    def _number(
        self, place: int, meaning: Meaning, printed: object
    ) -> tuple[float | None, int | None] | None:
        """A printed number in its unit: a gauge's, or a count; None (and counted) for none."""
        if meaning.kind == "cumulative":
            counted = integer(printed)
            if counted is not None:
                counted = round(counted * meaning.scale)  # exact: the scale of a count is whole
                if 0 <= counted <= COUNTED_MAX:
                    return None, counted
        else:
            value = decimal(printed)
            if value is not None:
                return value * meaning.scale, None
        self._no_number(place, printed)
        return None

    def _keep(
        self,
        place: int,
        series: tuple[Any, ...],
        key: tuple[object, ...],
        number: tuple[float | None, int | None],
    ) -> None:
        """One number of a series, whose time source is still open; a dump has a key once."""
        self.rows_count += 1
        if self.time_ns is not None:
            self._put(self._number_of((*series, "content")), place, self.time_ns, *number)
            return
        if key in self._seen:
            self._next_dump()
        self._seen.add(key)
        self._untimed.append((place, series, *number))

    def where(self, **known: object) -> list[str]:
        """Fields of an event: the machine where it is known, then what is given."""
        node = [f"node={self.node}"] if self.node else []
        return [*node, *(f"{name}={value}" for name, value in known.items() if value is not None)]

    @property
    def is_local(self) -> bool:
        """Whether the file's times lack their zone."""
        return self._basis == "local"

    @property
    def is_placed(self) -> bool:
        """Whether the file's times mean something beside other files."""
        return self._basis in (None, "epoch")

    def finish(self) -> None:
        """Write what is left, and say what the file covers."""
        # A file of local times must not hold others beside them.
        self._put_dump(*(self.file_time if self.is_placed else (None, None)))
        self._end(self._basis or "epoch")
        if self.is_local:
            count_local_time(self._sink)
        if self._other_times:
            self._sink.count(
                "bad_time",
                self._other_times,
                doc="Times that cannot be: without a zone among others that have one, or the "
                "other way round.",
            )
        if self._window is None and self.rows_count:
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
        self._sink.count(
            "dump_without_time",
            severity="info",
            doc="A dump before the last one of a file that states no times: its order is known, "
            "its time is not.",
            place=self._untimed[0][0],
        )
        self._put_dump(None, None)
        self._seen.clear()

    def _put_dump(self, time_ns: int | None, time_source: str | None) -> None:
        for place, series, value, counted in self._untimed:
            self._put(self._number_of((*series, time_source)), place, time_ns, value, counted)
        self._untimed = []


def _write(sink: Sink, name: str, columns: Sequence[str], rows: list[tuple[Any, ...]]) -> None:
    write_columns(sink, name, dict(zip(columns, zip(*rows, strict=True), strict=True)))


def write_links(
    sink: Sink,
    links: Iterable[tuple[int, str | None, str, str, str | None]],
    *,
    is_peer_host: bool = True,
) -> None:
    """Rows of link: place, node, port, host on the other side, its NIC.

    ``is_peer_host`` is false of neighbours that may be switches as well.
    """
    rows = [(*link, is_peer_host, "file") for link in links]
    if rows:
        columns = ("place", "node", "port", "peer_host", "nic", "is_peer_host", "link_source")
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

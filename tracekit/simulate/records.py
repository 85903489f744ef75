"""What ranks did in a step, kept as rows of bytes, most of them in a temporary file.

A step of a thousand ranks has millions of events: gigabytes as Python objects. So an event becomes
a row of bytes as soon as it is over, and the rows of a rank go to the file whenever they fill its
part of ``HELD_BYTES``. Whoever iterates gets objects again, one at a time and as often as wanted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

from msgspec import Struct

HELD_BYTES = 32 << 20
"""Rows of all ranks that stay in memory, at most."""
LEAST_HELD_BYTES = 4 << 10
"""Of one rank and kind: smaller pieces would make the file slow."""

NEVER = -1
"""End of what has not ended."""

HostRecord = tuple[str, Any, int, int, int, int, Any]
"""Kind, name or spec, start, duration, thread, external id, more."""


class Transfer(NamedTuple):
    """One collective or message: the same for all its members."""

    channel: str
    """Role of the group, or a message's channel."""
    ranks: tuple[int, ...]
    sequence: int
    latest: int
    """When its last member started."""
    lost_at: int | None
    """The rank over whose NIC it timed out."""


class Operation(NamedTuple):
    """One kernel, copy or communication of one rank; ``end`` is below 0 where it never ended."""

    spec: Any
    stream: int
    thread: int
    launch: int
    launch_dur: int
    start: int
    end: int
    correlation: int
    external: int
    size_bytes: int = 0
    routing: tuple[float, ...] = ()
    sequence: int | None = None
    transfer: Transfer | None = None


class Group(Struct, frozen=True, eq=False):
    """Who communicates with whom. Of the same job, equal groups are one object."""

    number: int
    """Its place among the job's groups."""
    key: tuple[Any, ...]
    """Names its noise."""
    channel: str
    ranks: tuple[int, ...]


class Work:
    """An operation that somebody may still have to know of."""

    __slots__ = (
        "correlation", "dur", "end", "external", "launch", "launch_dur", "meeting", "pending",
        "ready", "routing", "size_bytes", "spec", "start", "stream", "thread", "waiters",
    )  # fmt: skip

    def __init__(self, spec: Any, stream: int, dur: int, launch: int, ready: int) -> None:
        self.spec = spec
        self.stream = stream
        self.dur = dur
        self.launch = launch
        self.launch_dur = 0
        self.ready = ready
        self.start = NEVER
        self.end = NEVER
        self.pending = 0
        self.waiters: list[Any] | None = None
        self.meeting: Meeting | None = None
        self.correlation = self.external = self.thread = 0
        self.size_bytes = 0
        self.routing: tuple[float, ...] = ()


class Meeting:
    """One collective or message: its members so far."""

    __slots__ = ("group", "latest", "lost_at", "members", "missing", "sequence", "sizes")

    def __init__(self, group: Group, sequence: int) -> None:
        self.group = group
        self.sequence = sequence
        self.missing = len(group.ranks)
        self.latest = 0
        self.members: list[tuple[int, Work]] = []
        """Who has come; empty again once it is complete, or members and meeting would hold each
        other and stay until a collector finds the cycle."""
        self.sizes: set[tuple[str, int]] = set()
        self.lost_at: int | None = None
        """The rank over whose NIC it timed out."""


class Table:
    """Numbers for things that rows speak of."""

    def __init__(self) -> None:
        self.things: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, thing: Any) -> int:
        """The number of a thing, from 0."""
        number = self._numbers.get(thing)
        if number is None:
            number = self._numbers[thing] = len(self.things)
            self.things.append(thing)
        return number


class Spool:
    """A temporary file for the rows of one step; it is gone with the last of its readers."""

    def __init__(self, folder: Path | None, ranks_count: int) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._end = 0
        # Two kinds of rows a rank.
        self.held_bytes = max(LEAST_HELD_BYTES, HELD_BYTES // (2 * ranks_count))

    def write(self, data: bytearray) -> tuple[int, int]:
        """Keeps the data; returns its place."""
        if self._file is None:
            # Beside the job's files: a folder for temporary files is often in memory.
            self._file = TemporaryFile(dir=self._folder)  # noqa: SIM115  # open as long as this
        self._file.seek(self._end)
        self._file.write(data)
        place = (self._end, len(data))
        self._end += len(data)
        return place

    def read(self, place: tuple[int, int]) -> bytes:
        """The data of a place."""
        assert self._file is not None  # noqa: S101  # there is no place before a write
        self._file.seek(place[0])
        return self._file.read(place[1])


class _Rows:
    """Rows of one rank and kind, in order."""

    def __init__(self, row: struct.Struct, spool: Spool) -> None:
        self._row = row
        self._pack = row.pack
        self._spool = spool
        self._parts: list[tuple[int, int]] = []
        self._tail = bytearray()
        self._held_bytes = spool.held_bytes

    def __len__(self) -> int:
        return (sum(size for _, size in self._parts) + len(self._tail)) // self._row.size

    def _spill(self) -> None:
        self._parts.append(self._spool.write(self._tail))
        self._tail = bytearray()

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for part in self._parts:
            yield from self._row.iter_unpack(self._spool.read(part))
        yield from self._row.iter_unpack(bytes(self._tail))


_HOST = struct.Struct("<IBBIqqIIIq")
"""Kind, thread, what more is, name, start, duration, external id, more, sequence, bytes."""
_NOTHING, _SPEC, _CALL = range(3)


class HostRecords(_Rows):
    """What the host of one rank did in a step."""

    def __init__(self, spool: Spool, table: Table) -> None:
        super().__init__(_HOST, spool)
        self._table = table

    def add(self, kind: str, name: Any, start: int, dur: int, thread: int, external: int,
            more: Any = None) -> None:  # fmt: skip
        """One record. ``more``: a spec, or (sequence, bytes, routing) of a communication."""
        number = self._table.number
        what = sequence = size = told = 0
        if isinstance(more, tuple):
            what = _CALL
            sequence, size, routing = more
            told = number(routing)
        elif more is not None:
            what = _SPEC
            told = number(more)
        self._tail += self._pack(
            number(kind), thread, what, number(name), start, dur, external, told, sequence, size
        )
        if len(self._tail) >= self._held_bytes:
            self._spill()

    def __iter__(self) -> Iterator[HostRecord]:
        things = self._table.things
        for kind, thread, what, name, start, dur, external, told, sequence, size in self._rows():
            more: Any = None
            if what == _SPEC:
                more = things[told]
            elif what == _CALL:
                more = (sequence, size, things[told])
            yield things[kind], things[name], start, dur, thread, external, more


_OPERATION = struct.Struct("<IHBqqqqIIiqIIqi")
"""Spec, stream, thread, launch and its duration, start, end, correlation, external id, group (-1:
no transfer), bytes, routing, sequence, latest, lost at (-1: nothing was lost)."""


class Operations(_Rows):
    """What one rank's streams did in a step, in the order of launches."""

    def __init__(self, spool: Spool, table: Table, groups: list[Group]) -> None:
        super().__init__(_OPERATION, spool)
        self._table = table
        self._groups = groups
        self.last_ns = NEVER
        """When the last of them ended."""

    def add(self, work: Work) -> None:
        """One operation, which is over or never will be."""
        number, meeting = self._table.number, work.meeting
        if meeting is None:
            group, sequence, latest, lost_at = -1, 0, 0, -1
        else:
            group, sequence, latest = meeting.group.number, meeting.sequence, meeting.latest
            lost_at = -1 if meeting.lost_at is None else meeting.lost_at
        self.last_ns = max(self.last_ns, work.end)
        self._tail += self._pack(
            number(work.spec), work.stream, work.thread, work.launch, work.launch_dur, work.start,
            work.end, work.correlation, work.external, group, work.size_bytes,
            number(work.routing), sequence, latest, lost_at,
        )  # fmt: skip
        if len(self._tail) >= self._held_bytes:
            self._spill()

    def __iter__(self) -> Iterator[Operation]:
        things, groups = self._table.things, self._groups
        for (
            spec, stream, thread, launch, launch_dur, start, end, correlation, external, group,
            size, routing, sequence, latest, lost_at,
        ) in self._rows():  # fmt: skip
            if group < 0:
                yield Operation(
                    things[spec], stream, thread, launch, launch_dur, start, end, correlation,
                    external,
                )  # fmt: skip
                continue
            members: Group = groups[group]
            lost = None if lost_at < 0 else lost_at
            yield Operation(
                things[spec], stream, thread, launch, launch_dur, start, end, correlation,
                external, size, things[routing], sequence,
                Transfer(members.channel, members.ranks, sequence, latest, lost),
            )  # fmt: skip

"""What NCCL attached to its NVTX ranges: communicator, size, peer; where blobs were exported.

Fields are found by the names of the schema's entries: NCCL's numbers for schemas and enumerations
have moved from release to release. Payloads lie around the call on the host; the kernel of a
grouped call is launched when the group ends, so it takes what the group's calls say together.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from tracekit.ingest.nsys.database import Tables
from tracekit.ingest.traces.names import collective_name

ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
_HEADER = struct.Struct("<QQQQ")
"""Domain, schema, size and offset of the payload that follows."""
_FORMATS = {
    1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "q", 8: "Q", 9: "q", 10: "Q", 11: "b",
    12: "B", 13: "h", 14: "H", 15: "i", 16: "I", 17: "q", 18: "Q", 19: "f", 20: "d", 22: "Q",
    23: "Q",
}  # fmt: skip
"""Entry types of NVTX's extended payloads -> struct codes (little endian)."""
_SIZED_BY_GROUP = {"all_gather", "reduce_scatter", "gather", "scatter"}
"""NCCL states one rank's part of these, as of an all-to-all that is one call."""
_GETS_WHAT_IS_STATED = {"all_reduce", "broadcast", "reduce_scatter", "scatter", "send", "recv"}
MAX_PAYLOAD_BYTES = 1 << 16


class Entry(NamedTuple):
    """A field of a payload."""

    name: str
    code: str
    offset: int


class Call(NamedTuple):
    """A call of NCCL's interface on one thread; None where its payload does not say."""

    start: int
    end: int
    name: str
    comm: str | None = None
    size_bytes: int | None = None
    peer: int | None = None
    root: int | None = None
    ranks_count: int | None = None
    rank: int | None = None
    place: int = -1
    thread: int = -1


class Said(Struct, frozen=True):
    """What payloads say of one kernel."""

    op: str | None = None
    comm: str | None = None
    in_bytes: int | None = None
    peer: int | None = None
    root: int | None = None
    received_bytes: int | None = None
    """Of an all-to-all, which states what it sends and what it receives."""


class Communicator(Struct):
    """A communicator as its creation stated it."""

    ranks_count: int
    rank: int


class Payloads(Struct):
    """Decodes payloads of one process and answers for launches."""

    schemas: dict[tuple[int, int], list[Entry]] = field(default_factory=dict)
    unreadable: int = 0
    communicators: dict[str, Communicator] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)
    """By communicator: when the last call that has a kernel was launched."""
    _calls: dict[int, list[Call]] = field(default_factory=lambda: defaultdict(list))
    _starts: dict[int, list[int]] = field(default_factory=dict)

    def load(self, database: Tables) -> None:
        """Learn the schemas. Their rows repeat once a process and carry no pid."""
        wanted = ("domainId", "schemaId", "name", "type", "offset")
        if not database.has(ENTRIES, *wanted):
            return
        by_range: dict[tuple[int, int], dict[str, Entry]] = defaultdict(dict)
        for domain, schema, name, kind, offset in database.rows(ENTRIES, wanted):
            # A type beyond the built-in ones is an enumeration, which is an int.
            code = _FORMATS.get(kind, "i" if isinstance(kind, int) and kind >= 1 << 24 else "")
            if isinstance(name, str) and code:
                at = offset if isinstance(offset, int) and offset >= 0 else 0
                by_range[domain, schema][name] = Entry(name, code, at)
        self.schemas = {key: list(entries.values()) for key, entries in by_range.items()}

    def decode(self, blob: object) -> Mapping[str, int | float]:
        """Fields of one payload by the names of its entries; nothing where it makes no sense."""
        if not isinstance(blob, bytes) or not _HEADER.size <= len(blob) <= MAX_PAYLOAD_BYTES:
            self.unreadable += 1
            return {}
        domain, schema, size, offset = _HEADER.unpack_from(blob)
        entries = self.schemas.get((domain, schema))
        if entries is None or offset + size > len(blob):
            self.unreadable += 1
            return {}
        body = blob[offset : offset + size]
        fields: dict[str, int | float] = {}
        for entry in entries:
            if entry.offset + struct.calcsize(entry.code) <= len(body):
                fields[entry.name] = struct.unpack_from(f"<{entry.code}", body, entry.offset)[0]
        return fields

    def add(
        self, thread: int, start: int, end: int, name: str, blob: object, place: int = -1
    ) -> None:
        """Remember a call. Calls of NCCL without a payload (groups) matter as well."""
        fields = self.decode(blob) if blob is not None else {}
        comm = _whole(fields, "NCCL communicator ID")
        call = Call(
            start,
            end,
            name,
            f"{comm & (2**64 - 1):016x}" if comm is not None else None,
            _whole(fields, "Message size [bytes]"),
            _whole(fields, "Peer rank"),
            _whole(fields, "Root"),
            _whole(fields, "No. of ranks"),
            _whole(fields, "Rank"),
            place,
            thread,
        )
        self._calls[thread].append(call)
        if call.comm and call.ranks_count and call.rank is not None and "Init" in name:
            self.communicators[call.comm] = Communicator(call.ranks_count, call.rank)

    def finish(self) -> None:
        """Sort."""
        for thread, calls in self._calls.items():
            calls.sort(key=lambda c: (c.start, -c.end))
            self._starts[thread] = [c.start for c in calls]

    @property
    def is_empty(self) -> bool:
        """Whether no payload named a communicator or a size."""
        calls = (c for listed in self._calls.values() for c in listed)
        return not any(c.comm or c.size_bytes is not None for c in calls)

    @property
    def names_communicators(self) -> bool:
        """Whether payloads tell which communicator an operation is of."""
        calls = (c for listed in self._calls.values() for c in listed)
        return any(c.comm and c.ranks_count is None for c in calls)

    def open_calls(self) -> list[Call]:
        """Operations that were asked for after the last one of their communicator that a kernel
        shows: a kernel that never ends is in no export. One without any kernel says nothing."""
        calls = [c for listed in self._calls.values() for c in listed]
        open_calls = [
            c
            for c in calls
            if c.comm in self.finished
            and c.start > self.finished[c.comm]
            and op_of(c.name) != "unknown"
            and c.ranks_count is None
        ]
        return sorted(open_calls, key=lambda c: (c.start, c.place))

    def of_launch(self, thread: int, moment: int) -> Said:
        """What is said of the kernel that a thread launched at a moment."""
        starts = self._starts.get(thread)
        if not starts:
            return Said()
        calls = self._calls[thread]
        at = bisect_right(starts, moment) - 1
        while at >= 0 and calls[at].end < moment:
            at -= 1
            if calls[at].name == "ncclGroupStart":
                break
        if at < 0 or calls[at].end < moment:
            return Said()
        if calls[at].name != "ncclGroupEnd":
            return self._together([calls[at]])
        inner: list[Call] = []
        depth = 1
        for i in range(at - 1, -1, -1):
            name = calls[i].name
            depth += (name == "ncclGroupEnd") - (name == "ncclGroupStart")
            if depth == 0:
                break
            if not name.startswith("ncclGroup") and calls[i].comm is not None:
                inner.append(calls[i])
        return self._together(inner)

    def _together(self, calls: list[Call]) -> Said:
        comms = {c.comm for c in calls if c.comm}
        if len(comms) > 1 or not calls:
            return Said()
        comm = comms.pop() if comms else None
        if len(calls) == 1:
            call = calls[0]
            said = op_of(call.name)
            if said == "all_to_all":
                known = self.communicators.get(comm or "")
                total = asked_bytes(said, call.size_bytes, known.ranks_count if known else None)
                return Said(said, comm, total, received_bytes=total)
            return Said(said, comm, call.size_bytes, call.peer, call.root)
        ops = {op_of(c.name) for c in calls}
        if ops == {"send", "recv"}:
            op: str | None = "all_to_all" if self._is_exchange(calls, comm) else "send_recv"
        else:
            op = ops.pop() if len(ops) == 1 else None
        is_pairs = op in ("send_recv", "all_to_all")
        total = _sum_bytes(c for c in calls if not is_pairs or op_of(c.name) == "send")
        received = None
        if op == "all_to_all":
            received = _sum_bytes(c for c in calls if op_of(c.name) == "recv")
        peers = {c.peer for c in calls}
        peer = peers.pop() if len(peers) == 1 else None
        return Said(op, comm, total, peer, received_bytes=received)

    def _is_exchange(self, calls: list[Call], comm: str | None) -> bool:
        """Whether a group of sends and receives reaches every member: an all-to-all."""
        known = self.communicators.get(comm or "")
        if known is None or known.ranks_count > len(calls):
            return False  # one call a member at least, and its number is but a claim
        everybody = set(range(known.ranks_count))
        sent = {c.peer for c in calls if op_of(c.name) == "send"}
        received = {c.peer for c in calls if op_of(c.name) == "recv"}
        others = everybody - {known.rank}
        return len(others) > 1 and others <= sent <= everybody and others <= received <= everybody

    def world(self) -> Communicator | None:
        """The largest communicator that this process created; None where two differ in rank."""
        most = max((c.ranks_count for c in self.communicators.values()), default=0)
        ranks = {c.rank for c in self.communicators.values() if c.ranks_count == most}
        return Communicator(most, ranks.pop()) if len(ranks) == 1 and most > 1 else None


def unfinished(
    calls: Iterable[Call], launched: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
) -> list[Call]:
    """Operations that end after the last launch of a kernel of communication, and hold none.

    What can be said where no payload names communicators: of these no kernel is there. Before that
    moment a call without a kernel may be of a communicator that stands still, or a lost record.
    ``launched``: threads and starts of the launches, in parts.
    """
    threads = np.concatenate([t for t, _ in launched])
    starts = np.concatenate([s for _, s in launched])
    last = int(starts.max())
    of_thread = {int(t): np.sort(starts[threads == t]) for t in np.unique(threads)}
    open_calls = []
    for call in calls:
        if call.end < last or op_of(call.name) == "unknown":
            continue
        of_its_thread = of_thread.get(call.thread, starts[:0])
        at = int(np.searchsorted(of_its_thread, call.start, side="left"))
        if at == len(of_its_thread) or of_its_thread[at] > call.end:
            open_calls.append(call)
    return sorted(open_calls, key=lambda c: (c.start, c.place))


def _sum_bytes(calls: Iterable[Call]) -> int | None:
    """Of all calls; None where one does not say it."""
    sizes = [c.size_bytes for c in calls]
    return sum(s for s in sizes if s is not None) if sizes and None not in sizes else None


def out_bytes(op: str, said: Said, ranks_count: int | None) -> int | None:
    """What one rank gets; None where NCCL does not tell it."""
    if op == "all_to_all":
        return said.received_bytes
    if op == "all_gather":
        return message_bytes(op, said.in_bytes, ranks_count)
    return said.in_bytes if op in _GETS_WHAT_IS_STATED else None


def message_bytes(op: str, in_bytes: int | None, ranks_count: int | None) -> int | None:
    """Total size as nccl-tests defines it, of what payloads say of a kernel."""
    if op not in _SIZED_BY_GROUP or in_bytes is None:
        return in_bytes
    return in_bytes * ranks_count if ranks_count else None


def asked_bytes(op: str, size_bytes: int | None, ranks_count: int | None) -> int | None:
    """The same of one call, as it was asked for."""
    if op != "all_to_all" or size_bytes is None:
        return message_bytes(op, size_bytes, ranks_count)
    return size_bytes * ranks_count if ranks_count else None


def group_id(comm: str) -> str:
    """The id of a group that is known by its communicator's hash only."""
    return f"nccl-{comm}"


_INTERFACE = re.compile(
    r"nccl(?:AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|Gather|Scatter|Send|Recv"
    r"|All[Tt]oAllv?|Group\w+|Comm\w+)"
)


def is_call(name: str | None) -> bool:
    """Whether a range is a call of NCCL's interface that asks for work or makes a communicator.

    A listed name, not a prefix: patched builds mark what goes on inside too, such as the network's
    ``ncclNetIrecv()``, which nobody asked for and no kernel will ever show.
    """
    return name is not None and _INTERFACE.fullmatch(name) is not None


def op_of(name: str) -> str:
    """The operation that a call of NCCL's interface asks for."""
    return collective_name(name.removeprefix("nccl"))


def _whole(fields: Mapping[str, int | float], *names: str) -> int | None:
    values: Iterable[int | float | None] = (fields.get(n) for n in names)
    return next((int(v) for v in values if isinstance(v, int)), None)

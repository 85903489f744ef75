"""NCCL's RAS client: its text, its JSON, and its monitor's lines."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, field

from tracekit.ingest.base import IngestOptions, Sink, SourceFile
from tracekit.ingest.nccl import lines
from tracekit.ingest.nccl.flight import loads
from tracekit.ingest.nccl.flight import whole as as_whole
from tracekit.ingest.nccl.lines import LINE_BYTES
from tracekit.ingest.nccl.log import OPS
from tracekit.ingest.nccl.rows import Rows, as_int

MAX_JSON_BYTES = 64 << 20
"""A record of 100,000 ranks takes 30 MB."""

SNAPSHOT = (
    "place", "time_ns", "comm_hash", "group_rank", "op", "last_enqueued", "peers_enqueued",
    "status", "node",
)  # fmt: skip
EVENT = ("place", "time_ns", "node", "code", "severity", "fields")
_COMM = re.compile(rb"#(\d+)-(\d+) \(([0-9a-fA-F]{4,20})\) (MISMATCH|INCOMPLETE|ABORT|\w{2,20})")
_UP_TO = re.compile(rb"\s*(\d+) ranks? ha(?:ve|s) launched up to operation (\d+)")
_OPERATIONS = re.compile(rb"\s*Communicator ranks have different \w{0,30} ?operation counts")
_STATUS = re.compile(rb"\s*(\d+) ranks? ha(?:ve|s) status (\w{2,20})")
_RANK = re.compile(
    rb"\s*Rank (\d+) -- GPU ([\d,]+) managed by process (\d+) on node "
    rb"([\w.:-]{2,60})"
)
_GONE = re.compile(rb"\s*Process (\d+) on node ([\w.:-]{2,60}) managing GPUs? ([\d,]+)")
_MISSING = re.compile(rb"\s*The missing ranks?: ([\d, -]{1,400})")
_MONITOR = re.compile(
    rb"\s*\[[^\]]{10,40}\] (PEER_\w{2,30}|\w{3,30}): Process (\d+) on node ([\w.:-]{2,60}) "
    rb"managing GPUs? ([\d,]+)"
)
MAX_UNLISTED_RANKS = 1 << 17
"""Ranks of a communicator that are told by not being listed: beyond it none is."""
_WORD = re.compile(r"[\w.:+-]{1,60}")
_STATES = {0: "INIT", 1: "RUNNING", 2: "FINALIZE", 3: "ABORT"}


def read(source: SourceFile, sink: Sink, options: IngestOptions) -> None:
    """Read one output into the sink."""
    _Reader(source, sink).run()


class _Count(Struct):
    """So many ranks have launched so much, and those of them that are listed."""

    place: int
    ranks: int
    operation: int | None
    listed: set[int] = field(default_factory=set)


class _Reader:
    def __init__(self, source: SourceFile, sink: Sink) -> None:
        self.source = source
        self.sink = sink
        self.rows = Rows(sink, "comm_snapshot", SNAPSHOT)
        self.events = Rows(sink, "nccl_event", EVENT)
        self.hash: str | None = None
        self.status: str | None = None
        self.operation: int | None = None
        self.most: int | None = None
        """The highest operation that the block of this communicator has named so far."""
        self.counted: list[_Count] = []
        """How many ranks launched how much, of the operation that is told of at hand."""
        self.time_ns: int | None = None
        """Local time of the record at hand: RAS states no zone."""
        self.has_times = False
        self.is_dead = False
        self.versions: set[str] = set()
        self.broken = 0

    def run(self) -> None:
        place, begun, held_bytes = 0, 0, 0
        held: list[bytes] = []
        with self.source.open() as stream:
            for batch in lines.read_lines(stream):
                for line in batch:
                    place += 1
                    if held or line.startswith(b"{"):
                        begun = begun if held else place
                        held.append(line)
                        held_bytes += len(line) + LINE_BYTES
                        if line.startswith(b"}") or (line[:1] == b"{" and line.endswith(b"}")):
                            self._json(b"\n".join(held), begun)
                            held, held_bytes = [], 0
                        elif held_bytes > MAX_JSON_BYTES:
                            self.broken += 1
                            held, held_bytes = [], 0
                    else:
                        self._line(line, place)
        self._unlisted()
        if held:
            self._json(b"\n".join(held), begun)
        self.rows.flush()
        self.events.flush()
        self.sink.count("broken_record", self.broken, doc="JSON that breaks off.")
        self.sink.fact(
            producer="NCCL RAS",
            place_kind="line",
            # Local times of one zone that nobody states: only their differences mean anything.
            time_basis="relative" if self.has_times else "none",
            versions=sorted(self.versions) or None,
        )
        if not self.rows.count and not self.events.count:
            self.sink.fact(reason="output of NCCL's RAS client: all communicators well")

    # --- text ----------------------------------------------------------------------------------

    def _line(self, line: bytes, place: int) -> None:
        if comm := _COMM.match(line):
            self._unlisted()
            self.hash = "0x" + comm[3].decode().lower()
            self.status, self.operation, self.is_dead = comm[4].decode(), None, False
            self.most = None
            self._event(place, f"ras_{self.status.lower()}", [f"comm_hash={self.hash}"])
        elif _OPERATIONS.match(line):
            self._unlisted()
            self.most = None
        elif up_to := _UP_TO.match(line):
            self.operation = as_int(up_to[2])
            self.counted.append(_Count(place, as_int(up_to[1]) or 0, self.operation))
            self.most = max(self.most or 0, self.operation or 0)
            self.status = "MISMATCH"
            self._event(
                place, "ras_operations",
                [f"comm_hash={self.hash}", f"ranks={up_to[1].decode()}",
                 f"operation={self.operation}"],
            )  # fmt: skip
        elif status := _STATUS.match(line):
            self.status, self.operation = status[2].decode(), None
        elif rank_line := _RANK.match(line):
            if self.counted and (rank := as_int(rank_line[1])) is not None:
                self.counted[-1].listed.add(rank)
            self.rows.add(
                (place, None, self.hash, as_int(rank_line[1]), None, self.operation, self.most,
                 self.status, rank_line[4].decode())
            )  # fmt: skip
        elif monitor := _MONITOR.match(line):
            self._event(
                place, f"ras_{monitor[1].decode().lower()}",
                [f"pid={monitor[2].decode()}", f"gpu={monitor[4].decode()}"], monitor[3].decode(),
            )  # fmt: skip
        elif gone := _GONE.match(line):
            self._event(
                place, "ras_dead" if self.is_dead else "ras_missing_process",
                [f"pid={gone[1].decode()}", f"gpu={gone[3].decode()}"], gone[2].decode(),
            )  # fmt: skip
        elif missing := _MISSING.match(line):
            for rank in re.findall(rb"\d+", missing[1]):
                self.rows.add(
                    (place, None, self.hash, as_int(rank), None, None, None, "MISSING", None)
                )
        elif line.strip() in (b"DEAD", b"TIMEOUT", b"INCOMPLETE"):
            self._unlisted()
            self.is_dead = line.strip() == b"DEAD"
            self.hash = None

    def _unlisted(self) -> None:
        """The ranks of the one count whose ranks RAS leaves out, being most: all others."""
        counts, self.counted = self.counted, []
        size = sum(c.ranks for c in counts)
        silent = [c for c in counts if not c.listed]
        listed = set().union(*(c.listed for c in counts))
        if len(silent) != 1 or not listed or size > MAX_UNLISTED_RANKS:
            return
        others = set(range(size)) - listed
        if len(others) == silent[0].ranks:
            most = max(c.operation or 0 for c in counts)
            for rank in sorted(others):
                self.rows.add(
                    (silent[0].place, None, self.hash, rank, None, silent[0].operation, most,
                     "MISMATCH", None)
                )  # fmt: skip

    def _event(self, place: int, code: str, fields: list[str], node: str | None = None) -> None:
        severity = "error" if "dead" in code or "incomplete" in code else "warning"
        self.events.add((place, self.time_ns, node, code, severity, fields))

    # --- JSON ----------------------------------------------------------------------------------

    def _json(self, text: bytes, place: int) -> None:
        self._unlisted()
        try:
            record = loads(text)
        except (ValueError, RecursionError):
            self.broken += 1
            return
        if not isinstance(record, dict):
            return
        self.time_ns = _time_ns(record.get("timestamp"))
        self.has_times |= self.time_ns is not None
        stated = record.get("nccl_version")
        if isinstance(stated, str) and _WORD.fullmatch(stated):
            self.versions.add(f"nccl={stated}")
        peer = record.get("peer")
        if isinstance(peer, dict) and isinstance(record.get("event"), str):
            code = str(record["event"]).lower()
            if _WORD.fullmatch(code):
                self._event(place, f"ras_{code}", [f"pid={as_whole(peer.get('pid'))}"],
                            _word(peer.get("host")))  # fmt: skip
        for comm in record.get("communicators") or ():
            if isinstance(comm, dict):
                self._comm(place, comm)

    def _comm(self, place: int, comm: dict[str, Any]) -> None:
        name = _word(comm.get("hash"))
        ranks = [r for r in comm.get("ranks") or () if isinstance(r, dict)]
        most: dict[str, int] = {}
        for rank in ranks:
            for kind, count in _counts(rank).items():
                most[kind] = max(most.get(kind, 0), count)
        for rank in ranks:
            self._rank(place, name, rank, most)
        for rank in comm.get("missing_ranks") or ():
            if isinstance(rank, dict):
                status = rank.get("status")
                is_dead = isinstance(status, dict) and bool(status.get("considered_dead"))
                if is_dead:
                    gpu = as_whole(rank.get("nvml_dev"))
                    pid = as_whole(rank.get("pid"))
                    self._event(place, "ras_dead", [f"pid={pid}", f"gpu={gpu}"],
                                _word(rank.get("host")))  # fmt: skip
                self.rows.add(
                    (place, self.time_ns, name, as_int(str(rank.get("rank"))), None, None, None,
                     "DEAD" if is_dead else "MISSING", _word(rank.get("host")))
                )  # fmt: skip

    def _rank(
        self, place: int, name: str | None, rank: dict[str, Any], most: dict[str, int]
    ) -> None:
        status = rank.get("status")
        state = status.get("init_state") if isinstance(status, dict) else None
        if isinstance(status, dict) and status.get("abort_flag"):
            state = 3
        for kind, count in _counts(rank).items():
            self.rows.add(
                (place, self.time_ns, name, as_int(str(rank.get("rank"))), kind, count,
                 most[kind], _STATES.get(state) if isinstance(state, int) else None,
                 _word(rank.get("host")))
            )  # fmt: skip


def _counts(rank: dict[str, Any]) -> dict[str, int]:
    """Calls of a rank by operation, as far as they are known and numbers."""
    stated = rank.get("collective_counts")
    counts = {}
    for op, value in stated.items() if isinstance(stated, dict) else ():
        kind, count = OPS.get(str(op).encode()), as_whole(value)
        if kind and count is not None:
            counts[kind] = count
    return counts


def _time_ns(value: object) -> int | None:
    """A local time without a zone as ns since 1970 there; None for anything else."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return int(moment.replace(tzinfo=UTC).timestamp()) * 10**9


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and _WORD.fullmatch(value) else None

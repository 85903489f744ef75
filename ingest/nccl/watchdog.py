"""PyTorch's NCCL watchdog: timeouts, and how far each rank had come when it spoke."""

from __future__ import annotations

import re
from collections.abc import Callable

from tracekit.ingest.base import Sink
from tracekit.ingest.nccl.rows import Rows, as_int, is_held

WORDS = (
    b"atchdog", b"WorkNCCL(", b"last enqueued", b"at NCCL work", b"eartbeat monitor",
    b"ProcessGroupNCCL",
)  # fmt: skip
_TOLD = b"due to a collective timeout"
"""A rank that writes what it has, since its own or another's watchdog timed out: in which call is
not said."""
KEY = re.compile(b"|".join(map(re.escape, WORDS)))
_GLOBAL = re.compile(rb"\[rank(\d{1,7})\]")
_GROUP = re.compile(
    rb"\[(?:PG ID (?P<id>\S{1,20}) )?"
    rb"(?:PG GUID (?P<guid>[\w-]{1,40})(?:\((?P<name>[\w .:-]{1,60})\))? )?"
    rb"(?:PG (?P<pg>\w{1,40}) (?:\((?P<desc>[\w .:-]{1,60})\) )?)?Rank (?P<rank>\d{1,7})\]"
)
_WORK = re.compile(rb"Work[NHX]CCL\((?P<body>[^()]{0,400}(?:\(ms\)[^()]{0,100})?)\)")
_WORD = re.compile(rb"\b(SeqNum|OpType|NumelIn|NumelOut|Timeout\(ms\))=([\w-]{1,40})")
_RAN = re.compile(rb"ran for (\d{1,12}) milliseconds")
_PROGRESS = re.compile(rb"[Ll]ast (enqueued|started|completed)(?: NCCL)? work: (-?\d{1,20})")
_DETECTED = re.compile(
    rb"(?:detected by watchdog at work(?: sequence id)?|(?P<late>Timeout at NCCL work))\s?: "
    rb"(?P<work>-?\d{1,20})"
)
_STUCK = re.compile(rb"[Hh]eartbeat monitor timed out|atchdog got stuck for (\d{1,9}) ?seconds")
"""The watchdog itself stands still: a call of CUDA or NCCL that does not come back, or a thread
that keeps the interpreter from it. Which collective was under way is not said."""

SNAPSHOT = (
    "place", "group_name", "group_rank", "op", "last_enqueued", "last_started", "last_completed",
    "status", "world_rank",
)  # fmt: skip
OPS = {
    "ALLREDUCE": "all_reduce", "_ALLGATHER_BASE": "all_gather", "ALLGATHER": "all_gather",
    "ALLGATHER_COALESCED": "all_gather", "_REDUCE_SCATTER_BASE": "reduce_scatter",
    "REDUCE_SCATTER": "reduce_scatter", "BROADCAST": "broadcast", "BARRIER": "barrier",
    "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all", "REDUCE": "reduce", "SEND": "send",
    "RECV": "recv", "GATHER": "gather", "SCATTER": "scatter", "COALESCED": "coalesced",
    "UNKNOWN": "unknown",
}  # fmt: skip

Event = Callable[[int, str, str, list[str]], None]


class WatchdogReader:
    """Takes the watchdog's lines out of a job's output."""

    def __init__(self, sink: Sink, event: Event) -> None:
        self.event = event
        self.rows = Rows(sink, "comm_snapshot", SNAPSHOT)
        self.log_rows = Rows(sink, "log_event", ("place", "code", "severity", "fields"))
        self.sink = sink
        self.count = 0
        self.junk_count = 0

    def take(self, line: bytes, place: int) -> bool:
        """A line that may be the watchdog's; False if it is not."""
        work = _WORK.search(line)
        progress = {m[1].decode(): as_int(m[2]) for m in _PROGRESS.finditer(line)}
        detected = _DETECTED.search(line)
        stuck = _STUCK.search(line) if work is None and not progress else None
        if work is None and not progress and detected is None and stuck is None:
            return False
        self.count += 1
        who = _GROUP.search(line)
        stated = _GLOBAL.search(line)
        world = as_int(stated[1]) if stated else None
        name = next((who[g] for g in ("name", "guid", "pg", "id") if who[g]), None) if who else None
        if who and who["name"] and who["guid"]:
            # Many groups share a description; the identifier before it is theirs alone.
            name = who["guid"] + b"(" + who["name"] + b")"
        if who and who["desc"]:
            name = who["pg"] + b"(" + who["desc"] + b")"
        group = name.decode("ascii", "replace") if name else None
        rank = as_int(who["rank"]) if who else None
        fields = [f"group={group}"] if group else []
        fields += [f"rank={rank}"] if is_held(rank) else []
        fields += [f"world_rank={world}"] if is_held(world) else []
        if work is not None:
            self._timeout(line, work["body"], fields, (place, group, rank, world))
        if progress or detected is not None:
            self._progress(progress, detected, fields, (place, group, rank, world))
        if work is None and _TOLD in line:
            self.log_rows.add((place, "watchdog-told", "error", fields))
        if stuck is not None:
            told = [*fields, f"stood_s={stuck[1].decode()}"] if stuck[1] else fields
            self.log_rows.add((place, "watchdog-stuck", "error", told))
        return True

    def _timeout(
        self,
        line: bytes,
        body: bytes,
        fields: list[str],
        who: tuple[int, str | None, int | None, int | None],
    ) -> None:
        given = {k.decode().removesuffix("(ms)"): v.decode() for k, v in _WORD.findall(body)}
        ran = _RAN.search(line)
        sequence = as_int(given.get("SeqNum"))
        kind = given.get("OpType", "")
        op = OPS.get(kind)
        is_timeout = ran is not None or b"imeout" in line.replace(b"Timeout(ms)", b"")
        code = "watchdog-timeout" if is_timeout else "watchdog-error"
        told = [*fields]
        told += [f"sequence={sequence}"] if is_held(sequence) else []
        told += [f"op={op}"] if op else []
        for name, key in (
            ("numel_in", "NumelIn"),
            ("numel_out", "NumelOut"),
            ("timeout_ms", "Timeout"),
        ):
            if is_held(as_int(given.get(key))):
                told.append(f"{name}={given[key]}")
        told += [f"ran_ms={ran[1].decode()}"] if ran else []
        self.log_rows.add((who[0], code, "error", told))

    def _progress(
        self,
        progress: dict[str, int | None],
        detected: re.Match[bytes] | None,
        fields: list[str],
        who: tuple[int, str | None, int | None, int | None],
    ) -> None:
        place, group, rank, world = who
        enqueued = progress.get("enqueued")
        started, completed = progress.get("started"), progress.get("completed")
        # Uninitialised memory in real logs: nothing is done before it was asked for.
        if completed is not None and (enqueued is None or completed > enqueued):
            completed = None
            self.junk_count += 1
        if started is not None and (enqueued is None or started > enqueued):
            started = None
            self.junk_count += 1
        at = as_int(detected["work"]) if detected else None
        if is_held(at):
            fields = [*fields, f"sequence={at}"]
            # Of the exception's own words an error looks the same.
            fields += ["is_timed_out=true"] if detected and detected["late"] else []
        self.rows.add((place, group, rank, None, enqueued, started, completed, "watchdog", world))
        for key, value in (
            ("last_enqueued", enqueued),
            ("last_started", started),
            ("last_completed", completed),
        ):
            fields = [*fields, f"{key}={value}"] if is_held(value) else fields
        self.log_rows.add((place, "watchdog-progress", "error", fields))

    def finish(self) -> None:
        """Write what is held."""
        self.rows.flush()
        self.log_rows.flush()
        self.sink.count(
            "watchdog_line", self.count, severity="info", doc="Lines of PyTorch's NCCL watchdog."
        )
        self.sink.count(
            "junk_progress",
            self.junk_count,
            doc="Progress numbers of the watchdog beyond what was enqueued: uninitialised memory.",
        )

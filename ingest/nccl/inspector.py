"""NCCL Inspector: one JSON object an operation, or its Prometheus form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tracekit.ingest import streams
from tracekit.ingest.base import IngestOptions, Sink, SourceFile
from tracekit.ingest.nccl import lines
from tracekit.ingest.nccl.flight import loads
from tracekit.ingest.nccl.flight import whole as as_whole
from tracekit.ingest.nccl.log import OPS
from tracekit.ingest.nccl.rows import Rows, as_int

MAX_OBJECT_BYTES = 4 << 20
SIZE_TOLERANCE = 0.1
"""Execution times are whole microseconds: of the 8 KiB that are the least recorded, a tenth."""

CALL = (
    "place", "group_name", "comm_hash", "group_rank", "sequence", "p2p_sequence", "op", "state",
    "started_ns", "completed_ns", "message_bytes", "bus_bytes_per_s", "group_size", "dur_ns",
    "node",
)  # fmt: skip
_METRIC = re.compile(rb"(nccl_\w{3,60})\{([^}]{0,1000})\} ([-+\d.eE]{1,40})(?: (\d{10,13}))?\s*$")
_LABEL = re.compile(r'(\w{1,40})="([^"]{0,120})"')
_NAME = re.compile(r"[\w .:+-]{1,80}")


def read(source: SourceFile, sink: Sink, options: IngestOptions) -> None:
    """Stream one file into the sink."""
    _Reader(source, sink).run()


class _Reader:
    def __init__(self, source: SourceFile, sink: Sink) -> None:
        self.source = source
        self.sink = sink
        self.calls = Rows(sink, "comm_call", CALL)
        self.times: list[int] = []
        self.versions: set[str] = set()
        self.broken = 0
        self.broken_place: int | None = None
        self.metrics = 0

    def run(self) -> None:
        with self.source.open() as stream:
            for place, record in self._records(stream):
                self._record(place, record)
            problem = streams.stream_problem(stream)
        self.calls.flush()
        self.sink.count(
            "broken_record",
            self.broken,
            doc="Records that are no whole JSON.",
            place=self.broken_place,
        )
        self.sink.fact(
            producer="NCCL Inspector",
            schema_version=sorted(self.versions)[0] if self.versions else None,
            place_kind="line",
            time_basis="epoch" if self.times else "none",
            window_start_ns=min(self.times, default=None),
            window_end_ns=max(self.times, default=None),
            is_truncated_end=problem is not None,
        )
        if problem is not None:
            self.sink.fact(status="partial", reason=f"it ends early ({problem})")
        elif not self.calls.count:
            self.sink.fact(status="empty", reason="no record of NCCL Inspector")

    def _records(self, stream: object) -> Iterator[tuple[int, dict[str, Any]]]:
        """Objects with the lines that they begin on: one a line, or spread over several."""
        place, begun, held_bytes = 0, 0, 0
        held: list[bytes] = []
        for batch in lines.read_lines(stream):
            for raw in batch:
                place += 1
                line = lines.without_launcher(raw).rstrip()
                if line.startswith(b"nccl_"):
                    self._metric(line, place)
                    continue
                if not held and not line.startswith(b"{"):
                    continue
                if held and line.startswith(b"{"):  # what began before it was cut off
                    self._break(begun)
                    held, held_bytes = [], 0
                if not held:
                    begun = place
                held.append(line)
                held_bytes += len(line) + lines.LINE_BYTES
                # An object over several lines ends with a brace in the first column.
                if (line.startswith(b"{") and line.endswith(b"}")) or raw.rstrip() == b"}":
                    yield from self._parsed(b"\n".join(held), begun)
                    held, held_bytes = [], 0
                elif held_bytes > MAX_OBJECT_BYTES:
                    self._break(begun)
                    held, held_bytes = [], 0
        if held:
            yield from self._parsed(b"\n".join(held), begun)

    def _parsed(self, text: bytes, place: int) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            record = loads(text)
        except (ValueError, RecursionError):
            self._break(place)
            return
        if isinstance(record, dict):
            yield place, record

    def _break(self, place: int) -> None:
        self.broken += 1
        self.broken_place = self.broken_place or place

    def _record(self, place: int, record: dict[str, Any]) -> None:
        head, about = _dict(record.get("header")), _dict(record.get("metadata"))
        stated = about.get("inspector_output_format_version")
        if isinstance(stated, str) and len(stated) < 20:
            self.versions.add(stated)
        dumped = as_whole(about.get("dump_timestamp_us"))
        if dumped is not None and 0 < dumped < 9 * 10**15:
            self.times = [min([*self.times, dumped * 1000]), max([*self.times, dumped * 1000])]
        for kind in ("coll", "p2p"):
            perf = record.get(f"{kind}_perf")
            if isinstance(perf, dict):
                self._call(place, kind, perf, head, about)

    def _call(
        self,
        place: int,
        kind: str,
        perf: dict[str, Any],
        head: dict[str, Any],
        about: dict[str, Any],
    ) -> None:
        name = str(perf.get(kind, ""))
        sequence = as_whole(perf.get(f"{kind}_sn"))
        duration = _number(perf.get(f"{kind}_exec_time_us"))
        bus = _number(perf.get(f"{kind}_busbw_gbs"))
        size = as_whole(perf.get(f"{kind}_msg_size_bytes"))
        if kind == "coll":
            size = _total(size, as_whole(head.get("n_ranks")),
                          _number(perf.get("coll_algobw_gbs")), duration)  # fmt: skip
        start, end = _kernel_span(_dict(perf.get("event_trace_ts")))
        self.calls.add(
            (
                place,
                _name(head.get("comm_name")),
                _name(head.get("id")),
                as_int(str(head.get("rank", ""))),
                sequence if kind == "coll" else None,
                sequence if kind == "p2p" else None,
                OPS.get(name.encode()) or _name(name),
                "completed",
                start,
                end,
                size,
                bus * 1e9 if bus is not None else None,
                as_int(str(head.get("n_ranks", ""))),
                round(duration * 1000) if duration is not None and duration < 1e12 else None,
                _name(about.get("hostname")),
            )
        )

    def _metric(self, line: bytes, place: int) -> None:
        """A Prometheus sample: a mean over sizes of a bucket, so a call without a sequence."""
        sample = _METRIC.match(line)
        if sample is None:
            self._break(place)
            return
        labels = dict(_LABEL.findall(sample[2].decode("utf-8", "replace")))
        value = _number(sample[3].decode())
        name = sample[1].decode()
        if value is None:
            return
        if "version" in labels and len(labels["version"]) < 20:
            self.versions.add(labels["version"])
        op = labels.get("collective") or labels.get("p2p_operation") or ""
        is_bus = name.endswith("bus_bandwidth_gbs")
        is_time = name.endswith("exec_time_microseconds")
        if not is_bus and not is_time:
            return
        self.metrics += 1
        self.calls.add(
            (
                place, _name(labels.get("comm_name")), None, None, None, None,
                OPS.get(op.encode()) or _name(op), "completed", None, None, None,
                value * 1e9 if is_bus else None,
                as_int(labels.get("nranks")),
                round(value * 1000) if is_time else None,
                _name(labels.get("node")),
            )
        )  # fmt: skip


def _total(
    size: int | None, ranks: int | None, algbw: float | None, dur_us: float | None
) -> int | None:
    """The total size S that algbw was taken of: the stated size, or that of each of the ranks.

    Inspector states what one rank gives or gets; of an all-gather or a reduce-scatter S is that
    times the ranks, and S / t is the algbw beside it. None where neither fits.
    """
    if size is None or not algbw or not dur_us:
        return size
    bytes_moved = algbw * 1e3 * dur_us
    for total in (size, size * (ranks or 1)):
        if abs(total - bytes_moved) <= SIZE_TOLERANCE * bytes_moved:
            return total if total < 2**63 else None
    return None


def _kernel_span(trace: dict[str, Any]) -> tuple[int | None, int | None]:
    """First start and last stop of the kernels, in ns."""
    starts, ends = [], []
    for event in trace.get("kernel_events") or ():
        if isinstance(event, dict):
            start, end = (as_whole(event.get(f"kernel_{w}_ts")) for w in ("start", "stop"))
            starts += [start * 1000] if start and start < 9 * 10**15 else []
            ends += [end * 1000] if end and end < 9 * 10**15 else []
    return min(starts, default=None), max(ends, default=None)


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if abs(number) < 1e18 else None


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and _NAME.fullmatch(value) else None

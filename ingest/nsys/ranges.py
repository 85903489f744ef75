"""NVTX ranges and marks: kept back until it is known what each launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.ingest.nsys import meta as m
from tracekit.ingest.nsys import steps, sweep
from tracekit.ingest.nsys.batch import Batch
from tracekit.ingest.traces import names
from tracekit.ingest.traces.columns import ints, shown_names, texts
from tracekit.ingest.traces.spill import Spill

if TYPE_CHECKING:
    from tracekit.ingest.nsys.reader import Reader

Int64s = npt.NDArray[np.int64]

MARK, PUSH_POP, START_END = 34, 59, 60
_STYLES = {
    MARK: "mark",
    PUSH_POP: "push_pop",
    START_END: "start_end",
    70: "push_pop",
    71: "start_end",
}
DOMAIN_CREATE = 75
_TYPES = f"eventType IN ({', '.join(str(t) for t in (*_STYLES, DOMAIN_CREATE))})"
_WANTED = (
    "start", "end", "eventType", "text", "textId", "globalTid", "endGlobalTid", "domainId",
)  # fmt: skip
_SPECIAL = (
    r"ProfilerStep|^(?:nccl|gloo|rccl|hccl|xccl|ucc|mpi):|DataLoader|dataloader|GC|gc|collect"
    r"|(?i:checkpoint|ckpt|save)"
)
"""Coarse: Arrow looks for this in millions of names, Python at those in which it is found."""
_CREDENTIAL_LIKE = (
    r"(?i)token|secret|passw|passphrase|key|credential|authorization|bearer|://"
    r"|hf_|gh._|glpat|AKIA|sk-|xox|eyJ"
)
_UNCLOSED = "Ranges that were open when the capture ended, read as ending with its last range."


class HostRanges:
    """Reads NVTX_EVENTS."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._kept = Spill()
        self._parts: list[tuple[Int64s, Int64s, Int64s, npt.NDArray[np.bool_]]] = []
        self._domains: dict[int, str] = {}
        self._steps: dict[int, int] = {}
        self._count = 0

    def close(self) -> None:
        """Drop the temporary file."""
        self._kept.close()

    def read(self) -> None:
        """Keep the ranges; find the steps among them."""
        reader = self.reader
        if not reader.database.has(m.NVTX, "start", "end", "eventType"):
            return
        markers: list[steps.Marker] = []
        latest: int | None = None
        is_asked = False
        for batch in reader.batches(m.NVTX, _WANTED, _TYPES):
            if not is_asked and batch.has_null("end"):
                is_asked = True
                latest = reader.database.largest(m.NVTX, "start", "end")
            self._keep(batch, latest, markers)
        self._steps = steps.choose(markers)
        for marker in markers:
            if marker.row in self._steps:
                reader.steps.add(marker.start, marker.end, self._steps[marker.row])

    def _keep(self, batch: Batch, latest: int | None, markers: list[steps.Marker]) -> None:
        reader = self.reader
        kinds = np.asarray(batch.ints("eventType").fill_null(-1))
        tids = batch.ints("globalTid")
        text = self._texts(batch)
        self._learn_domains(kinds, batch, text)
        ends = batch.ints("end")
        is_mark = kinds == MARK
        unclosed = np.asarray(ends.is_null()) & ~is_mark & (kinds != DOMAIN_CREATE)
        if unclosed.any():
            reader.sink.count("unclosed_range", int(unclosed.sum()), severity="info", doc=_UNCLOSED)
        ends = pc.if_else(pa.array(is_mark), batch.ints("start"), ends)
        wanted = pa.array(kinds != DOMAIN_CREATE)
        closed = Batch(batch.rowids, {**batch.columns, "end": ends})
        place, start, dur, good = reader.timed(m.NVTX, closed, latest)
        good = good & np.asarray(wanted)
        end_tids = batch.ints("endGlobalTid")
        rows = pa.table(
            {
                "place": place,
                "start_ns": pa.array(start),
                "dur_ns": pa.array(dur),
                "kind": pa.array(kinds.astype(np.int16)),
                "name": text,
                "pid": pc.bit_wise_and(pc.shift_right(tids, 24), 0xFFFFFF),
                "thread": pc.bit_wise_and(tids, 0xFFFFFF),
                "end_thread": pc.bit_wise_and(end_tids, 0xFFFFFF),
                "domain_id": batch.ints("domainId").fill_null(0),
            }
        ).filter(pa.array(good))
        if not rows.num_rows:
            return
        self._kept.add(rows)
        begin, length = start[good], dur[good]
        threads = np.asarray(rows["thread"].combine_chunks().fill_null(-1))
        is_range = ~is_mark[good] & np.asarray(end_tids.is_null())[good]
        self._parts.append((begin, begin + length, threads, is_range))
        self._find_markers(rows, begin, length, threads, is_range, markers)
        self._count += rows.num_rows

    def _texts(self, batch: Batch) -> pa.Array:
        """Registered strings by their id, others as they stand."""
        texts = batch.texts("text")
        ids = batch.ints("textId")
        if ids.null_count == len(ids):
            return texts
        return pc.coalesce(self.reader.strings.take(ids), texts)

    def _learn_domains(self, kinds: Int64s, batch: Batch, text: pa.Array) -> None:
        created = np.flatnonzero(kinds == DOMAIN_CREATE).tolist()
        domains = batch["domainId"] if created else []
        for i in created:
            name, domain = text[i].as_py(), domains[i]
            if name and isinstance(domain, int):
                self._domains[domain] = name[:100]

    def _find_markers(
        self,
        rows: pa.Table,
        start: Int64s,
        dur: Int64s,
        threads: Int64s,
        is_range: npt.NDArray[np.bool_],
        markers: list[steps.Marker],
    ) -> None:
        is_marker = pc.match_substring_regex(rows["name"], steps.COARSE).fill_null(False)
        for i in np.flatnonzero(np.asarray(is_marker) & is_range).tolist():
            end = int(start[i] + dur[i])
            name = rows["name"][i].as_py()
            markers.append(steps.Marker(self._count + i, name, int(threads[i]), int(start[i]), end))

    def write(self, launched: sweep.Launched) -> None:
        """Write annotation, with what each range launched."""
        if not self._parts:
            return
        start, end, threads, is_range = (np.concatenate(c) for c in zip(*self._parts, strict=True))
        self._parts = []
        rows = np.flatnonzero(is_range)
        swept = sweep.project(threads[rows], start[rows], end[rows], launched)
        del start, end, threads
        at = np.full(len(is_range), -1, np.int64)
        at[rows] = np.arange(len(rows))
        done = 0
        for batch in self._kept.batches():
            self._write(batch, swept, at[done : done + batch.num_rows], done)
            done += batch.num_rows

    def _write(self, batch: pa.Table, swept: sweep.Projection, at: Int64s, first_row: int) -> None:
        n = batch.num_rows
        kinds = batch["kind"].to_pylist()
        numbers: list[int | None] = [None] * n
        if self._steps:
            numbers = [self._steps.get(first_row + i) for i in range(n)]
        domain_ids = batch["domain_id"].to_pylist()
        is_range = at >= 0
        launches = np.where(is_range, swept.launches[at], 0) if len(swept.launches) else at * 0
        has_ops = launches > 0

        def of(values: Int64s, known: npt.NDArray[np.bool_]) -> pa.Array:
            if not len(values):
                return pa.nulls(n, pa.int64())
            return pa.array(values[at], mask=~known)

        name = batch["name"].combine_chunks()
        domains = self._classes(name, numbers)
        columns: dict[str, Any] = {
            **{c: batch[c] for c in ("place", "start_ns", "dur_ns", "pid", "thread")},
            "end_thread": batch["end_thread"],
            "domain": domains,
            "style": texts([_STYLES[k] for k in kinds]),
            "name": _without_secrets(name),
            "level": of(swept.level, is_range).cast(pa.int32()),
            "step": ints(numbers),
            "is_gpu_twin": pa.array(np.zeros(n, np.bool_)),
            "producer_domain": texts([self._domains.get(d) if d else None for d in domain_ids]),
            "gpu_start_ns": of(swept.first, has_ops),
            "gpu_end_ns": of(swept.last, has_ops),
            "gpu_launches_count": pa.array(launches, mask=~is_range),
            "gpu_children_count": of(swept.children, is_range),
        }
        self.reader.sink.write("annotation", pa.table(columns))

    def _classes(self, name: pa.Array, numbers: list[int | None]) -> pa.Array:
        domains = ["user"] * len(name)
        special = pc.match_substring_regex(name, _SPECIAL).fill_null(False)
        for i in np.flatnonzero(np.asarray(special)).tolist():
            domain = names.special_domain(name[i].as_py())
            domains[i] = domain if domain and domain != "profiler_step" else "user"
        for i, number in enumerate(numbers):
            if number is not None:
                domains[i] = "profiler_step"
        return texts(list(domains))


def _without_secrets(name: pa.Array) -> pa.Array:
    suspect = pc.match_substring_regex(name, _CREDENTIAL_LIKE).fill_null(False)
    rows = np.flatnonzero(np.asarray(suspect))
    if not len(rows):
        return name
    clean = shown_names([v.as_py() for v in name.take(pa.array(rows))])
    return pc.replace_with_mask(name, suspect, clean)

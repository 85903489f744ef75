"""A timeline file: all ranks on one clock, for ui.perfetto.dev (Chrome's JSON trace format).

A rank is a process; its steps, host threads, communication and GPU streams are threads in a fixed
order. An arrow joins the calls of one collective, from the first rank to enter to the last.
Findings are slices on tracks of their own, and again on the ranks that they are about.

The viewer drops a slice that overlaps another of its track without lying inside it. So slices that
overlap go to further lanes of their track; an overlap of a microsecond, which is rounding, is cut.
Rows come in order, track by track, and leave at once: memory does not grow with the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Literal

from msgspec import Struct, field

from tracekit.drafts import replacing
from tracekit.wording import plural, ranges, runs, safe

Row = Mapping[str, Any]
Detail = Literal["all", "device"]

DEFAULT_MAX_SLICES = 1_000_000
"""About 20 MB packed; the viewer takes some ten seconds and a gigabyte for it."""

SLACK_NS = 1_000
"""Overlaps up to this are rounding of the producer's clock, and cut."""

MAX_LANES = 32
"""Lanes of one track; what overlaps more often is left out, and counted."""

MAX_NAME = 300
"""Characters of a name that are kept: some kernels are named by their template arguments."""

FINDINGS_PID = 1_000_000_000
FIRST_TID = 1_000_000_001
"""Above every rank's process number, and unlike any: the viewer treats 0 and equal ids apart."""

TRACK_NAMES = {
    0: "steps",
    1: "thread {track}",
    2: "communication, thread {track}",
    3: "GPU {device} stream {track}",
    4: "GPU {device} stream {track}, waits",
}
NESTING = frozenset({0, 1})
"""Tracks on which ranges lie within ranges; elsewhere what overlaps runs at the same time."""

_CHUNK_BYTES = 1 << 20


class RankLine(Struct, frozen=True):
    """A rank of the timeline."""

    rank: int
    origin_ns: int
    """What is zero on its tracks, on the job's clock."""
    host: str | None = None
    error_ns: int | None = None
    """How far its clock may be off; None where it was never compared."""
    is_comparable: bool = True
    """Whether its times may be set beside those of other ranks."""


class Mark(Struct, frozen=True):
    """A finding on the timeline: where it holds, and what it says."""

    label: str
    title: str
    spans: tuple[tuple[int, int], ...]
    """Start and end in ns on the job's clock, in order, apart."""
    ranks: tuple[int, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)


class Plan(Struct, frozen=True):
    """Which part of a run is drawn. None: all of it."""

    detail: Detail = "all"
    steps: tuple[int, ...] | None = None
    ranks: tuple[int, ...] | None = None
    until_ns: int | None = None
    cuts: tuple[str, ...] = ()
    """What is left out, and why, for people."""


class Written(Struct):
    """What a timeline file holds."""

    path: Path
    slices_count: int = 0
    arrows_count: int = 0
    findings_count: int = 0
    ranks: tuple[int, ...] = ()
    file_bytes: int = 0
    cuts: tuple[str, ...] = ()
    left_out: dict[str, int] = field(default_factory=dict)
    """Slices that could not be drawn, by reason."""


# --- what to draw -------------------------------------------------------------------------------


def plan(
    load: Sequence[Row],
    max_slices: int,
    *,
    focus_steps: Sequence[int] = (),
    focus_ranks: Sequence[int] = (),
    detail: Detail = "all",
) -> Plan:
    """What of a run fits into ``max_slices``; ``load`` holds the rows of ``timeline_load``.

    Whole steps in a row around the middle of ``focus_steps`` (else of all), with everything; if
    not even one fits, without operators and runtime calls; then fewer ranks (``focus_ranks``
    first), and last the beginning only.
    """
    full, lean = _by_key(load, "step", "all"), _by_key(load, "step", "device")
    total = sum((full if detail == "all" else lean).values())
    if total <= max_slices:
        return Plan(detail=detail)
    limit = f"{plural(total, 'slice')} are more than {max_slices:,}"
    cuts: list[str] = []
    known = sorted(step for step in full if step is not None)
    counts = full if detail == "all" else lean
    middle = _middle(known, focus_steps)
    if detail == "all" and (middle is None or counts[middle] > max_slices):
        detail, counts = "device", lean
        cuts.append("operators and runtime calls")
    steps: tuple[int, ...] | None = None
    if middle is not None and sum(counts.values()) > max_slices:
        steps = _window(known, middle, counts, max_slices)
        if len(steps) == len(known):
            steps = None
        else:
            cuts.append(f"all but {plural(len(steps), 'step')} ({_named(steps)}) of {len(known)}")
    rows = [r for r in load if steps is None or r["step"] in steps]
    by_rank = _by_key(rows, "rank", detail)
    ranks: tuple[int, ...] | None = None
    until_ns = None
    if sum(by_rank.values()) > max_slices:
        ranks = _first_ranks(by_rank, focus_ranks, max_slices)
        if len(ranks) < len(by_rank):
            cuts.append(f"all but {plural(len(ranks), 'rank')} ({ranges([*ranks])})")
        shown_ranks = [r for r in rows if r["rank"] in ranks]
        count = sum(_by_key(shown_ranks, "rank", detail).values())
        if count > max_slices:
            first = min(int(r["start_ns"]) for r in shown_ranks)
            last = max(int(r["last_start_ns"]) for r in shown_ranks)
            until_ns = first + (last - first) * max_slices // count
            cuts.append(f"what begins after the first {(until_ns - first) / 1e9:.3g} s")
    return Plan(detail, steps, ranks, until_ns, tuple(f"{cut}: {limit}" for cut in cuts))


def _by_key(rows: Iterable[Row], key: str, detail: Detail) -> dict[Any, int]:
    by_key: dict[Any, int] = {}
    for row in rows:
        count = int(row["device_count"]) + (int(row["host_count"]) if detail == "all" else 0)
        by_key[row[key]] = by_key.get(row[key], 0) + count
    return by_key


def _middle(known: Sequence[int], focus: Sequence[int]) -> int | None:
    chosen = [s for s in known if s in set(focus)] or list(known)
    return chosen[len(chosen) // 2] if chosen else None


def _window(
    known: Sequence[int], middle: int, counts: Mapping[int, int], most: int
) -> tuple[int, ...]:
    """Steps in a row around the middle one, as many as fit; at least that one."""
    low = high = known.index(middle)
    used = counts[middle]
    while True:
        after = counts[known[high + 1]] if high + 1 < len(known) else None
        before = counts[known[low - 1]] if low > 0 else None
        if after is not None and used + after <= most:
            high, used = high + 1, used + after
        elif before is None or used + before > most:
            return tuple(known[low : high + 1])
        if before is not None and used + before <= most:
            low, used = low - 1, used + before


def _first_ranks(by_rank: Mapping[int, int], focus: Sequence[int], most: int) -> tuple[int, ...]:
    order = [r for r in focus if r in by_rank] + [r for r in sorted(by_rank) if r not in focus]
    ranks_that_fit: list[int] = []
    used = 0
    for rank in order:
        if ranks_that_fit and used + by_rank[rank] > most:
            break
        ranks_that_fit.append(rank)
        used += by_rank[rank]
    return tuple(sorted(ranks_that_fit))


def _named(steps: Sequence[int]) -> str:
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs(steps))


# --- lanes --------------------------------------------------------------------------------------


class Slice(Struct):
    """A slice as it is drawn: its row, and where it begins and ends."""

    row: Row
    start_ns: int
    end_ns: int


class _Lane(Struct):
    tid: int
    open: list[Slice] = field(default_factory=list)
    """Slices that have not ended, the outermost first; on a flat track the last one only."""


class Lanes:
    """Lays the slices of one track, in order of start, on lanes where they nest or lie apart.

    ``emit`` gets each slice once, with the number of its lane; a flat track holds the last slice
    of each lane back, because the next may cut its end.
    """

    def __init__(
        self,
        is_nesting: bool,
        new_lane: Callable[[int], int],
        emit: Callable[[Slice, int], None],
    ) -> None:
        self.is_nesting = is_nesting
        self.lanes: list[_Lane] = []
        self.left_out = 0
        self._new_lane, self._emit = new_lane, emit

    def add(self, piece: Slice) -> None:
        """Lay one slice."""
        place = self._nested if self.is_nesting else self._flat
        for lane in self.lanes:
            if place(lane, piece):
                return
        if len(self.lanes) >= MAX_LANES and piece.row["flow_id"] is None:
            self.left_out += 1
            return
        lane = _Lane(self._new_lane(len(self.lanes)))
        self.lanes.append(lane)
        place(lane, piece)

    def finish(self) -> None:
        """The track ends."""
        for lane in self.lanes:
            if not self.is_nesting:
                for held in lane.open:
                    self._emit(held, lane.tid)
            lane.open.clear()

    def _nested(self, lane: _Lane, piece: Slice) -> bool:
        stack = lane.open
        depth, start, end = len(stack), piece.start_ns, piece.end_ns
        while depth:
            top = stack[depth - 1]
            early = top.end_ns - piece.start_ns
            late = end - top.end_ns
            if top.end_ns <= start or 0 < early <= SLACK_NS <= early + late:
                # Over, or the new one begins in its last microsecond: it follows.
                start = max(start, top.end_ns)
                depth -= 1
            elif late <= SLACK_NS:
                start = max(start, top.start_ns)
                end = max(start, min(end, top.end_ns))
                break
            else:
                return False
        del stack[depth:]
        piece.start_ns, piece.end_ns = start, max(start, end)
        stack.append(piece)
        self._emit(piece, lane.tid)
        return True

    def _flat(self, lane: _Lane, piece: Slice) -> bool:
        if lane.open:
            held = lane.open[0]
            overlap = held.end_ns - piece.start_ns
            if overlap > 0:
                if overlap > SLACK_NS or piece.start_ns <= held.start_ns + _arrow_ns(held):
                    return False
                held.end_ns = piece.start_ns
            self._emit(held, lane.tid)
        lane.open[:] = [piece]
        return True


def _arrow_ns(piece: Slice) -> int:
    return int(piece.row["flow_after_ns"] or 0)


# --- writing ------------------------------------------------------------------------------------


class _Writer:
    """Events into the file, as one JSON document."""

    def __init__(self, stream: IO[bytes], ranks: Mapping[int, RankLine], written: Written) -> None:
        import msgspec

        self._encode = msgspec.json.Encoder().encode
        self._stream, self._buffer = stream, BytesIO()
        self._ranks, self._written = ranks, written
        self._is_first = True
        self._next_tid = FIRST_TID
        self._buffer.write(b'{"traceEvents":[\n')

    def event(self, event: Mapping[str, Any]) -> None:
        if not self._is_first:
            self._buffer.write(b",\n")
        self._is_first = False
        self._buffer.write(self._encode(event))
        if self._buffer.tell() >= _CHUNK_BYTES:
            self._flush()

    def close(self, other: Mapping[str, Any]) -> None:
        self._buffer.write(b'\n],\n"otherData":')
        self._buffer.write(self._encode(other))
        self._buffer.write(b"}\n")
        self._flush()

    def _flush(self) -> None:
        self._stream.write(self._buffer.getvalue())
        self._buffer.seek(0)
        self._buffer.truncate()

    def process(self, pid: int, name: str, order: int, label: str = "") -> None:
        self._meta(pid, 0, "process_name", {"name": name})
        self._meta(pid, 0, "process_sort_index", {"sort_index": order})
        if label:
            self._meta(pid, 0, "process_labels", {"labels": label})

    def thread(self, pid: int, name: str) -> int:
        tid = self._next_tid
        self._next_tid += 1
        self._meta(pid, tid, "thread_name", {"name": name})
        self._meta(pid, tid, "thread_sort_index", {"sort_index": tid - FIRST_TID})
        return tid

    def _meta(self, pid: int, tid: int, name: str, args: Mapping[str, Any]) -> None:
        self.event({"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": name, "args": args})

    def slice(self, piece: Slice, tid: int) -> None:
        row = piece.row
        rank = int(row["rank"])
        pid, origin_ns = _pid(rank), self._ranks[rank].origin_ns
        self.event(
            {
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "ts": _us(piece.start_ns - origin_ns),
                "dur": _us(piece.end_ns - piece.start_ns),
                "name": _name(row["name"]),
                "cat": _name(row["category"]),
                "args": _args(row),
            }
        )
        self._written.slices_count += 1
        if row["flow_id"] is None:
            return
        index, count = int(row["flow_index"]), int(row["flow_count"])
        phase = "s" if index == 1 else "f" if index == count else "t"
        flow = {
            "ph": phase,
            "pid": pid,
            "tid": tid,
            "ts": _us(piece.start_ns + _arrow_ns(piece) - origin_ns),
            "name": "collective",
            "cat": "collective",
            "id": int(row["flow_id"]),
        }
        if phase == "f":
            flow["bp"] = "e"
            self._written.arrows_count += 1
        self.event(flow)


def _pid(rank: int) -> int:
    # The viewer has its own ideas about process 0.
    return rank + 1


def _us(ns: int) -> float:
    """Microseconds, exact to the nanosecond for windows of up to 100 days."""
    return round(ns / 1000, 3)


def _name(text: object) -> str:
    name = safe(str(text if text is not None else "?"))
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 3] + "..."


def _args(row: Row) -> dict[str, Any]:
    args: dict[str, Any] = {"source": row["source_id"], "place": row["place"]}
    for key in ("step", "op", "group_id", "sequence", "message_bytes"):
        if row[key] is not None:
            args[key] = row[key]
    if row["wait_ns"] is not None:
        args["wait_us"] = _us(int(row["wait_ns"]))
    if row["holder_rank"] is not None:
        args["waits_for_rank"] = row["holder_rank"]
    return args


def write(
    path: Path,
    rows: Iterable[Row],
    ranks: Iterable[RankLine],
    marks: Sequence[Mark] = (),
    *,
    origin_ns: int = 0,
    cuts: Sequence[str] = (),
    about: Mapping[str, Any] | None = None,
) -> Written:
    """Write a timeline; packed where the name ends in .gz. The file appears whole or not at all.

    ``rows`` are those of ``timeline_slices`` in its order; ``origin_ns`` is zero on the tracks of
    findings. UsageError where the file cannot be written.
    """
    by_rank = {line.rank: line for line in ranks}
    written = Written(path, ranks=tuple(sorted(by_rank)), cuts=tuple(cuts))
    with _stream_into(path) as stream:
        writer = _Writer(stream, by_rank, written)
        _write_findings(writer, marks, origin_ns, written)
        for rank, line in sorted(by_rank.items()):
            writer.process(_pid(rank), _rank_name(line), rank, _clock_label(line))
            for mark in marks:
                if rank in mark.ranks:
                    tid = writer.thread(_pid(rank), f"{mark.label} (finding)")
                    _write_mark(writer, mark, _pid(rank), tid, line.origin_ns)
        _write_tracks(writer, rows, written)
        writer.close({**(about or {}), "origin_ns": str(origin_ns), "left_out": [*cuts]})
    written.file_bytes = path.stat().st_size
    return written


def _write_findings(
    writer: _Writer, marks: Sequence[Mark], origin_ns: int, written: Written
) -> None:
    if not marks:
        return
    writer.process(FINDINGS_PID, "findings", -1)
    for mark in marks:
        tid = writer.thread(FINDINGS_PID, mark.label)
        _write_mark(writer, mark, FINDINGS_PID, tid, origin_ns)
        written.findings_count += 1


def _write_mark(writer: _Writer, mark: Mark, pid: int, tid: int, origin_ns: int) -> None:
    for start, end in mark.spans:
        writer.event(
            {
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "ts": _us(max(0, start - origin_ns)),
                "dur": _us(max(0, end - max(start, origin_ns))),
                "name": _name(mark.title),
                "cat": "finding",
                "args": {key: _name(value) for key, value in mark.details.items()},
            }
        )


def _rank_name(line: RankLine) -> str:
    return f"rank {line.rank}" + (f" on {_name(line.host)}" if line.host else "")


def _clock_label(line: RankLine) -> str:
    if not line.is_comparable:
        return "its clock is connected with no other: do not compare"
    if line.error_ns:
        return f"clock within {line.error_ns / 1000:g} us"
    return ""


def _write_tracks(writer: _Writer, rows: Iterable[Row], written: Written) -> None:
    track: tuple[Any, ...] | None = None
    lanes: Lanes | None = None
    for row in rows:
        key = (row["rank"], row["track_order"], row["device"], row["track"])
        if key != track or lanes is None:
            _end(lanes, written)
            track, lanes = key, _lanes(writer, row)
        start = int(row["start_ns"])
        # An arrow needs a slice that it can touch.
        least = 1 if row["flow_id"] is not None else 0
        lanes.add(Slice(row, start, start + max(least, int(row["dur_ns"]))))
    _end(lanes, written)


def _end(lanes: Lanes | None, written: Written) -> None:
    if lanes is None:
        return
    lanes.finish()
    if lanes.left_out:
        reason = f"more than {MAX_LANES} at the same time on one track"
        written.left_out[reason] = written.left_out.get(reason, 0) + lanes.left_out


def _lanes(writer: _Writer, row: Row) -> Lanes:
    order = int(row["track_order"])
    name = TRACK_NAMES[order].format(
        track="?" if row["track"] is None else row["track"],
        device="?" if row["device"] is None else row["device"],
    )
    pid = _pid(int(row["rank"]))

    def new_lane(index: int) -> int:
        return writer.thread(pid, name if index == 0 else f"{name}, lane {index + 1}")

    return Lanes(order in NESTING, new_lane, writer.slice)


@contextmanager
def _stream_into(path: Path) -> Iterator[IO[bytes]]:
    """A stream into the file, which is packed where its name says so."""
    with replacing(path) as draft, draft.open("wb") as raw:
        if path.suffix == ".gz":
            from isal import igzip

            # No name and no time in the header: the same timeline is the same bytes.
            packed: Any = igzip.IGzipFile("", "wb", 2, raw, 0)  # type: ignore[no-untyped-call]
            with packed:
                yield packed
        else:
            yield raw

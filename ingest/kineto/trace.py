"""One trace: batches in, tables out, and at the end the rows that had to wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit import arrays
from tracekit.errors import InputError
from tracekit.ingest import streams
from tracekit.ingest.base import IngestOptions, Sink, SourceFile
from tracekit.ingest.kineto import (
    collectives,
    finish,
    frequent,
    odd,
    salvage,
    times,
)
from tracekit.ingest.kineto.base_time import SURE_NS, BasedSink, BaseFoundLateError
from tracekit.ingest.kineto.decode import Decoded, Decoder, Group
from tracekit.ingest.kineto.gpu import GpuRows
from tracekit.ingest.kineto.links import HostComm, HostComms
from tracekit.ingest.kineto.model import (
    CATEGORIES,
    FREQUENT,
    STREAM_SYNC_TID,
    CommArgs,
    Event,
    InstantArgs,
    Kind,
    SyncArgs,
)
from tracekit.ingest.kineto.rows import HeldRows, HostRows, Microseconds, RangeRows
from tracekit.ingest.kineto.stream import TraceStream
from tracekit.ingest.kineto.times import Int64s
from tracekit.ingest.traces import names
from tracekit.ingest.traces.columns import (
    CACHE_LIMIT,
    Cache,
    as_int,
    ids,
    int32s,
    ints,
    shown_names,
    texts,
)
from tracekit.ingest.traces.launches import LaunchFile, Ranges

HELD_RANGES = 1 << 10
"""Rows of ``annotation`` that are made at once."""
HELD_ROWS = 1 << 13
"""Rows of a frequent category that are made at once."""
FLUSH_BYTES = 16 << 20
"""Text after which whatever waits becomes rows: names may be long where a file is made to harm."""
NATIVE_FLUSH_BYTES = 8 << 20
"""Likewise with the native reader, whose rows wait for nothing else."""
IN_VAIN_LIMIT = 8
"""Batches that the native reader refuses, beyond those that it takes, before it is not asked."""
_NO_SYNC = SyncArgs()


class TraceReader:
    """State of reading one trace. Times are without the base time, which the sink adds."""

    def __init__(
        self,
        source: SourceFile,
        sink: Sink,
        options: IngestOptions,
        chunk_bytes: int,
        base_ns: int | None = None,
    ) -> None:
        self.source = source
        self.sink = BasedSink(sink, source, base_ns)
        self.options = options
        self.chunk_bytes = chunk_bytes
        self.decoder = Decoder(stacks=options.stacks)
        self._frequent = frequent.lend(stacks=options.stacks)
        """The native reader, where there is one."""
        self.place = 0
        self.events_count = 0
        self._in_vain = 0
        """How many batches more it was asked for in vain lately than it took."""
        self.host = HostRows()
        self._held: dict[tuple[str, str], HeldRows] = {}
        """Host work that waits to become rows, by category and the registry's word."""
        self._unwritten_bytes = 0
        self.annotations = RangeRows()
        self.gpu = GpuRows(self._note_times)
        self.launches = LaunchFile()
        self.steps = Ranges()
        self.params = HostComms()
        self.ranges = HostComms()
        self.messages = HostComms()
        """Operators that hand over a message."""
        self.odd = odd.OddEvents(self.sink, stacks=options.stacks)
        self.pids: set[int] = set()
        """Processes that have work on the host: device rows carry an ordinal in its place."""
        self.window: list[int] = []
        self.span: list[int] = []
        self.has_fraction = False
        self.losses = 0
        """Events and stretches of text that could not be read."""
        self._domains = Cache(names.special_domain)
        self._is_launch = Cache(names.is_launch)
        self._range_metas = Cache(lambda given: collectives.meta_of_range(*given))
        self._messages = Cache(lambda given: collectives.meta_of_message(*given))
        self._plain_names: set[str] = set()
        """Names of operators that are known to say nothing but what ran."""
        self._comm_metas: dict[tuple[Any, ...], collectives.Meta] = {}
        """By the arguments of record_param_comms: the calls of a loop repeat them."""

    # --- the stream ------------------------------------------------------------------------

    @property
    def base_ns(self) -> int:
        """What is added to all times; 0 while it is looked for."""
        return self.sink.base_ns

    def run(self) -> None:
        """Read the file from its first byte to its last."""
        try:
            self._read()
        finally:
            self.gpu.close()
            self.launches.close()

    def _read(self) -> None:
        with self._open() as raw:
            stream = TraceStream(
                raw,
                partial(self._take, raw),
                self._take_damaged,
                salvage.is_event,
                self.chunk_bytes,
                partial(self._take_long, raw) if self._frequent is not None else None,
            )
            if stream.read_header():
                self.sink.find(stream)
                stream.run()
                self.sink.find_now(stream.tail)
            self._flush()
            if self._frequent is not None:
                self._drop_frequent(self._frequent)
            problem = streams.stream_problem(raw)
            if problem is None and 0 < self.source.file_bytes < streams.stored_bytes(raw):
                problem = "growing"
        finish.Finisher(self, stream, problem).run()

    def _open(self) -> BinaryIO:
        try:
            return self.source.open()
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise InputError(f"{self.source.path}: it cannot be read ({why})") from error

    def _take(self, raw: BinaryIO, document: memoryview) -> bool:
        if self._frequent is not None:
            if self._take_frequent(self._frequent, raw, document):
                self._in_vain = max(self._in_vain - 1, 0)
                return True
            self._in_vain += 1
            if self._in_vain >= IN_VAIN_LIMIT:
                self._drop_frequent(self._frequent)
        result = self.decoder.batch(document, self.place)
        if result is None:
            return False
        decoded, count = result
        if self.sink.is_waiting:
            self.sink.wait_for(raw, len(document))
        self._add(decoded, len(document))
        self.place += count
        return True

    def _take_long(self, raw: BinaryIO, document: memoryview, cuts: tuple[int, int]) -> bool:
        """Have the native reader read a long batch, which Python is not asked about."""
        native = self._frequent
        return native is not None and self._take_frequent(native, raw, document, cuts)

    def _take_frequent(
        self,
        native: frequent.FrequentEvents,
        raw: BinaryIO,
        document: memoryview,
        cuts: tuple[int, int] = (0, 0),
    ) -> bool:
        """Have the native reader read a batch; False, and nothing done, where Python must."""
        if abs(self.base_ns) > 3 * SURE_NS:
            return False
        is_long = cuts[1] > 0
        limit_ns = SURE_NS if self.sink.is_waiting else times.TIME_LIMIT_NS - abs(self.base_ns)
        batch = native.batch(document, self.place, limit_ns, cuts)
        if batch is None:
            return False
        decoded: Decoded | None = Decoded()
        if len(batch.rest_places):
            decoded = self.decoder.some(batch.rest, batch.rest_places, plainly=is_long)
        if decoded is None or (is_long and not self._says_nothing(decoded)):
            native.roll_back()
            return False
        if self.sink.is_waiting:
            self.sink.wait_for(raw, len(document))
        self.events_count += batch.taken
        self.has_fraction = self.has_fraction or batch.has_fraction
        self._add(decoded, len(document))
        self.place += batch.events
        if native.is_full:
            self._flush()
            self._frequent = frequent.lend(stacks=self.options.stacks)
        return True

    def _says_nothing(self, decoded: Decoded) -> bool:
        """Whether nothing is counted of plain events: what is told first depends on the batch."""
        for group in decoded.groups:
            if group.kind is Kind.INSTANT:
                group.has_dur[:] = True
            if group.kind is not Kind.SKIP and group.us is None and not self._is_plain(group):
                return False
        return True

    def _drop_frequent(self, native: frequent.FrequentEvents) -> None:
        """No longer ask the native reader; another file may."""
        self._write_frequent(native)
        self._frequent = None
        frequent.give_back(native)

    def _take_damaged(self, text: bytes, is_last: bool) -> None:
        fragments = salvage.fragments(text)
        if is_last and fragments:
            last = fragments.pop()
            whole = salvage.complete(last)
            if whole is not None:
                fragments.append(whole)
            elif last.strip(b" \t\r\n,"):
                self.sink.count(
                    "truncated_event",
                    doc="The event that the file breaks off in.",
                    place=self.place + len(fragments),
                )
        decoded, used = salvage.decode(self.decoder, fragments, self.place, self.sink)
        self.losses += used.lost
        self._add(decoded, len(text))
        self.place += used.events

    def _add(self, decoded: Decoded, text_bytes: int) -> None:
        for group in decoded.groups:
            self._add_group(group)
        if decoded.odd:
            for group in self.odd.read(decoded.odd):
                self._add_group(group)
        self._unwritten_bytes += text_bytes
        if self._unwritten_bytes >= (NATIVE_FLUSH_BYTES if self._frequent else FLUSH_BYTES):
            self._flush()

    def _flush(self) -> None:
        """Make rows of all events that wait for others."""
        self._unwritten_bytes = 0
        if self._frequent is not None:
            self._write_frequent(self._frequent)
        for category, word in list(self._held):
            self._write_host(category, word)
        self.gpu.flush()
        self._write_ranges()

    # --- one group -------------------------------------------------------------------------

    def _add_group(self, group: Group) -> None:
        self.events_count += group.count
        if group.kind is Kind.SKIP:
            return
        may_hold = group.us is not None and abs(self.base_ns) <= 3 * SURE_NS
        if group.us is not None and may_hold and self._hold(group, group.us):
            return
        group.settle()
        if group.kind is Kind.INSTANT:
            group.has_dur[:] = True
        ready = self._timed(group)
        if ready is None:
            return
        events, places, start, dur = ready
        match group.kind:
            case Kind.OPERATOR:
                self._operators(group, events, places, start, dur)
            case Kind.CALL:
                shown = [e.name for e in events]
                self._hold_host(group, events, shown, places, ns=(start, dur))
            case Kind.GPU:
                self._gpu(group, events, places, start, dur)
            case Kind.SYNC:
                self._sync(events, places, start, dur)
            case Kind.ANNOTATION:
                self._ranges(events, places, start, dur)
            case Kind.TWIN:
                self._twins(events, places, start, dur)
            case Kind.FRAME:
                self._frames(events, places, start, dur)
            case Kind.INSTANT:
                self._instants(events, places, start)
            case Kind.SPAN:
                self.span += [int(start.min()), int((start + dur).max())]
        if group.kind not in (Kind.SPAN, Kind.FRAME, *FREQUENT):
            self._note_times(start, dur)

    def _note_times(self, start: Int64s, dur: Int64s) -> None:
        """How far the events reach, and how finely their times are told."""
        self.has_fraction = self.has_fraction or _has_fraction(start, dur)
        self.window += [int(start.min()), int((start + dur).max())]
        if len(self.window) > 1000:
            self.window = [min(self.window), max(self.window)]

    def _hold(self, group: Group, us: Microseconds) -> bool:
        """Keep plain events of a frequent kind; False where they need a closer look."""
        if group.kind is Kind.GPU:
            if _may_hold_syncs(group.events):
                return False
            self.gpu.add(group.events, group.places, group.word, us=us)
            return True
        shown = [e.name for e in group.events]
        if group.kind is Kind.OPERATOR and not self._plain_names.issuperset(shown):
            distinct = set(shown)
            if self._special(distinct):
                return False
            comms = self._rows_with(shown, distinct & collectives.CALLS)
            if comms:
                start, dur = (times.from_doubles(np.frombuffer(t)[comms]).tolist() for t in us)
                for i, begin, length in zip(comms, start, dur, strict=True):
                    self._call(group.events[i], int(group.places[i]), begin, length)
            if len(self._plain_names) >= CACHE_LIMIT:
                self._plain_names.clear()
            self._plain_names |= distinct - collectives.CALLS
        self._hold_host(group, group.events, shown, group.places, us=us)
        return True

    def _is_plain(self, group: Group) -> bool:
        """Whether all times are there, and none is remarkable: nearly always."""
        if not (group.has_start.all() and group.has_dur.all()):
            return False
        low, high = int(group.start_ns.min()), int(group.start_ns.max())
        limit = SURE_NS if self.sink.is_waiting else times.TIME_LIMIT_NS - abs(self.base_ns)
        return (
            -limit < low
            and high < limit
            and int(group.dur_ns.min()) >= 0
            and int(group.dur_ns.max()) <= times.MAX_DUR_NS
            and (group.kind is not Kind.GPU or low > 0)
        )

    def _timed(self, group: Group) -> tuple[Sequence[Event], Int64s, Int64s, Int64s] | None:
        """The events whose times can be believed; the others are counted."""
        start, dur, place = group.start_ns, group.dur_ns, group.places
        if self._is_plain(group):
            self.has_fraction = self.has_fraction or _has_fraction(start, dur)
            return group.events, place, start, dur
        keep = group.has_start.copy()
        self._tell(~keep, place, "event_without_time", "Events whose ts is missing or no number.")
        if group.kind is Kind.GPU:
            zero = keep & (start == 0) & (dur == 0)
            self._tell(
                zero, place, "kernel_without_time", "Device work with ts 0 and dur 0: never timed."
            )
            keep &= ~zero
        missing = keep & ~group.has_dur
        self._tell(missing, place, "missing_duration", "Complete events without dur, read as 0.")
        negative = keep & (dur < 0)
        if negative.any():
            self._tell(negative, place, "negative_duration", "Negative durations, read as 0.")
            dur = np.maximum(dur, 0)
        huge = keep & (dur > times.MAX_DUR_NS)
        self._tell(huge, place, "implausible_duration", "Events longer than a day, left out.")
        if self.sink.is_waiting and bool((np.abs(start[keep]) >= SURE_NS).any()):
            self.sink.find_now()
        far = keep & (np.abs(start) >= times.TIME_LIMIT_NS - abs(self.base_ns))
        self._tell(far, place, "implausible_time", "Events beyond the year 2116, left out.")
        keep &= ~(huge | far)
        self.has_fraction = self.has_fraction or _has_fraction(start, dur)
        if keep.all():
            return group.events, place, start, dur
        rows = np.flatnonzero(keep)
        if not len(rows):
            return None
        events = [group.events[i] for i in rows.tolist()]
        return events, place[rows], start[rows], dur[rows]

    def _tell(self, mask: Any, place: Int64s, counter: str, doc: str) -> None:
        n = int(mask.sum())
        if n:
            self.sink.count(counter, n, doc=doc, place=int(place[np.argmax(mask)]))

    # --- the host --------------------------------------------------------------------------

    def _operators(
        self, group: Group, events: Sequence[Event], places: Int64s, start: Int64s, dur: Int64s
    ) -> None:
        shown = [e.name for e in events]
        distinct = set(shown)
        for i in self._rows_with(shown, distinct & collectives.CALLS):
            self._call(events[i], int(places[i]), int(start[i]), int(dur[i]))
        rows = self._rows_with(shown, self._special(distinct))
        if rows:
            # Ranges of 2021 traces stand among the operators; they are not work of their own.
            is_range = np.zeros(len(events), np.bool_)
            is_range[rows] = True
            rest = np.flatnonzero(~is_range)
            ranges = np.flatnonzero(is_range)
            self._ranges([events[i] for i in rows], places[ranges], start[ranges], dur[ranges])
            events = [events[i] for i in rest.tolist()]
            shown = [e.name for e in events]
            places, start, dur = places[rest], start[rest], dur[rest]
        if events:
            self._hold_host(group, events, shown, places, ns=(start, dur))

    def _hold_host(
        self,
        group: Group,
        events: Sequence[Event],
        shown: list[str],
        places: Int64s,
        *,
        us: Microseconds | None = None,
        ns: tuple[Int64s, Int64s] | None = None,
    ) -> None:
        """Keep host work of one category; nothing of its batch's text is kept."""
        if group.kind is Kind.OPERATOR:
            columns = self.host.operator_columns(events)
        else:
            columns = self.host.call_columns(events)
        held = self._held.setdefault((group.category, group.word), HeldRows())
        held.add(places, columns, shown=shown, us=us, ns=ns)
        # Any word may be a category of a damaged file: only those that are known may wait.
        if held.count >= HELD_ROWS or group.category not in CATEGORIES:
            self._write_host(group.category, group.word)

    def _write_host(self, category: str, word: str) -> None:
        """Rows of what was kept of one category."""
        held = self._held.pop((category, word))
        make = self.host.operator_table if word == "operator" else self.host.call_table
        table = make(held, word)
        self._write_ops(category, word, table, held.names, held.codes())

    def _write_frequent(self, native: frequent.FrequentEvents) -> None:
        """Rows of all that the native reader has taken."""
        for category, kind, rows in native.take():
            match kind:
                case Kind.GPU:
                    self.gpu.add_rows(rows, native.device_names)
                case Kind.INSTANT:
                    self._note_times(*rows.times())
                    self.sink.write("memory_event", native.memory_table(rows))
                case Kind.FRAME:
                    self.sink.write("python_frame", native.frame_table(rows))
                case _:
                    is_operator = kind is Kind.OPERATOR
                    make = native.operator_table if is_operator else native.call_table
                    shown = native.host_names.values
                    self._write_ops(category, rows.word, make(rows), shown, rows.raw("name"))

    def _write_ops(
        self,
        category: str,
        word: str,
        table: pa.Table,
        shown: Iterable[str | None],
        codes: npt.NDArray[np.integer[Any]],
    ) -> None:
        """Rows of host work; ``codes`` are those of their names among ``shown``."""
        start, dur = (table[name].to_numpy() for name in ("start_ns", "dur_ns"))
        if word in ("runtime", "driver"):
            self._launches(category, shown, codes, table, start, dur)
        self.sink.write("host_op", table)
        self.pids.update(arrays.distinct(table["pid"]))
        self._note_times(start, dur)

    def _special(self, distinct: set[str]) -> set[str]:
        domains = self._domains
        return {name for name in distinct if domains[name] is not None}

    @staticmethod
    def _rows_with(shown: Sequence[str], wanted: set[str]) -> list[int]:
        return [i for i, name in enumerate(shown) if name in wanted] if wanted else []

    def _call(self, event: Event, place: int, start: int, dur: int) -> None:
        if event.name == collectives.PARAMS:
            self._param_comms(event, place, start, dur)
        elif event.args is not None:
            meta = self._messages[event.name, bytes(event.args.inputs)]
            if meta is not None:
                where = as_int(event.pid), as_int(event.tid), start, start + dur
                self.messages.add(HostComm(*where, None, None, place, meta))

    def _param_comms(self, event: Event, place: int, start: int, dur: int) -> None:
        args: CommArgs | None = event.args
        if args is None or args.collective is None:
            return
        key = collectives.key_of_args(args)
        meta = self._comm_metas.get(key)
        if meta is None:
            if len(self._comm_metas) >= CACHE_LIMIT:
                self._comm_metas.clear()
            meta = self._comm_metas[key] = collectives.meta_of_args(args)
        ident, sequence = as_int(event.args.external_id), as_int(args.seq)
        pid, thread = as_int(event.pid), as_int(event.tid)
        self.params.add(HostComm(pid, thread, start, start + dur, ident, sequence, place, meta))

    def _launches(
        self,
        category: str,
        shown: Iterable[str | None],
        codes: npt.NDArray[np.integer[Any]],
        table: pa.Table,
        start: Int64s,
        dur: Int64s,
    ) -> None:
        """Remember the calls that start work on a device."""
        mask = arrays.known(table["correlation"])
        if category in ("cuda_runtime", "cuda_driver", "Runtime"):
            is_launch = np.array([self._is_launch[name] for name in shown], np.bool_)
            mask = mask & is_launch[codes]
        if mask.any():
            corr = arrays.numbers(table["correlation"], 0)[mask]
            thread = arrays.numbers(table["thread"], -1)[mask]
            pid = arrays.numbers(table["pid"], -1)[mask]
            self.launches.add(corr, start[mask], (start + dur)[mask], thread, pid)

    def _ranges(self, events: Sequence[Event], places: Int64s, start: Int64s, dur: Int64s) -> None:
        domains = [self._domains[e.name] or "user" for e in events]
        for i, domain in enumerate(domains):
            if domain == "profiler_step":
                number = names.step_number(events[i].name)
                self.steps.add(int(start[i]), int(start[i] + dur[i]), number or 0)
            elif domain == "collective":
                self._collective_range(events[i], int(places[i]), int(start[i]), int(dur[i]))
        self._hold_ranges(events, places, start, dur, domains, is_twin=False)

    def _hold_ranges(
        self,
        events: Sequence[Event],
        places: Int64s,
        start: Int64s,
        dur: Int64s,
        domains: Sequence[str],
        *,
        is_twin: bool,
    ) -> None:
        """Keep rows of ``annotation`` until there are enough: a batch has a few."""
        self.annotations.add(events, places, start, dur, domains, is_twin=is_twin)
        if len(self.annotations) >= HELD_RANGES:
            self._write_ranges()

    def _write_ranges(self) -> None:
        if len(self.annotations):
            self.sink.write("annotation", self.annotations.take())

    def _collective_range(self, event: Event, place: int, start: int, dur: int) -> None:
        args = event.args
        dims = b"" if args is None else bytes(args.dims)
        types = b"" if args is None else bytes(args.types)
        meta = self._range_metas[event.name, dims, types]
        if meta is None:
            return
        ident = None if args is None else as_int(args.external_id)
        pid, thread = as_int(event.pid), as_int(event.tid)
        self.ranges.add(HostComm(pid, thread, start, start + dur, ident, None, place, meta))
        if event.name.startswith(finish.HOST_LIBRARIES):
            self.gpu.host.append((place, start, dur, thread, pid, event.name.split(":")[0], meta))

    def _twins(self, events: Sequence[Event], places: Int64s, start: Int64s, dur: Int64s) -> None:
        domains = [self._domains[e.name] or "user" for e in events]
        self._hold_ranges(events, places, start, dur, domains, is_twin=True)

    def _frames(self, events: Sequence[Event], places: Int64s, start: Int64s, dur: Int64s) -> None:
        shown = [e.name for e in events]
        framed = self._rows_with(shown, self._special(set(shown)))
        if framed:
            rows = np.array(framed)
            held = [events[i] for i in framed]
            kinds = [self._domains[e.name] for e in held]
            self._hold_ranges(held, places[rows], start[rows], dur[rows], kinds, is_twin=False)
        if self.options.stacks:
            args = [e.args for e in events]
            self.sink.write(
                "python_frame",
                pa.table(
                    {
                        "place": arrays.column(places),
                        "start_ns": arrays.column(start),
                        "dur_ns": arrays.column(dur),
                        "name": shown_names(shown),
                        "pid": ids([e.pid for e in events]),
                        "thread": ids([e.tid for e in events]),
                        "frame_id": ints([a and a.frame_id for a in args]),
                        "parent_frame_id": ints([a and a.parent_id for a in args]),
                        "module_id": ints([a and a.module_id for a in args]),
                    }
                ),
            )

    # --- devices ---------------------------------------------------------------------------

    def _gpu(
        self, group: Group, events: Sequence[Event], places: Int64s, start: Int64s, dur: Int64s
    ) -> None:
        is_sync = [_may_be_sync(e) and "sync" in e.name.lower() for e in events]
        if any(is_sync):
            mask = np.array(is_sync)
            syncs = [e for e, s in zip(events, is_sync, strict=True) if s]
            self._sync(syncs, places[mask], start[mask], dur[mask])
            events = [e for e, s in zip(events, is_sync, strict=True) if not s]
            places, start, dur = places[~mask], start[~mask], dur[~mask]
        if events:
            self.gpu.add(events, places, group.word, ns=(start, dur))

    def _sync(self, events: Sequence[Event], places: Int64s, start: Int64s, dur: Int64s) -> None:
        args = [e.args or _NO_SYNC for e in events]
        streams = [
            a.stream if a.stream is not None else _stream(e.tid)
            for a, e in zip(args, events, strict=True)
        ]
        kinds = [
            names.sync_kind(getattr(a, "kind", None) or e.name)
            for a, e in zip(args, events, strict=True)
        ]
        get = [
            (
                getattr(a, "wait_on_stream", None),
                getattr(a, "wait_on_event", None),
                getattr(a, "recording", None),
            )
            for a in args
        ]
        self.sink.write(
            "sync_op",
            pa.table(
                {
                    "place": arrays.column(places),
                    "start_ns": arrays.column(start),
                    "dur_ns": arrays.column(dur),
                    "kind": texts(kinds),
                    "name": shown_names([e.name for e in events]),
                    "device": int32s(
                        [
                            a.device if a.device is not None else e.pid
                            for a, e in zip(args, events, strict=True)
                        ]
                    ),
                    "context": ints([a.context for a in args]),
                    "stream": ints([_no_minus(s) for s in streams]),
                    "correlation": ints([a.correlation for a in args]),
                    "wait_on_stream": ints([_no_minus(g[0]) for g in get]),
                    "wait_on_event": ints([g[1] for g in get]),
                    "recording_correlation": ints([_no_minus(g[2]) for g in get]),
                }
            ),
        )

    def _instants(self, events: Sequence[Event], places: Int64s, start: Int64s) -> None:
        rows = [i for i, e in enumerate(events) if e.name == "[memory]" and e.args is not None]
        if not rows:
            return
        instants = [events[i] for i in rows]
        args: list[InstantArgs] = [e.args for e in instants]
        take = np.array(rows)
        addresses = [
            a.address if a.address is not None and 0 <= a.address < 2**64 else None for a in args
        ]
        self.sink.write(
            "memory_event",
            pa.table(
                {
                    "place": arrays.column(places[take]),
                    "time_ns": arrays.column(start[take]),
                    "device_type": texts([_device_type(a) for a in args]),
                    "device": int32s([a.device for a in args]),
                    "thread": ints([e.tid for e in instants]),
                    "change_bytes": ints([a.change for a in args]),
                    "address": pa.array(addresses, pa.uint64()),
                    "allocated_bytes": ints([a.allocated for a in args]),
                    "reserved_bytes": ints([a.reserved for a in args]),
                    "external_id": ints([a.external_id for a in args]),
                }
            ),
        )


def read(source: SourceFile, sink: Sink, options: IngestOptions, chunk_bytes: int) -> None:
    """Read one trace; again where its base time, found late, asks for it."""
    try:
        TraceReader(source, sink, options, chunk_bytes).run()
    except BaseFoundLateError as late:
        TraceReader(source, sink, options, chunk_bytes, late.base_ns).run()


def _has_fraction(start: Int64s, dur: Int64s) -> bool:
    """Whether some time is no whole microsecond."""
    return bool((start % 1000).any() or (dur % 1000).any())


def _may_be_sync(event: Event) -> bool:
    return type(event.tid) is int and event.tid >= STREAM_SYNC_TID


def _may_hold_syncs(events: Sequence[Event]) -> bool:
    try:
        return bool(max([e.tid for e in events]) >= STREAM_SYNC_TID)
    except TypeError:  # text among them
        return any(_may_be_sync(e) for e in events)


def _stream(tid: object) -> int | None:
    value = as_int(tid)
    if value is not None and value >= STREAM_SYNC_TID:
        value -= STREAM_SYNC_TID
    return value


def _no_minus(value: int | None) -> int | None:
    return None if value is None or value < 0 else value


def _device_type(args: InstantArgs) -> str | None:
    """c10::DeviceType: 0 is the CPU, all accelerators are above it."""
    if args.device_type is None:
        return None
    return "cpu" if args.device_type == 0 else "gpu"

"""Metrics of Prometheus: scrapes as text, and answers of its HTTP API as JSON.

Scrapes of dcgm-exporter and node_exporter hold counters of GPUs, NICs, interfaces, machines and
disks together; each goes to its own table. What is neither is counted and not kept.

The text holds no time of its own as a rule. Times come from the samples, from marks between
scrapes (``# 2026-07-21T03:01:07Z``, ``1784602867``), from the file's name, from its modification
time, in that order. Several scrapes in one file without marks have one time for the last.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, BinaryIO

from tracekit.errors import InputError
from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import exposition, fields, times
from tracekit.ingest.counters.exposition import Sample, Series
from tracekit.ingest.counters.fields import gpu_meaning
from tracekit.ingest.counters.gpu_samples import Gpu, GpuSamples
from tracekit.ingest.counters.gpu_words import MOST, blanks
from tracekit.ingest.counters.machine_metrics import (
    MachineMetric,
    MachineSamples,
    machine_metric,
)
from tracekit.ingest.counters.names import node_of_labels, pci_address, uuid_of
from tracekit.ingest.counters.net_samples import NetSamples
from tracekit.ingest.counters.node_exporter import NicMetric, nic_metric
from tracekit.ingest.counters.samples import count_local_time, count_other_metrics
from tracekit.ingest.counters.status import count_documented
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import lines, shape

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

NAME = "prometheus"
_METRIC_LINE = re.compile(
    rb"(?m)^(?:# (?:HELP|TYPE) [A-Za-z_:][\w:]* .+|[A-Za-z_:](?:[\w:]*\w)?(?:\{[^\n]*\})? "
    rb"[-+0-9.NIe]\S*(?: \d+)?)\r?$"
)
"""No metric's name ends with a colon: ``name: value`` is somebody's configuration."""
_OURS = re.compile(
    rb"(?m)^(?:# (?:HELP|TYPE) )?(?:DCGM_|dcgm_|node_|nvidia_smi_|gnmic_"
    rb"|[^\n{]*\{[^\n]*\bnode_guid=\")"
)
_API = re.compile(
    rb'^\s*\{\s*"status"\s*:\s*"(?:success|error)"|"resultType"\s*:\s*"(?:matrix|vector)"'
)
_BARE = re.compile(rb'"metric"\s*:\s*\{[^}]*"__name__"')

_EXPORTER_WINDOWS = {
    "DCGM_EXP_XID_ERRORS_COUNT": "xid_count",
    "DCGM_EXP_CLOCK_EVENTS_COUNT": "clock_event",
}
"""Counts of dcgm-exporter's own, over a sliding window."""


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise either by its first bytes."""
    start = head.lstrip()[:1]
    if start in (b"{", b"["):
        if _API.search(head[:65536]) or _BARE.search(head[:65536]):
            return Recognition("prometheus_api", "an answer of Prometheus' HTTP API", NAME)
        return None
    lines = _METRIC_LINE.findall(head)
    if len(lines) < 2 or not _OURS.search(head):
        return None
    is_gpu = b"DCGM_" in head or b"dcgm_" in head
    kind, what = ("dcgm", "dcgm-exporter") if is_gpu else ("prometheus", "an exporter")
    return Recognition(kind, f"metrics as {what} prints them", NAME)


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the file into gpu_sample, net_sample, host_sample and storage_sample."""
    with source.open() as stream:
        head = stream.read(1)
        while head and head in b" \t\r\n\xef\xbb\xbf":
            head = stream.read(1)
    with source.open() as stream:
        if head in (b"{", b"["):
            _read_api(stream, source, sink)
        else:
            _read_text(stream, source, sink)


class _Writer:
    """Sorts series into tables; what it does not know is counted."""

    def __init__(self, source: SourceFile, sink: Sink) -> None:
        self.sink = sink
        self.gpu = GpuSamples(sink, source)
        self.net = NetSamples(sink, source)
        self.machine = MachineSamples(sink, source)
        self.unknown_count = 0
        self.known_count = 0
        self.is_local = False
        """Whether marks between scrapes state times without a zone."""
        self.is_documented = False
        """Whether a counter was read whose format no real file has proved."""
        self._meanings: dict[int, tuple[Series, Any]] = {}
        self._numbers: dict[tuple[int, str | None], tuple[Series, int]] = {}

    def meaning(self, series: Series) -> tuple[Gpu, Meaning] | NicMetric | MachineMetric | None:
        """Whose and what a series is; remembered by the object that the tokenizer repeats."""
        held = self._meanings.get(id(series))
        if held is not None and held[0] is series:
            return held[1]  # type: ignore[no-any-return]  # one of the four
        meaning = (
            gpu_series(series)
            or nic_metric(series)
            or machine_metric(series, node_of_labels(series.labels))
        )
        if len(self._meanings) < exposition.MAX_CACHED:
            self._meanings[id(series)] = (series, meaning)
        return meaning

    def put(self, sample: Sample, time_ns: int | None, time_source: str | None) -> None:
        """One sample into its table."""
        whose = self.meaning(sample.series)
        if whose is None:
            self.unknown_count += 1
            return
        self.known_count += 1
        if isinstance(whose, NicMetric):
            self.is_documented |= whose.is_documented
            if whose.node is not None:
                self.net.of(whose.node)
            self.net.at(time_ns if time_source == "content" else None)
            self.net.add(
                sample.line,
                whose.port,
                whose.meaning,
                _whole(sample.number)
                if whose.meaning.kind == "cumulative"
                else _real(sample.number),
                original=sample.series.name,
                priority=whose.priority,
            )
            return
        if isinstance(whose, MachineMetric):
            time_ns = time_ns if time_source == "content" else None
            self.machine.add(sample.line, whose, sample.number, sample.series.name, time_ns)
            return
        gpu, meaning = whose
        text = sample.number
        source = time_source if time_ns is not None else None
        held = self._numbers.get((id(sample.series), source))
        if held is None or held[0] is not sample.series:
            held = (sample.series, self.gpu.series(gpu, meaning, source))
            if len(self._numbers) < exposition.MAX_CACHED:
                self._numbers[id(sample.series), source] = held
        number, counted = exposition.number_of(text)
        self.gpu.add(held[1], meaning, sample.line, time_ns, number, counted)

    def finish(self) -> None:
        """Write what is left, and count what no table has a place for."""
        if self.gpu.rows_count or self.gpu.missing_count:
            self.gpu.finish("local" if self.is_local else "epoch")
        if self.is_local:
            count_local_time(self.sink)
        if self.net.rows_count:
            self.net.finish()
        self.machine.finish()
        if self.is_documented:
            count_documented(self.sink, "Telemetry of UFM")
        if self.unknown_count:
            count_other_metrics(self.sink, self.unknown_count)


def _whole(number: str) -> object:
    counted = exposition.counted_of(number)
    return counted if counted is not None else number


def _real(number: str) -> object:
    value = exposition.value_of(number)
    return value if value is not None else number


_INDEX_LABELS = ("gpu", "gpu_id", "gpu_index", "index", "minor_number", "device")
"""Where dcgm-exporter names the GPU, and where other exporters and relabelled series do: the number
of its device file (``minor_number``, ``device``) last, since it need not be NVML's index."""
_INDEX = re.compile(r"(?:nvidia|gpu)?(\d{1,5})", re.I)
_PASSING = re.compile(r"(?:exported_)?(?:pod|container|namespace)|err_|dcgm_fi_|clock_event|xid")
"""Labels that change while a GPU is the same."""


def gpu_series(series: Series) -> tuple[Gpu, Meaning] | None:
    """The GPU and the counter that a series is; None for one that is no GPU's counter."""
    if not series.name.startswith(("DCGM_", "dcgm_", "nvidia_smi_")):
        return None
    labels = {k.lower(): v for k, v in series.labels.items()}
    is_smi = series.name.startswith("nvidia_smi_")
    meaning = (fields.of_smi_metric if is_smi else fields.of_dcgm)(series.name)
    if meaning is None:
        window = _EXPORTER_WINDOWS.get(series.name)
        if window is None:
            return None
        if window == "clock_event":
            event = labels.get("clock_event", "unknown")[:40]
            meaning = gpu_meaning(f"clock_event_count.{event}", 1.0, series.name)
        else:
            xid = labels.get("xid") or labels.get("err_code") or ""
            name = f"xid_count.{xid}" if xid.isdecimal() and len(xid) < 10 else "xid_count"
            meaning = gpu_meaning(name, 1.0, series.name)
    index = next(
        (i for name in _INDEX_LABELS if (i := _INDEX.fullmatch(labels.get(name, "")))), None
    )
    uuid = labels.get("uuid") or labels.get("gpu_uuid")
    pod = labels.get("exported_pod") or labels.get("pod") or None
    gpu = Gpu(
        node=node_of_labels(labels),
        uuid=uuid_of(uuid) or (uuid_of(f"GPU-{uuid}") if is_smi else None),
        pci=pci_address(labels.get("pci_bus_id", "")),
        nvml_index=int(index[1]) if index else None,
        model=(labels.get("modelname") or labels.get("model_name") or None),
        pod=pod,
        instance=labels.get("gpu_i_id") or _link(labels),
        labels=tuple(sorted((k, v) for k, v in labels.items() if not _PASSING.match(k))),
    )
    return gpu, meaning


def _link(labels: dict[str, str]) -> str | None:
    """A single NVLink is part of its GPU, as a MIG instance is."""
    return f"nvlink{labels['nvlink']}" if labels.get("nvlink") else None


# --- text -----------------------------------------------------------------------------------------


def _read_text(stream: BinaryIO, source: SourceFile, sink: Sink) -> None:
    writer = _Writer(source, sink)
    dump = _Dump(writer, sink)
    bad_count = 0

    def on_bad(line: int, why: str, text: str) -> None:
        nonlocal bad_count
        bad_count += 1
        sink.count(
            "bad_sample",
            doc="A line that should be a sample and cannot be read as one; its GPU is not guessed.",
            place=line,
            shape=f"{why}: {shape(text)}",
        )

    for sample in exposition.samples(lines(stream), on_bad, dump.on_other):
        dump.put(sample)
    dump.end(is_last=True)
    writer.finish()
    problem = streams.stream_problem(stream)
    sink.fact(place_kind="line", is_truncated_end=problem is not None, producer="prometheus text")
    if problem is not None:
        sink.fact(status="partial", reason=f"it breaks off ({problem})")
    elif bad_count:
        sink.fact(status="partial", reason=f"{bad_count} lines are no samples")
    elif not writer.known_count:
        sink.fact(status="ok", reason="it holds no counter of a GPU, NIC, machine or disk")


class _Dump:
    """The samples of one scrape, until it is known when it was made."""

    def __init__(self, writer: _Writer, sink: Sink) -> None:
        self._writer = writer
        self._sink = sink
        self._held: list[Sample] = []
        self._seen: set[int] = set()
        self._mark_ns: int | None = None

    def on_other(self, line: int, text: str) -> bool:
        """A mark of time opens a new scrape."""
        if text.startswith(("# HELP", "# TYPE", "# EOF", "# UNIT")):
            return False
        mark = times.of_line(text)
        if mark is None:
            return False
        self.end(is_last=False)
        self._mark_ns = mark
        self._writer.is_local |= isinstance(mark, times.Local)
        return True

    def put(self, sample: Sample) -> None:
        """A sample with its own time, or of the scrape that runs."""
        if sample.time_ns is not None and not self._writer.is_local:
            self._writer.put(sample, sample.time_ns, "content")
        elif self._mark_ns is not None:
            self._writer.put(sample, self._mark_ns, "content")
        else:
            key = id(sample.series)
            if key in self._seen:
                self.end(is_last=False)
            self._seen.add(key)
            self._held.append(sample)

    def end(self, *, is_last: bool) -> None:
        """The scrape is over. Without a mark, only the last one bears the file's time."""
        time_ns, time_source = self._writer.gpu.file_time if is_last else (None, None)
        if self._held and not is_last:
            self._sink.count(
                "dump_without_time",
                severity="info",
                doc="A scrape before the last one of a file that states no times: its order is "
                "known, its time is not.",
                place=self._held[0].line,
            )
        for sample in self._held:
            self._writer.put(sample, time_ns, time_source)
        self._held = []
        self._seen.clear()
        self._mark_ns = None


# --- JSON -----------------------------------------------------------------------------------------


def _read_api(stream: BinaryIO, source: SourceFile, sink: Sink) -> None:
    """The series of a matrix or vector, with or without the envelope of the HTTP API."""
    from tracekit.ingest.counters.range_answers import Answer, Export, is_export

    writer = _Writer(source, sink)
    sink.fact(place_kind="row", producer="prometheus HTTP API")
    with source.open() as again:
        made = Export if is_export(again.read(1 << 16)) else Answer
    answer: Answer | Export = made(stream)
    bad_series: set[int] = set()
    bad_pairs = 0
    for part in answer.parts():
        labels = dict(part.labels or {})
        name = labels.pop("__name__", "")
        bad_pairs += part.bad_count
        if not name:
            bad_series.add(part.place)
        elif part.pairs.height:
            bad_pairs += _put_pairs(part.place, Series(name, labels), part.pairs, writer)
    if bad_series:
        doc = "Series without a name, labels or samples as they should be."
        sink.count("bad_series", len(bad_series), doc=doc)
    if bad_pairs:
        doc = "Samples of a series that are no time and number: left out."
        sink.count("bad_sample", bad_pairs, doc=doc)
    problem = streams.stream_problem(stream)
    writer.finish()
    if answer.is_cut or problem is not None:
        sink.fact(is_truncated_end=True)
    if problem is not None or answer.is_cut:
        why = problem or "it ends in the middle of a series"
        sink.fact(status="partial", reason=f"it breaks off ({why})")
    elif bad_series or bad_pairs:
        what = f"{len(bad_series)} series and {bad_pairs} samples could not be read"
        sink.fact(status="partial", reason=what)
    elif not answer.series_count:
        _empty_answer(source, sink)


def _empty_answer(source: SourceFile, sink: Sink) -> None:
    """Say what an answer without series is."""
    with source.open() as stream:
        head = stream.read(1 << 16)
    if re.search(rb'"status"\s*:\s*"error"', head):
        sink.fact(status="ok", reason="Prometheus answered with an error: there are no samples")
    elif re.search(rb'"result"\s*:\s*\[\s*\]', head):
        sink.fact(status="ok", reason="Prometheus found no series: there are no samples")
    else:
        raise InputError(
            f"{source.path}: no series of an answer of Prometheus",
            hint='each is {"metric": {...}, "values": [[seconds, "number"], ...]}',
        )


def _put_pairs(place: int, series: Series, pairs: pl.DataFrame, writer: _Writer) -> int:
    """The samples of one series into their table; how many are no numbers."""
    import numpy as np
    import polars as pl

    whose = writer.meaning(series)
    if whose is None:
        writer.unknown_count += pairs.height
        return 0
    # Milliseconds, as Prometheus has them: the float holds them exactly.
    times_ms = np.round(pairs["seconds"].to_numpy() * 1000)
    is_known = np.isfinite(times_ms) & (np.abs(times_ms) < 9.2e12)
    if not is_known.all():
        pairs, times_ms = pairs.filter(pl.Series(is_known)), times_ms[is_known]
    bad = int((~is_known).sum())
    times_ns = times_ms.astype(np.int64) * 1_000_000
    texts = pairs["number"]
    writer.known_count += len(texts)
    if isinstance(whose, NicMetric):
        writer.is_documented |= whose.is_documented
        if whose.node is not None:
            writer.net.of(whose.node)
        for time_ns, text in zip(times_ns.tolist(), texts.to_list(), strict=True):
            writer.net.at(time_ns)
            printed = _whole(text) if whose.meaning.kind == "cumulative" else text
            writer.net.add(place, whose.port, whose.meaning, printed, original=series.name)
        return bad
    if isinstance(whose, MachineMetric):
        for time_ns, text in zip(times_ns.tolist(), texts.to_list(), strict=True):
            writer.machine.add(place, whose, text, series.name, time_ns)
        return bad
    gpu, meaning = whose
    plain = texts.cast(pl.Float64, strict=False)
    is_word = plain.is_null()
    if is_word.any():
        words = texts.filter(is_word).str.to_lowercase()
        no_numbers = int((~words.str.contains(r"^[-+]?(nan|inf|infinity)$")).sum())
        bad += no_numbers
        writer.gpu.missing_count += len(words) - no_numbers
    numbers = plain.fill_null(float("nan")).to_numpy()
    writer.gpu.missing_count += int((~np.isfinite(numbers)).sum()) - int(is_word.sum())
    good = np.isfinite(numbers) & ~blanks(np.nan_to_num(numbers))
    writer.gpu.missing_count += int(np.isfinite(numbers).sum() - good.sum())
    scaled = numbers * meaning.scale
    if (most := MOST.get(meaning.counter)) is not None and (beyond := good & (scaled > most)).any():
        writer.gpu.impossible(int(beyond.sum()), place)
        good &= ~beyond
    counted: np.ndarray | None = None
    if meaning.kind == "cumulative":
        is_count = (scaled >= 0) & (scaled < 2.0**64)
        writer.gpu.missing_count += int((good & ~is_count).sum())
        good &= is_count
        counted = rounded = np.round(np.where(good, scaled, 0.0)).astype(np.uint64)
        if meaning.scale == 1.0:
            # Digits are exact where a double is not.
            exact = texts.cast(pl.UInt64, strict=False)
            counted = exact.fill_null(pl.Series(rounded)).to_numpy()
    number = writer.gpu.series(gpu, meaning, "content")
    kept = int(good.sum())
    writer.gpu.add_many(
        np.full(kept, number, np.int32),
        np.full(kept, place, np.int64),
        times_ns[good],
        scaled[good] if counted is None else None,
        counted[good] if counted is not None else None,
    )
    return bad

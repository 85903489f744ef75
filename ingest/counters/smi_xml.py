"""``nvidia-smi -q -x``: the XML dump of every GPU; several may follow each other in one file.

The parser takes no entity, internal or external: the DOCTYPE names a file that is not opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO
from xml.parsers import expat

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters.fields import REASONS, gpu_meaning, scale_of
from tracekit.ingest.counters.gpu_samples import Gpu, GpuSamples
from tracekit.ingest.counters.names import pci_address, uuid_of
from tracekit.ingest.counters.processes import Processes
from tracekit.ingest.counters.samples import count_local_time, count_other_metrics
from tracekit.ingest.counters.times import local_ns, says_utc

NAME = "nvidia_smi_xml"
MAX_DEPTH = 32
MAX_TEXT = 4096
READ_BYTES = 1 << 20
MAX_DOCUMENT_BYTES = 16 << 20
"""Longest dump: one of 8 GPUs with their processes is 100 to 300 KB."""
_BEGIN = b"<?xml "

_PATHS = {
    "temperature/gpu_temp": "gpu_temperature",
    "temperature/memory_temp": "memory_temperature",
    "temperature/gpu_temp_slow_threshold": "gpu_slowdown_temperature",
    "power_readings/power_draw": "power",
    "gpu_power_readings/power_draw": "power",
    "gpu_power_readings/average_power_draw": "power",
    "gpu_power_readings/instant_power_draw": "power",
    "power_readings/enforced_power_limit": "power_limit",
    "power_readings/power_limit": "power_limit",
    "gpu_power_readings/current_power_limit": "power_limit",
    "gpu_power_readings/default_power_limit": "power_limit_default",
    "clocks/sm_clock": "sm_clock",
    "clocks/mem_clock": "memory_clock",
    "max_clocks/sm_clock": "sm_clock_max",
    "utilization/gpu_util": "gpu_utilisation",
    "utilization/memory_util": "memory_copy_utilisation",
    "fb_memory_usage/total": "memory_total",
    "fb_memory_usage/used": "memory_used",
    "fb_memory_usage/free": "memory_free",
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "pcie_generation",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "pcie_generation_max",
    "pci/pci_gpu_link_info/link_widths/current_link_width": "pcie_width",
    "pci/pci_gpu_link_info/link_widths/max_link_width": "pcie_width_max",
    "pci/replay_counter": "pcie_replays",
    "performance_state": "performance_state",
    "remapped_rows/remapped_row_corr": "remapped_rows_correctable",
    "remapped_rows/remapped_row_unc": "remapped_rows_uncorrectable",
    "remapped_rows/remapped_row_pending": "row_remap_pending",
    "remapped_rows/remapped_row_failure": "row_remap_failure",
    "retired_pages/multiple_single_bit_retirement/retired_count": "retired_pages_sbe",
    "retired_pages/double_bit_retirement/retired_count": "retired_pages_dbe",
    "retired_pages/pending_retirement": "retired_pages_pending",
}
_ECC = re.compile(
    r"ecc_errors/(volatile|aggregate)/(?:sram_|dram_|total_?)?"
    r"(correctable|uncorrectable|double_bit/total|single_bit/total)(?:_parity|_secded)?"
)
_REASON = re.compile(r"clocks_(?:event|throttle)_reasons/clocks_(?:event|throttle)_reason_(\w+)")
_VALUE = re.compile(r"P?([-+]?\d+(?:\.\d+)?)(?:x| ([A-Za-z%/]{1,6}))?")
_WORDS = {"active": 1.0, "not active": 0.0, "yes": 1.0, "no": 0.0}
_MISSING = frozenset({"n/a", "[n/a]", "", "not supported", "unknown error", "none"})


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise it by its root element."""
    if b"<nvidia_smi_log" in head[:4096]:
        return Recognition("nvidia_smi", "nvidia-smi -q -x", NAME)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the documents into gpu_sample, gpu_process and device."""
    with source.open() as stream:
        samples = GpuSamples(sink, source)
        state = _State(Processes(sink, samples), is_utc=says_utc(source.name))
        bad = 0
        for place, document in enumerate(_documents(stream), 1):
            if not _Document(samples, sink, state, place).read(document):
                bad += 1
                sink.count(
                    "bad_document",
                    doc="XML that breaks off or is none: the GPUs before the break are kept.",
                    place=place,
                )
            state.processes.end_reading()
        state.processes.finish()
        samples.finish("local" if state.is_local else "epoch")
        problem = streams.stream_problem(stream)
        sink.fact(place_kind="event", is_truncated_end=problem is not None)
        if state.is_local:
            count_local_time(sink)
        if problem is not None or bad:
            why = f"it breaks off ({problem})" if problem else f"{bad} documents are damaged"
            sink.fact(status="partial", reason=why)


class _State:
    def __init__(self, processes: Processes, *, is_utc: bool) -> None:
        self.is_local = False
        self.is_utc = is_utc
        self.processes = processes


def _documents(stream: BinaryIO) -> Iterator[bytes]:
    """The documents of a file: they begin with ``<?xml``. Of a longer one the rest is left out."""
    held = b""
    is_over = False
    while block := stream.read(READ_BYTES):
        seam = max(0, len(held) - len(_BEGIN))
        held += block
        while (start := held.find(_BEGIN, max(seam, 1))) > 0:
            if not is_over:
                yield held[:start]
            held, seam, is_over = held[start:], 0, False
        if len(held) > MAX_DOCUMENT_BYTES:
            if not is_over:
                yield held
            held, is_over = held[-len(_BEGIN) :], True
    if held and not is_over:
        yield held


class _Document:
    """One dump."""

    def __init__(self, samples: GpuSamples, sink: Sink, state: _State, place: int) -> None:
        self._samples = samples
        self._sink = sink
        self._state = state
        self._place = place
        self._path: list[str] = []
        self._text: list[str] = []
        self._time_ns: int | None = None
        self._gpu: dict[str, Any] | None = None
        self._values: list[tuple[str, str]] = []
        self._of_instances_count = 0
        self._index = -1
        self._processes = state.processes
        self._listed: list[dict[str, str]] | None = None
        self._process: dict[str, str] = {}

    def read(self, text: bytes) -> bool:
        """False where the XML is damaged; what came before counts."""
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.EntityDeclHandler = self._refuse
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        try:
            parser.Parse(text, True)
        except (expat.ExpatError, _RefusedError, LookupError, ValueError):
            # The last two: an encoding that Python does not know, or knows as no text.
            return False
        return True

    def _refuse(self, *_: object) -> None:
        raise _RefusedError

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._path) >= MAX_DEPTH:
            raise _RefusedError
        self._path.append(name)
        self._text = []
        if self._path == ["nvidia_smi_log", "gpu"]:
            self._index += 1
            self._gpu = {"pci": pci_address(attributes.get("id", ""))}
            self._values = []
            self._of_instances_count = 0
            self._listed = None

    def _characters(self, text: str) -> None:
        if len(self._text) < 64:
            self._text.append(text[:MAX_TEXT])

    def _end(self, name: str) -> None:
        path = "/".join(self._path[2:])
        text = "".join(self._text).strip()[:MAX_TEXT]
        if self._path == ["nvidia_smi_log", "timestamp"]:
            self._time_ns = local_ns(text)
            self._state.is_local |= self._time_ns is not None and not self._state.is_utc
        elif self._path == ["nvidia_smi_log", "gpu"]:
            self._write()
        elif self._gpu is not None and "mig_device" in self._path:
            self._of_instances_count += _VALUE.fullmatch(text) is not None
        elif self._gpu is not None:
            if path in ("uuid", "product_name", "minor_number"):
                self._gpu[path] = text
            elif path.startswith("processes"):
                self._of_process(path, text)
            elif text:
                self._values.append((path, text))
        self._path.pop()
        self._text = []

    def _of_process(self, path: str, text: str) -> None:
        """Of a list that is not given (N/A) nothing is known; an empty one says nobody."""
        if path == "processes":
            if not text:
                self._listed = self._listed or []
        elif path == "processes/process_info":
            self._listed = self._listed if self._listed is not None else []
            self._listed.append(self._process)
            self._process = {}
        elif path.startswith("processes/process_info/"):
            self._process[path.rpartition("/")[2]] = text

    def _write_processes(self, gpu: Gpu, time_ns: int | None, source: str) -> None:
        said = source if time_ns is not None else None
        if self._listed is None:
            return
        whole = [p for p in self._listed if not p.get("gpu_instance_id", "").isdecimal()]
        if not whole:
            if not self._listed:
                self._processes.nobody(self._place, gpu, time_ns, said)
            return  # of a GPU that is cut into instances, each has its own
        for process in whole:
            used = re.fullmatch(r"(\d{1,9}) MiB", process.get("used_memory", ""))
            if process.get("pid", "").isdecimal() and len(process["pid"]) < 10:
                self._processes.process(
                    self._place,
                    gpu,
                    int(process["pid"]),
                    time_ns,
                    said,
                    kind=process.get("type", "")[:8] or None,
                    name=process.get("process_name"),
                    memory_bytes=int(used[1]) << 20 if used else None,
                )

    def _write(self) -> None:
        fields = self._gpu or {}
        gpu = Gpu(
            uuid=uuid_of(fields.get("uuid")),
            pci=fields.get("pci"),
            model=(fields.get("product_name") or None),
        )
        self._samples.described(gpu)
        time_ns, source = self._time_ns, "content"
        if time_ns is None:
            time_ns, file_source = self._samples.file_time
            source = file_source or source
        self._write_processes(gpu, time_ns, source)
        summed: dict[str, float] = {}
        seen: set[str] = set()
        others = self._of_instances_count
        for path, text in self._values:
            counter = _counter_of(path)
            if counter is None or counter in seen:
                others += _VALUE.fullmatch(text) is not None
                continue
            value = self._number(text, counter)
            if value is None:
                continue
            if counter.startswith("ecc_"):
                summed[counter] = summed.get(counter, 0.0) + value
            else:
                seen.add(counter)
                self._put(gpu, counter, path, time_ns, source, value)
        for counter, value in summed.items():
            self._put(gpu, counter, "ecc_errors", time_ns, source, value)
        if others:
            count_other_metrics(self._sink, others)

    def _put(
        self, gpu: Gpu, counter: str, path: str, time_ns: int | None, source: str, value: float
    ) -> None:
        meaning = gpu_meaning(counter, 1.0, f"nvidia-smi -x {path}")
        series = self._samples.series(gpu, meaning, source if time_ns is not None else None)
        self._samples.add(series, meaning, self._place, time_ns, value)

    def _number(self, text: str, counter: str) -> float | None:
        """The number of an element in the counter's unit; None where there is none."""
        word = _WORDS.get(text.lower())
        if word is not None:
            return word
        reading = _VALUE.fullmatch(text)
        if reading is None:
            if text.lower() in _MISSING:
                self._samples.missing_count += 1
            return None
        scale = scale_of(counter, reading[2]) if reading[2] else 1.0
        return None if scale is None else float(reading[1]) * scale


class _RefusedError(Exception):
    """An entity, or nesting that no dump has."""


def _counter_of(path: str) -> str | None:
    known = _PATHS.get(path)
    if known is not None:
        return known
    if reason_path := _REASON.fullmatch(path):
        reason = REASONS.get(reason_path[1])
        return f"clock_event.{reason}" if reason else None
    if ecc := _ECC.fullmatch(path):
        kind = "dbe" if "un" in ecc[2] or "double" in ecc[2] else "sbe"
        return f"ecc_{kind}_{ecc[1]}"
    return None

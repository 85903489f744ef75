"""What nvidia-smi prints for people: ``-q``, the table without options, and ``--query-gpu``.

Each class takes the lines of one such output, as they stand among others in a capture, and says
of a line that is none of its own that it has ended. Seen: nvidia-smi 450 to 590.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from tracekit.ingest.base import Sink, stated_host
from tracekit.ingest.counters import fields
from tracekit.ingest.counters.fields import REASONS, gpu_meaning, scale_of
from tracekit.ingest.counters.gpu_samples import Gpu, GpuSamples
from tracekit.ingest.counters.gpu_words import GPU
from tracekit.ingest.counters.names import pci_address, uuid_of
from tracekit.ingest.counters.processes import MAX_PROCESSES, Processes
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.times import local_ns
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import shape

When = Callable[[int | None], tuple[int | None, str | None]]
"""The time of what was read at a local moment, and where it is from."""

_NUMBER = re.compile(r"P?([-+]?\d{1,20}(?:\.\d{1,9})?)(?: ?([A-Za-z%/]{1,8}))?")
_WORDS = {"active": 1.0, "not active": 0.0, "yes": 1.0, "no": 0.0}
_MISSING = frozenset({"", "n/a", "[n/a]", "[not supported]", "not supported", "none", "err!"})
_SEPARATOR = " : "
_MEASURED = frozenset({"0..1", "Hz", "W", "degrees Celsius", "bytes", "bytes/s", "ns"})
"""Units of counters beside which -q always prints one."""
_TYPES = frozenset({"C", "G", "C+G", "M", "M+C"})
MAX_LEVELS = 8
MAX_GPUS = 64
"""GPUs of one output whose order is believed to be that of their indices."""

_PATHS = {
    "temperature/gpu current temp": "gpu_temperature",
    "temperature/memory current temp": "memory_temperature",
    "temperature/gpu slowdown temp": "gpu_slowdown_temperature",
    "power readings/power draw": "power",
    "power readings/enforced power limit": "power_limit",
    "power readings/default power limit": "power_limit_default",
    "gpu power readings/power draw": "power",
    "gpu power readings/average power draw": "power",
    "gpu power readings/instantaneous power draw": "power",
    "gpu power readings/current power limit": "power_limit",
    "gpu power readings/default power limit": "power_limit_default",
    "clocks/sm": "sm_clock",
    "clocks/memory": "memory_clock",
    "max clocks/sm": "sm_clock_max",
    "utilization/gpu": "gpu_utilisation",
    "utilization/memory": "memory_copy_utilisation",
    "fb memory usage/total": "memory_total",
    "fb memory usage/used": "memory_used",
    "fb memory usage/free": "memory_free",
    "pci/gpu link info/pcie generation/current": "pcie_generation",
    "pci/gpu link info/pcie generation/max": "pcie_generation_max",
    "pci/gpu link info/link width/current": "pcie_width",
    "pci/gpu link info/link width/max": "pcie_width_max",
    "pci/replays since reset": "pcie_replays",
    "pci/tx throughput": "pcie_tx",
    "pci/rx throughput": "pcie_rx",
    "fan speed": "fan_speed",
    "performance state": "performance_state",
    "remapped rows/correctable error": "remapped_rows_correctable",
    "remapped rows/uncorrectable error": "remapped_rows_uncorrectable",
    "remapped rows/pending": "row_remap_pending",
    "remapped rows/remapping failure occurred": "row_remap_failure",
    "retired pages/single bit ecc": "retired_pages_sbe",
    "retired pages/double bit ecc": "retired_pages_dbe",
    "retired pages/pending page blacklist": "retired_pages_pending",
    "clocks event reasons counters/sw power capping": "sw_power_cap_time",
    "clocks event reasons counters/sync boost": "sync_boost_time",
    "clocks event reasons counters/sw thermal slowdown": "sw_thermal_time",
    "clocks event reasons counters/hw thermal slowdown": "hw_thermal_time",
    "clocks event reasons counters/hw power braking": "hw_power_brake_time",
}
"""Headings and key of ``-q``, in lower case, and the canonical counter."""
_ECC = re.compile(
    r"ecc errors/(volatile|aggregate)/(?:(?:s|d)ram )?"
    r"(correctable|uncorrectable|single bit/total|double bit/total)(?: parity| sec-ded)?"
)


class Output(Protocol):
    """One output while its lines are read."""

    def line(self, number: int, line: str) -> bool:
        """Take a line; False, and nothing taken, where it belongs to something else."""

    def end(self) -> None:
        """Write what is left."""


class _Block:
    """A GPU of ``-q``."""

    __slots__ = ("gpu", "is_listed", "place", "processes", "values")

    def __init__(self, place: int, gpu: Gpu) -> None:
        self.place = place
        self.gpu = gpu
        self.values: list[tuple[str, str]] = []
        """Headings and key, and what is said."""
        self.processes: list[dict[str, str]] | None = None
        self.is_listed = False
        """Whether something stands behind its processes, so that none was cut off."""


class QueryLog:
    """``nvidia-smi -q``, with or without ``-d``: headings and keys, indented by four blanks."""

    def __init__(self, sink: Sink, samples: GpuSamples, processes: Processes, when: When) -> None:
        self._sink = sink
        self._samples = samples
        self._processes = processes
        self._when = when
        self._moment: int | None = None
        self._attached = 0
        self._path: list[str] = []
        self._block: _Block | None = None
        self._blocks: list[_Block] = []
        self._is_whole = True
        """Whether all of its GPUs are held."""

    @staticmethod
    def begins(line: str) -> bool:
        """Whether a line is the title of such an output."""
        return line.startswith("=====") and line.strip("= ") == "NVSMI LOG"

    def line(self, number: int, line: str) -> bool:
        text = line.strip()
        if self._block is not None and self._block.processes is not None:
            self._block.is_listed |= not line.startswith(" " * 5)
        if not text:
            return True
        key, separator, value = text.partition(_SEPARATOR)
        if line.startswith(" "):
            if self._block is not None:
                level = min((len(line) - len(line.lstrip(" "))) // 4, MAX_LEVELS)
                self._key(self._block, level, key.strip().lower(), value.strip(), bool(separator))
            return True
        if separator:
            if key.strip() == "Timestamp":
                self._moment = local_ns(value)
            elif key.strip() == "Attached GPUs" and re.fullmatch(r"\d{1,4}", value):
                self._attached = int(value)
            return True
        word, _, address = text.partition(" ")
        pci = pci_address(address) if word == "GPU" else None
        if pci is None:
            return False
        if len(self._blocks) >= MAX_GPUS:
            self._write(is_whole=False)
        self._block = _Block(number, Gpu(pci=pci))
        self._blocks.append(self._block)
        return True

    def end(self) -> None:
        self._write(is_whole=len(self._blocks) == self._attached)
        self._processes.end_reading()

    def _key(self, block: _Block, level: int, key: str, value: str, is_pair: bool) -> None:
        self._path = [*self._path[: max(level - 1, 0)], key]
        heading = self._path[0]
        if heading == "processes":
            self._process(block, key, value, is_pair)
        elif heading == "mig devices" or not is_pair:
            return
        elif key == "gpu uuid":
            block.gpu = block.gpu._replace(uuid=uuid_of(value))
        elif key == "product name":
            block.gpu = block.gpu._replace(model=value[:200])
        else:
            block.values.append(("/".join(self._path), value))

    def _process(self, block: _Block, key: str, value: str, is_pair: bool) -> None:
        """A process begins with its instance where there are instances, else with its number."""
        if len(self._path) == 1:
            # N/A says nothing, None that nobody computes.
            block.is_listed = value.lower() == "none"
            block.processes = [] if not is_pair or block.is_listed else None
            return
        listed = block.processes
        if listed is None:
            return
        first = next(iter(listed[0]), key) if listed else key
        if key == first:
            listed.append({})
        listed[-1][key] = value

    def _write(self, *, is_whole: bool) -> None:
        """GPUs are listed in the order of their indices, and all of them unless -i chose some."""
        time_ns, source = self._when(self._moment)
        for index, block in enumerate(self._blocks):
            gpu = block.gpu._replace(nvml_index=index) if is_whole and self._is_whole else block.gpu
            self._samples.described(gpu)
            self._write_values(block, gpu, time_ns, source)
            self._write_processes(block, gpu, time_ns, source)
        self._is_whole = is_whole
        self._blocks, self._block = [], None

    def _write_values(
        self, block: _Block, gpu: Gpu, time_ns: int | None, source: str | None
    ) -> None:
        summed: dict[str, float] = {}
        seen: set[str] = set()
        other = 0
        for path, text in block.values:
            counter = _counter_of(path)
            if counter is None:
                other += _NUMBER.fullmatch(text) is not None
                continue
            # A number that lost its unit may have lost digits: the file breaks off there.
            is_cut = text[-1:].isdigit() and GPU[counter].unit in _MEASURED
            number = None if is_cut else _number(text, counter)
            if number is None:
                self._samples.missing_count += 1
            elif counter.startswith("ecc_"):
                summed[counter] = summed.get(counter, 0.0) + number
            elif counter not in seen:
                seen.add(counter)
                _add(self._samples, gpu, counter, f"nvidia-smi -q {path}", block.place,
                    time_ns, source, number)  # fmt: skip
            else:
                other += 1  # power at once beside its average
        for counter, number in summed.items():
            _add(self._samples, gpu, counter, "nvidia-smi -q ecc errors", block.place,
                time_ns, source, number)  # fmt: skip
        if other:
            count_other_metrics(self._sink, other)

    def _write_processes(
        self, block: _Block, gpu: Gpu, time_ns: int | None, source: str | None
    ) -> None:
        if block.processes is None or not block.is_listed:
            return
        if not block.processes:
            self._processes.nobody(block.place, gpu, time_ns, source)
        for process in block.processes:
            pid = process.get("process id", "")
            if process.get("gpu instance id", "").isdecimal() or not re.fullmatch(r"\d{1,9}", pid):
                continue  # of a GPU that is cut into instances, each has its own
            self._processes.process(
                block.place, gpu, int(pid), time_ns, source,
                kind=process.get("type", "")[:8] or None, name=process.get("name"),
                memory_bytes=_mebibytes(process.get("used gpu memory", "")),
            )  # fmt: skip


class Table:
    """``nvidia-smi`` without options: two lines a GPU in a box, and a box of processes."""

    def __init__(
        self, samples: GpuSamples, processes: Processes, when: When, moment: int | None
    ) -> None:
        self._samples = samples
        self._processes = processes
        self._time = when(moment)
        self._gpu: Gpu | None = None
        self._place = 0
        self._gpus: dict[int, Gpu] = {}
        self._listed: list[tuple[int, list[str]]] | None = None
        """Lines and words of the box of processes, once it is there."""
        self._is_whole = False

    @staticmethod
    def begins(line: str) -> bool:
        """Whether a line is the first of the box."""
        return line.startswith("| NVIDIA-SMI ") and "Driver Version" in line

    def line(self, number: int, line: str) -> bool:
        text = line.strip()
        if not text:
            return True
        if text[0] not in "|+":
            return False
        if text[-1] != text[0] or len(text) == 1:
            return True  # cut
        if text[0] == "+" or text.startswith(("|=", "| NVIDIA-SMI ")):
            self._is_whole |= bool(self._listed) and text[0] == "+"
            return True
        cells = [c.split() for c in text.strip("|").split("|")]
        if self._listed is not None or cells[0][:1] == ["Processes:"]:
            self._listed = [] if self._listed is None else self._listed
            if len(self._listed) < MAX_PROCESSES:
                self._listed.append((number, cells[0]))
        elif len(cells) == 3:
            self._device(number, *cells)
        return True

    def end(self) -> None:
        idle = set(self._gpus)
        if self._is_whole:
            for number, words in self._listed or ():
                idle.discard(self._process(number, words))
            for index in sorted(idle):
                self._processes.nobody(self._place, self._gpus[index], *self._time)
        self._processes.end_reading()

    def _process(self, number: int, words: list[str]) -> int:
        """GPU, instance and its part (since 450), pid, type, name, memory; the GPU's index or -1.

        The parts are numbers, like the pid, where the GPU is cut into instances: then it is none's.
        """
        at = 3 if words[1:2] == ["N/A"] else 1
        if len(words) < at + 4 or not re.fullmatch(r"\d{1,4}", words[0]):
            return -1
        gpu = self._gpus.get(int(words[0]))
        if gpu is not None and re.fullmatch(r"\d{1,9}", words[at]) and words[at + 1] in _TYPES:
            self._processes.process(
                number, gpu, int(words[at]), *self._time, kind=words[at + 1][:8],
                name=" ".join(words[at + 2 : -1]), memory_bytes=_mebibytes(words[-1]),
            )  # fmt: skip
        return int(words[0])

    def _device(self, number: int, first: list[str], second: list[str], third: list[str]) -> None:
        pci = pci_address(second[0]) if second else None
        if pci is not None and first and re.fullmatch(r"\d{1,4}", first[0]):
            # The name may be cut ("NVIDIA A100-SXM4-80..."): then it is no model.
            name = " ".join(first[1:-1])
            self._gpu = Gpu(
                pci=pci, nvml_index=int(first[0]), model=None if "..." in name else name or None
            )
            self._gpus[int(first[0])] = self._gpu
            self._place = number
            self._samples.described(self._gpu)
            self._add(number, "ecc_dbe_volatile", third[0] if third else "")
        elif self._gpu is not None and first[-2:-1] == ["/"] and second[1:2] == ["/"]:
            fan, heat, state, *_ = [*first, "", "", ""]
            for counter, cell in (
                ("fan_speed", fan), ("gpu_temperature", heat), ("performance_state", state),
                ("power", first[-3]), ("power_limit", first[-1]),
                ("memory_used", second[0]), ("memory_total", second[2] if second[2:] else ""),
                ("gpu_utilisation", third[0] if third else ""),
            ):  # fmt: skip
                self._add(number, counter, cell)
            self._gpu = None

    def _add(self, number: int, counter: str, cell: str) -> None:
        assert self._gpu is not None  # noqa: S101 - asked by ``_device``
        value = _number(cell, counter)
        if value is None:
            self._samples.missing_count += 1
            return
        _add(self._samples, self._gpu, counter, "nvidia-smi", number, *self._time, value)


class QueryRows:
    """Rows of ``--query-gpu``: a header of query names, then a row a GPU and reading."""

    def __init__(self, header: str, sink: Sink, samples: GpuSamples, when: When) -> None:
        self._sink = sink
        self._samples = samples
        self._when = when
        self._names = header.split(", ")
        self._columns = _columns(header)
        self._keys = {n: i for i, n in enumerate(self._names)}

    @staticmethod
    def begins(line: str) -> bool:
        """Whether a line is a header: names of queries only, two of which are counters."""
        return len(line) <= 65536 and len(_columns(line)) > 1

    def line(self, number: int, line: str) -> bool:
        cells = line.strip().split(", ")
        if len(cells) != len(self._names):
            return not line.strip()
        if cells == self._names:
            return True
        said = {name: cells[at].strip() for name, at in self._keys.items() if name in _WHOSE}
        index = said.get("index", "")
        gpu = Gpu(
            node=stated_host(said.get("hostname")),
            uuid=uuid_of(said.get("uuid", said.get("gpu_uuid"))),
            pci=pci_address(said.get("pci.bus_id", said.get("gpu_bus_id", ""))),
            nvml_index=int(index) if re.fullmatch(r"\d{1,4}", index) else None,
            model=said.get("name", said.get("gpu_name", ""))[:200] or None,
        )
        self._samples.described(gpu)
        time_ns, source = self._when(local_ns(said.get("timestamp", "")))
        for at, meaning, unit in self._columns:
            text = cells[at].strip()
            value = _number(text, meaning.counter, unit)
            if value is not None:
                series = self._samples.series(gpu, meaning, source)
                self._samples.add(series, meaning, number, time_ns, value)
            elif text.lower() in _MISSING or text.startswith("["):  # [Unknown Error] and the like
                self._samples.missing_count += 1
            else:
                self._sink.count(
                    "bad_number",
                    doc="A cell that should hold a number does not.",
                    place=number,
                    shape=shape(text),
                )
        return True

    def end(self) -> None:
        """Rows are written as they are read."""


_WHOSE = frozenset(
    {"timestamp", "index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "name", "gpu_name",
     "hostname"}
)  # fmt: skip
"""Fields that say whose the numbers are, and when."""


def _columns(header: str) -> list[tuple[int, Meaning, str | None]]:
    """Columns of counters, with their unit; none where a name is no query's."""
    columns = []
    for at, cell in enumerate(header.split(", ")):
        name, _, bracket = cell.partition(" [")
        if not re.fullmatch(r"[A-Za-z_][\w.]{0,80}", name):
            return []
        unit = bracket.rstrip("]") or None
        meaning = fields.of_smi(name, unit)
        if meaning is not None:
            columns.append((at, meaning._replace(scale=1.0), unit))
    return columns


def _add(
    samples: GpuSamples, gpu: Gpu, counter: str, original: str, place: int,
    time_ns: int | None, source: str | None, number: float,
) -> None:  # fmt: skip
    """A number in the unit of its counter."""
    meaning = gpu_meaning(counter, 1.0, original)
    samples.add(samples.series(gpu, meaning, source), meaning, place, time_ns, number)


def _counter_of(path: str) -> str | None:
    known = _PATHS.get(path)
    if known is not None:
        return known
    heading, _, rest = path.partition("/")
    if heading in ("clocks event reasons", "clocks throttle reasons"):
        # Two of them stand indented below the hardware's slowdown.
        word = rest.rpartition("/")[2].replace(" ", "_")
        reason = REASONS.get("gpu_idle" if word == "idle" else word)
        return f"clock_event.{reason}" if reason else None
    if ecc := _ECC.fullmatch(path):
        kind = "dbe" if "un" in ecc[2] or "double" in ecc[2] else "sbe"
        return f"ecc_{kind}_{ecc[1]}"
    return None


def _number(text: str, counter: str, unit: str | None = None) -> float | None:
    """What is printed, in the counter's unit; ``unit`` where a number stands without one."""
    word = _WORDS.get(text.lower())
    if word is not None:
        return word
    if re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", text):
        return float(int(text, 16))
    number = _NUMBER.fullmatch(text)
    if number is None:
        return None
    printed = number[2] if number[2] not in (None, "x") else unit
    scale = scale_of(counter, printed) if printed else 1.0
    return None if scale is None else float(number[1]) * scale


def _mebibytes(text: str) -> int | None:
    amount = re.fullmatch(r"(\d{1,9}) ?MiB", text)
    return int(amount[1]) << 20 if amount else None

"""Tables of nccl-tests, in all their variants, also where other output was printed into them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from msgspec import Struct, field

from tracekit.ingest.base import Sink
from tracekit.ingest.nccl.lines import without_launcher
from tracekit.ingest.nccl.rows import Rows, as_int, name_of
from tracekit.values import MAX_PRINTED

COLUMNS = (
    "place", "benchmark", "ranks_count", "message_bytes", "elements_count", "dtype", "reduction",
    "root", "is_in_place", "dur_ns", "algorithm_bytes_per_s", "bus_bytes_per_s", "errors_count",
)  # fmt: skip
DTYPES = {
    b"int8": "Int8", b"char": "Int8", b"uint8": "UInt8", b"int32": "Int32", b"int": "Int32",
    b"uint32": "UInt32", b"int64": "Int64", b"uint64": "UInt64", b"half": "Half",
    b"float": "Float", b"double": "Double", b"bfloat16": "BFloat16", b"f8e4m3": "Float8_e4m3fn",
    b"fp8_e4m3": "Float8_e4m3fn", b"f8e5m2": "Float8_e5m2", b"fp8_e5m2": "Float8_e5m2",
}  # fmt: skip
_REDUCTIONS = frozenset({b"sum", b"prod", b"max", b"min", b"avg", b"none", b"mulsum"})
WORDS = (b"# nThread", b"# Collective test", b"# nccl-tests", b" redop ")
"""What a table begins with; the last is of its header, where no more than the table was kept."""
_START = re.compile(rb"# Collective test starting: (\w{1,40})")
_VERSION = re.compile(rb"# nccl-tests version (\S{1,20}) nccl-headers=(\d+) nccl-library=(\d+)")
_SETTINGS = re.compile(
    rb"# nThreads? (\d+) nGpus (\d+) minBytes (\d+) maxBytes (\d+) step: (\d+)\((factor|bytes)\)"
)
_DEVICE = re.compile(
    rb"#\s+Rank +(\d+)(?: +Group +(\d+))? +Pid +(\d+) +on +([\w.-]{1,80}) +device +(\d+) "
    rb"+\[(\w[\w:.]{1,20})\] +([\w .-]{1,60})"
)
_TAG = re.compile(rb"(\[\d{1,6}\])\s")
_HEADER = re.compile(rb"#\s+size\s+count\s+type\s")
_AVERAGE = re.compile(rb"# Avg bus bandwidth\s*: ([\d.]+)")
_BOUNDS = re.compile(rb"# Out of bounds values\s*: (\d+) (\w+)")
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|N/A|-?nan|inf")
_DATE = re.compile(rb"\[?\d{4}-\d\d-\d\d[T ]?")

MAX_HELD_ROWS = 10_000
MIN_RATED = 5.0
"""GB/s of algbw from which on two decimals give the ratio to about 0.2 %."""
RATIO_TOLERANCE = 0.01

Event = Callable[[int, str, str, list[str]], None]


class Section(Struct):
    """One benchmark of a file: from its header to its average."""

    place: int
    benchmark: str | None = None
    version: str | None = None
    ranks: int = 0
    min_bytes: int | None = None
    max_bytes: int | None = None
    step: int | None = None
    is_factor: bool = True
    columns: tuple[bytes, ...] = ()
    rows: int = 0
    is_excerpt: bool = False
    """Whether it begins with the header of its columns: how many rows there were is not known."""
    average: float | None = None
    out_of_bounds: int | None = None
    partial: list[bytes] = field(default_factory=list)
    partial_place: int = 0
    held: list[tuple[object, ...]] = field(default_factory=list)
    """Rows that wait for the benchmark's name, of which the table itself may be the only proof."""
    ratios: list[float] = field(default_factory=list)
    """busbw over algbw of each row that has digits enough to tell."""
    kinds: set[tuple[bool, bool]] = field(default_factory=set)
    """Of each row: whether it names a reduction, and a root."""

    @property
    def lead(self) -> int:
        """Columns before the measured ones."""
        for index, name in enumerate(self.columns):
            if name.endswith(b"time"):
                return index
        return len(self.columns)

    @property
    def expected_rows(self) -> int | None:
        """Sizes that the settings ask for."""
        if self.min_bytes is None or self.max_bytes is None or not self.step:
            return None
        if self.max_bytes < self.min_bytes:
            return None
        if not self.is_factor:
            return (self.max_bytes - self.min_bytes) // self.step + 1
        if self.step < 2 or self.min_bytes < 1:
            return None
        return int(math.log(self.max_bytes / self.min_bytes, self.step) + 1e-9) + 1


class BenchReader:
    """Follows the tables through a job's output."""

    def __init__(self, sink: Sink, event: Event) -> None:
        self.sink = sink
        self.event = event
        self.rows = Rows(sink, "bench_result", COLUMNS)
        self.section: Section | None = None
        self.sections_count = 0
        self.rows_count = 0
        self.odd_count = 0
        self.odd_place: int | None = None
        self.producer: str | None = None
        self._version: str | None = None

    def take(self, line: bytes, place: int, *, is_piece: bool) -> None:
        """A line that is not NCCL's, or what stood before NCCL's message in a line."""
        if self.section is None and b"#" not in line:
            return
        text = without_launcher(line) if not line.startswith(b"#") else line
        if tag := _TAG.match(line):
            # Launchers that tag what a process writes at once tag the parts of a row too.
            text = line.replace(tag[1], b" ").lstrip()
        if text.startswith(b"#"):
            self._comment(text, place)
        elif self.section is not None and self.section.columns:
            self._cells(text, place)

    # --- comments --------------------------------------------------------------------------------

    def _comment(self, text: bytes, place: int) -> None:
        version = _VERSION.match(text)
        if version:
            self._version = version[1].decode("ascii", "replace")
            self.producer = f"nccl-tests {self._version}"
            return
        start = _START.match(text)
        if start:
            self._open(place).benchmark = start[1].decode()
            return
        settings = _SETTINGS.match(text)
        if settings:
            self._settings(settings, place)
            return
        section = self.section
        if section is None and _HEADER.match(text):
            section = self._open(place)
            section.is_excerpt = True
        if section is None:
            return
        device = _DEVICE.match(text)
        if device:
            self._device(section, device, place)
        elif _HEADER.match(text):
            section.columns = tuple(text.lstrip(b"# ").split())
        elif average := _AVERAGE.match(text):
            section.average = float(average[1]) if average[1].count(b".") <= 1 else None
            self._close(place)
        elif bounds := _BOUNDS.match(text):
            section.out_of_bounds = as_int(bounds[1])

    def _open(self, place: int) -> Section:
        self._close(place)
        self.section = Section(place, version=self._version)
        self.sections_count += 1
        return self.section

    def _settings(self, settings: re.Match[bytes], place: int) -> None:
        section = self.section
        if section is None or section.min_bytes is not None:
            section = self._open(place)
        section.min_bytes, section.max_bytes = as_int(settings[3]), as_int(settings[4])
        section.step, section.is_factor = as_int(settings[5]), settings[6] == b"factor"

    def _device(self, section: Section, device_line: re.Match[bytes], place: int) -> None:
        section.ranks += 1
        self.producer = self.producer or "nccl-tests"
        rank, group, pid, host, device, bus, model = device_line.groups()
        fields = [
            f"rank={rank.decode()}", f"pid={pid.decode()}", f"host={host.decode()}",
            f"device={device.decode()}", f"pci={bus.decode()}",
            f"model={name_of(model.decode('ascii', 'replace').strip())}",
        ]  # fmt: skip
        if group:
            fields.append(f"group={group.decode()}")
        self.event(place, "bench_device", "info", fields)

    def _close(self, place: int) -> None:
        section = self.section
        if section is None:
            return
        self._end_row(section)
        is_inferred = section.benchmark is None
        if is_inferred:
            section.benchmark = benchmark_of(section)
        self._release(section)
        expected = section.expected_rows
        if section.ranks == 1 and not section.rows and section.average is not None:
            expected = 0  # what one GPU alone cannot do (sendrecv_perf) has no rows, and ends well
        is_complete = section.average is not None and (expected is None or section.rows >= expected)
        is_complete |= section.is_excerpt and section.rows > 0
        fields = {
            "start": section.place,
            "benchmark": section.benchmark,
            "named_by": None
            if section.benchmark is None
            else "behaviour"
            if is_inferred
            else "file",
            "version": section.version,
            "ranks": section.ranks or None,
            "min_bytes": section.min_bytes,
            "max_bytes": section.max_bytes,
            "rows": section.rows,
            "expected_rows": expected,
            "average_bus_gb_per_s": section.average,
            "out_of_bounds": section.out_of_bounds,
            "complete": "yes" if is_complete else "no",
        }
        kept = [f"{name}={value}" for name, value in fields.items() if value is not None]
        self.event(place, "bench", "info" if is_complete else "warning", kept)
        self.section = None

    # --- rows ------------------------------------------------------------------------------------

    def _cells(self, text: bytes, place: int) -> None:
        section = self.section
        assert section is not None  # noqa: S101 - asked before
        words = text.split()
        if words and _DATE.match(words[0]) and b":" not in words[0][:10]:
            words = words[1:] if b":" in words[0] else words[2:]
        if _is_row_start(words):
            self._end_row(section)
            section.partial, section.partial_place = words, place
        elif section.partial and _are_cells(words, section):
            section.partial += words
        else:
            return
        if len(section.partial) >= len(section.columns):
            self._end_row(section)

    def _end_row(self, section: Section) -> None:
        words, section.partial = section.partial, []
        if not words:
            return
        lead = section.lead
        width = len(section.columns) - lead
        groups = section.columns[lead:].count(b"time") or 1
        each = width // groups
        if len(words) < lead + each or each < 3:
            self.odd_count += 1
            self.odd_place = self.odd_place or section.partial_place
            return
        named = dict(zip(section.columns[:lead], words[:lead], strict=False))
        section.rows += 1
        for index in range(groups):
            cells = words[lead + index * each : lead + (index + 1) * each]
            if len(cells) == each:
                names = section.columns[lead + index * each : lead + (index + 1) * each]
                values = dict(zip(names, cells, strict=True))
                self._add(section, named, values, is_in_place=index == 1)

    def _add(
        self,
        section: Section,
        named: dict[bytes, bytes],
        values: dict[bytes, bytes],
        *,
        is_in_place: bool,
    ) -> None:
        self.rows_count += 1
        root = as_int(named.get(b"root"))
        reduction = named.get(b"redop")
        algbw, busbw = _float(values.get(b"algbw")), _float(values.get(b"busbw"))
        if algbw is not None and busbw is not None and algbw >= MIN_RATED:
            section.ratios.append(busbw / algbw)
        section.kinds.add((reduction in _REDUCTIONS - {b"none"}, root is not None and root >= 0))
        if len(section.held) >= MAX_HELD_ROWS:
            self._release(section)
        section.held.append(
            (
                section.partial_place,
                section.ranks or None,
                as_int(named.get(b"size")),
                as_int(named.get(b"count")),
                DTYPES.get(named.get(b"type", b"")),
                reduction.decode() if reduction in _REDUCTIONS and reduction != b"none" else None,
                root if root is not None and root >= 0 else None,
                is_in_place,
                _scaled(values.get(b"time"), 1000),
                _rate(values.get(b"algbw")),
                _rate(values.get(b"busbw")),
                as_int(values.get(b"#wrong")),
            )
        )  # fmt: skip

    def _release(self, section: Section) -> None:
        for place, *rest in section.held:
            self.rows.add((place, section.benchmark, *rest))
        section.held.clear()

    def finish(self, place: int) -> None:
        """The end of the file: what is open is incomplete."""
        self._close(place)
        self.rows.flush()
        self.sink.count(
            "odd_bench_row",
            self.odd_count,
            doc="Rows of an nccl-tests table that were cut off or torn apart.",
            place=self.odd_place,
        )


def benchmark_of(section: Section) -> str | None:
    """The benchmark that alone fits an unnamed table; None where several do.

    busbw / algbw is 2(n-1)/n for an all-reduce of n ranks, (n-1)/n for a reduce-scatter and all
    that gather or scatter, 1 for the rest (nccl-tests, doc/PERFORMANCE.md). Reductions and roots
    tell more: sendrecv_perf prints a reduction too, which it does not do.
    """
    n = section.ranks
    if n < 2 or not section.ratios or len(section.kinds) != 1:
        return None
    low, high = min(section.ratios), max(section.ratios)
    ((reduces, has_root),) = section.kinds
    known = {
        ("all_reduce_perf", True, False): 2 * (n - 1) / n,
        ("reduce_scatter_perf", True, False): (n - 1) / n,
        ("sendrecv_perf", True, False): 1.0,
        ("reduce_perf", True, True): 1.0,
        ("broadcast_perf", False, True): 1.0,
        ("gather_perf", False, True): (n - 1) / n,
        ("scatter_perf", False, True): (n - 1) / n,
        ("all_gather_perf", False, False): (n - 1) / n,
        ("alltoall_perf", False, False): (n - 1) / n,
        ("hypercube_perf", False, False): 1.0,
    }
    fitting = [
        name
        for (name, *kind), ratio in known.items()
        if kind == [reduces, has_root]
        and abs(low / ratio - 1) <= RATIO_TOLERANCE
        and abs(high / ratio - 1) <= RATIO_TOLERANCE
    ]
    return fitting[0] if len(fitting) == 1 and fitting[0] != "hypercube_perf" else None


def _is_row_start(words: list[bytes]) -> bool:
    return len(words) >= 4 and words[0].isdigit() and words[1].isdigit() and words[2] in DTYPES


def _are_cells(words: list[bytes], section: Section) -> bool:
    if not words or len(section.partial) + len(words) > len(section.columns):
        return False
    return all(_NUMBER.fullmatch(w) for w in words)


def _scaled(text: bytes | None, factor: int) -> int | None:
    value = _float(text)
    return None if value is None or abs(value) > MAX_PRINTED else round(value * factor)


def _rate(text: bytes | None) -> float | None:
    value = _float(text)
    return None if value is None else value * 1e9


def _float(text: bytes | None) -> float | None:
    if text is None or not _NUMBER.fullmatch(text) or len(text) > 30:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None

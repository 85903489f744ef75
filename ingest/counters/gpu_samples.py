"""Rows of gpu_sample and device: gathered by series, written in blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.ingest.base import Sink, SourceFile, write_columns
from tracekit.ingest.counters import times
from tracekit.ingest.counters.gpu_words import is_blank
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.values import fitted, tell

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BLOCK_ROWS = 200_000
"""Rows that are gathered before they are written."""
NAME_MAX_LENGTH = 200

_PCI = re.compile(
    r"(?:PCI:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-9a-f]))?", re.I
)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,80}")


def pci_address(text: str) -> str | None:
    """dddddddd:bb:dd.f in lower case, from any spelling; None for what is no PCI address."""
    found = _PCI.fullmatch(text.strip())
    if found is None:
        return None
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):08x}:{bus}:{device}.{function or '0'}".lower()


def uuid_of(text: str | None) -> str | None:
    """A GPU's or MIG device's UUID; None for what is none."""
    text = (text or "").strip()
    return text if _UUID.fullmatch(text) else None


class Gpu(NamedTuple):
    """Which GPU a series is about, as far as its source says."""

    node: str | None = None
    uuid: str | None = None
    pci: str | None = None
    nvml_index: int | None = None
    model: str | None = None
    pod: str | None = None
    instance: str | None = None
    """MIG instance: its samples are not the whole GPU's."""

    @property
    def device_id(self) -> str | None:
        """UUID, else PCI address; of a MIG instance with the instance behind it."""
        whole = self.uuid or self.pci
        return f"{whole}/{self.instance}" if whole and self.instance else whole


class Samples:
    """Gathers the samples of one file. ``finish`` writes what is left and the facts of time.

    Every series is described once (``series``); its samples hold its number only.
    """

    def __init__(self, sink: Sink, source: SourceFile) -> None:
        self._sink = sink
        self.file_time = times.of_file(source)
        self._described: dict[tuple[Any, ...], int] = {}
        self._series: list[tuple[Any, ...]] = []
        self._devices: dict[tuple[Any, ...], Gpu] = {}
        self._ids: list[int] = []
        self._places: list[int] = []
        self._times: list[int | None] = []
        self._values: list[float | None] = []
        self._counted: list[int | None] = []
        self._blocks: list[tuple[pa.Array, ...]] = []
        self._blocks_count = 0
        self.rows_count = 0
        self.blanks_count = 0
        self._window: tuple[int, int] | None = None

    def series(self, gpu: Gpu, meaning: Meaning, time_source: str | None) -> int:
        """The number of a series, to be given with its samples."""
        key = (gpu, meaning, time_source)
        number = self._described.get(key)
        if number is None:
            number = self._described[key] = len(self._series)
            self._series.append(
                (
                    gpu.node,
                    gpu.device_id,
                    gpu.nvml_index,
                    gpu.pod,
                    meaning.counter,
                    meaning.original,
                    meaning.kind,
                    meaning.unit,
                    time_source,
                )
            )
            self.described(gpu)
        return number

    def described(self, gpu: Gpu) -> None:
        """Keep what is said of a GPU, whether or not it has samples."""
        named = (gpu.node, gpu.uuid, gpu.pci, gpu.nvml_index)
        if any(v is not None for v in named[1:]):
            self._devices.setdefault(named, gpu)

    def add(
        self, series: int, meaning: Meaning, place: int, time_ns: int | None, number: float | None,
        counted: int | None = None,
    ) -> bool:  # fmt: skip
        """One sample; False where the number is none, or one of DCGM's blanks.

        ``number`` is as the source prints it: blanks are told before it is scaled. ``counted`` is
        its exact value, where the source prints digits only.
        """
        if number is None or number - number != 0 or is_blank(counted if counted else number):
            self.blanks_count += 1
            return False
        self._ids.append(series)
        self._places.append(place)
        self._times.append(time_ns)
        if meaning.kind == "cumulative":
            scaled = number * meaning.scale
            if not 0 <= scaled <= 2.0**64:
                self._drop_last()
                return False
            exact = counted if counted is not None and meaning.scale == 1.0 else round(scaled)
            if exact >= 2**64:
                self._drop_last()
                return False
            self._values.append(None)
            self._counted.append(exact)
        else:
            self._values.append(number * meaning.scale)
            self._counted.append(None)
        self.rows_count += 1
        if len(self._ids) >= BLOCK_ROWS:
            self.flush()
        return True

    def _drop_last(self) -> None:
        self._ids.pop()
        self._places.pop()
        self._times.pop()
        self.blanks_count += 1

    def add_many(
        self,
        series: np.ndarray,
        places: np.ndarray,
        times_ns: np.ndarray,
        values: np.ndarray | None,
        counted: np.ndarray | None,
    ) -> None:
        """Samples as arrays, already scaled and without blanks; one of the last two is None."""
        import pyarrow as pa

        if not len(series):
            return
        self.rows_count += len(series)
        none = pa.nulls(len(series), pa.float64() if values is None else pa.uint64())
        self._blocks.append(
            (
                pa.array(series, pa.int32()),
                pa.array(places, pa.int64()),
                pa.array(times_ns, pa.int64()),
                none if values is None else pa.array(values, pa.float64()),
                none if counted is None else pa.array(counted, pa.uint64()),
            )
        )
        self._blocks_count += len(series)
        if self._blocks_count >= BLOCK_ROWS:
            self._flush_blocks()

    def _flush_blocks(self) -> None:
        import pyarrow as pa

        if self._blocks:
            columns = [pa.concat_arrays(list(c)) for c in zip(*self._blocks, strict=True)]
            self._write(*columns)
            self._blocks.clear()
            self._blocks_count = 0

    def _widen(self, low: int, high: int) -> None:
        old = self._window or (low, high)
        self._window = (min(low, old[0]), max(high, old[1]))

    def flush(self) -> None:
        """Write what has gathered."""
        import pyarrow as pa

        if not self._ids:
            return
        self._write(
            pa.array(self._ids, pa.int32()),
            self._places,
            self._times,
            self._values,
            self._counted,
        )
        for each in (self._ids, self._places, self._times, self._values, self._counted):
            each.clear()

    def _write(
        self,
        ids: pa.Array,
        places: Sequence[int] | pa.Array,
        times_ns: Sequence[int | None] | pa.Array,
        values: Sequence[float | None] | pa.Array,
        counted: Sequence[int | None] | pa.Array,
    ) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        names = (
            "node", "device_id", "nvml_index", "pod",
            "counter", "original_name", "kind", "unit", "time_source",
        )  # fmt: skip
        described, misfits = fitted(
            "gpu_sample", dict(zip(names, zip(*self._series, strict=True), strict=True))
        )
        tell(self._sink.count, described, misfits)
        columns: dict[str, Any] = {
            "place": places,
            "time_ns": times_ns,
            "value": values,
            "counted": counted,
        }
        for name in names:
            words = described.column(name).combine_chunks()
            if name == "nvml_index":
                columns[name] = words.take(ids)
                continue
            words = words.dictionary_encode()
            columns[name] = pa.DictionaryArray.from_arrays(
                words.indices.take(ids), words.dictionary
            )
        rows, misfits = fitted("gpu_sample", columns)
        tell(self._sink.count, rows, misfits)
        ends = pc.min_max(rows.column("time_ns"))
        if ends["min"].is_valid:
            self._widen(ends["min"].as_py(), ends["max"].as_py())
        self._sink.write("gpu_sample", rows)

    def finish(self, basis: str = "epoch") -> None:
        """Write what is left, the devices, and what time the file covers."""
        self.flush()
        self._flush_blocks()
        if self._devices:
            found = list(self._devices.values())
            names = ("node", "nvml_index", "uuid", "pci", "model")
            write_columns(
                self._sink, "device", {name: [getattr(g, name) for g in found] for name in names}
            )
        if self.blanks_count:
            self._sink.count(
                "no_value",
                self.blanks_count,
                severity="info",
                doc="Fields that say that there is no number (N/A, NaN or one of DCGM's blanks): "
                "no sample was written.",
            )
        if self._window is not None:
            low, high = self._window
            self._sink.fact(time_basis=basis, window_start_ns=low, window_end_ns=high)
        else:
            self._sink.fact(time_basis="none")
        hosts = {g.node for g in self._devices.values()}
        if len(hosts) == 1 and (host := hosts.pop()) is not None:
            self._sink.fact(host_name=host)

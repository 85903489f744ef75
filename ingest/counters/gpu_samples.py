"""Rows of gpu_sample and device."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, NamedTuple

from tracekit.ingest.base import Sink, SourceFile, write_columns
from tracekit.ingest.counters.gpu_words import MOST, is_blank
from tracekit.ingest.counters.samples import Samples
from tracekit.ingest.counters.vocabulary import Meaning

_NO_MODEL = re.compile(
    r"\[.{0,40}\]|n/?a|-{1,3}|none|null|nan|unknown|err!|not (?:available|supported)", re.I
)
"""What is printed in place of a model that nobody knows, and would make unlike GPUs alike."""


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
    labels: Hashable = None
    """What else its source says of it, which tells it from others where it has no name."""

    @property
    def device_id(self) -> str | None:
        """UUID, else PCI address; of a MIG instance with a stroke and its number, or that alone."""
        whole = self.uuid or self.pci
        return f"{whole or ''}/{self.instance}" if self.instance else whole


class GpuSamples(Samples):
    """The samples of one file. ``finish`` writes what is left and the facts of time."""

    table = "gpu_sample"
    columns = (
        "node", "device_id", "nvml_index", "pod",
        "counter", "original_name", "kind", "unit", "time_source",
    )  # fmt: skip
    device_columns = ("device_id", "nvml_index")
    devices = "GPUs"

    def __init__(self, sink: Sink, source: SourceFile) -> None:
        super().__init__(sink, source)
        self._devices: dict[tuple[Any, ...], Gpu] = {}

    def series(self, gpu: Gpu, meaning: Meaning, time_source: str | None) -> int:
        """The number of a series, to be given with its samples."""
        self.described(gpu)
        series = (
            gpu.node, gpu.device_id, gpu.nvml_index, gpu.pod,
            meaning.counter, meaning.original, meaning.kind, meaning.unit, time_source,
        )  # fmt: skip
        return self._number_of((*series, gpu.labels) if self._lacks_name(series) else series)

    def described(self, gpu: Gpu) -> None:
        """Keep what is said of a GPU, whether or not it has samples."""
        named = (gpu.node, gpu.uuid, gpu.pci, gpu.nvml_index)
        if any(v is not None for v in named[1:]):
            if gpu.model is not None and _NO_MODEL.fullmatch(gpu.model.strip()):
                gpu = gpu._replace(model=None)
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
            self.missing_count += 1
            return False
        scaled = number * meaning.scale
        if scaled > MOST.get(meaning.counter, scaled):
            self.impossible(1, place)
            return False
        if meaning.kind == "cumulative":
            exact = -1
            if 0 <= scaled <= 2.0**64:
                exact = counted if counted is not None and meaning.scale == 1 else round(scaled)
            if not 0 <= exact < 2**64:
                self.missing_count += 1
                return False
            self._put(series, place, time_ns, None, exact)
        else:
            self._put(series, place, time_ns, scaled, None)
        self.rows_count += 1
        return True

    def impossible(self, count: int, place: int) -> None:
        """Count numbers that no GPU reaches."""
        self._sink.count(
            "impossible_number",
            count,
            doc="A number that no GPU reaches, so that its unit is another than its header or "
            "name says, a share above 1 (where it is percent, [%] must say so), or a count below "
            "0: left out.",
            place=place,
        )

    def finish(self, basis: str = "epoch") -> None:
        """Write what is left, the devices, and what time the file covers."""
        self._end(basis)
        if self._devices:
            devices = list(self._devices.values())
            names = ("node", "nvml_index", "uuid", "pci", "model")
            write_columns(
                self._sink, "device", {name: [getattr(g, name) for g in devices] for name in names}
            )
        if self._window is None:
            self._sink.fact(time_basis="none")
        hosts = {g.node for g in self._devices.values()}
        if len(hosts) == 1 and (host := hosts.pop()) is not None:
            self._sink.fact(host_name=host)

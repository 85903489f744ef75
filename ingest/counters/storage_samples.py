"""Rows of storage_sample."""

from __future__ import annotations

from tracekit.ingest.counters.host_samples import OfMachine
from tracekit.ingest.counters.net_samples import PORT_MAX_LENGTH
from tracekit.ingest.counters.vocabulary import Meaning


class StorageSamples(OfMachine):
    """The samples of one file of one machine: a disk or mount stands in a port's stead."""

    table = "storage_sample"
    columns = (
        "node", "device", "filesystem", "interval_ns", "counter", "original_name", "kind", "unit",
        "time_source",
    )  # fmt: skip

    def sample(
        self,
        place: int,
        device: str,
        meaning: Meaning,
        printed: object,
        *,
        original: str,
        filesystem: str | None = None,
        other: str | None = None,
    ) -> bool:
        """One number; False (and counted) where there is none. ``other``: the machine that it is
        of, where that is not the file's."""
        number = self._number(place, meaning, printed)
        if number is None:
            return False
        device = device[:PORT_MAX_LENGTH]
        series = (
            other, device, filesystem, self.interval_ns, meaning.counter, original, meaning.kind,
            meaning.unit,
        )  # fmt: skip
        self._keep(place, series, (other, device, meaning.counter), number)
        return True

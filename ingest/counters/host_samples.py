"""Rows of host_sample, and what all files of one machine share."""

from __future__ import annotations

from tracekit.ingest.counters.net_samples import NetSamples
from tracekit.ingest.counters.vocabulary import Meaning

CGROUP_MAX_LENGTH = 200
"""Longest path of a control group that is kept."""


class OfMachine(NetSamples):
    """The samples of one file of one machine, whose name is the file's, and perhaps of others."""

    device_columns = ()

    def finish(self) -> None:
        """Write what is left, and say what the file covers and whose it is."""
        super().finish()
        if self.node is not None:
            self._sink.fact(host_name=self.node)


class HostSamples(OfMachine):
    """The samples of one file of one machine.

    Numbers, times and dumps are as in those of networks; a control group stands in a port's stead.
    """

    table = "host_sample"
    columns = (
        "node", "cgroup", "device", "interval_ns", "counter", "original_name", "kind", "unit",
        "time_source",
    )  # fmt: skip

    def sample(
        self,
        place: int,
        meaning: Meaning,
        printed: object,
        *,
        original: str,
        cgroup: str | None,
        device: str | None = None,
        other: str | None = None,
    ) -> bool:
        """One number; False (and counted) where there is none. ``other``: the machine that it is
        of, where that is not the file's."""
        number = self._number(place, meaning, printed)
        if number is None:
            return False
        cgroup = None if cgroup is None else cgroup[:CGROUP_MAX_LENGTH]
        series = (
            other, cgroup, device, self.interval_ns, meaning.counter, original, meaning.kind,
            meaning.unit,
        )  # fmt: skip
        self._keep(place, series, (other, cgroup, device, meaning.counter), number)
        return True

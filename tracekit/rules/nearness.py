"""Which NIC is near which GPU of a host, where a topology is among the job's files.

A topology without a host is taken for every host whose log lists its NICs: hosts of one job are
mostly built alike, and findings that rest on that say so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from tracekit.rules.base import Facts, Row
from tracekit.rules.nccl_facts import Nccl, Signal, number

TOPOLOGY = "host_topology"
FAR = {"PIX": 0, "PXB": 0, "PHB": 1, "NODE": 1, "SYS": 2}
"""How far a NIC is: within PCIe switches, over the CPU, over the link between CPUs.

Over the CPU is one step whether or not the socket has several parts: how fast that is depends on
the machine.
"""
_WORDS = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4}


class Nearness(Struct, frozen=True):
    """The NICs of one host by their distance to each GPU."""

    rows: tuple[Row, ...]
    is_assumed: bool
    """Whether the topology names no host."""
    words: dict[str, dict[str, str]]
    """GPU -> NIC -> nvidia-smi's word."""
    by_pci: dict[str, str]
    """PCI address -> GPU; empty where the source lacks addresses."""
    order: tuple[str, ...]
    """GPUs by NVML index, which is the order of their PCI addresses."""

    def gpu(self, pci: str | None, every: Collection[str]) -> str | None:
        """The GPU at a PCI address; ``every`` are all addresses that the host's log names.

        Without addresses in the topology, NVML's order tells, if each GPU has been seen.
        """
        if pci is None:
            return None
        if self.by_pci:
            return self.by_pci.get(pci)
        addresses = sorted(set(every))
        if len(addresses) != len(self.order) or pci not in addresses:
            return None
        return self.order[addresses.index(pci)]

    def nearest(self, gpu: str, among: Collection[str]) -> tuple[str, ...]:
        """The NICs of some that are nearest to a GPU, by the steps of ``FAR``."""
        return self._least(gpu, among, FAR)

    def rail(self, nic: str, among: Collection[str]) -> int | None:
        """The place of the one GPU whose only nearest NIC it is; None where that is not so."""
        nearest = [g for g in self.order if self._least(g, among, _WORDS) == (nic,)]
        return self.order.index(nearest[0]) if len(nearest) == 1 else None

    def _least(
        self, gpu: str, among: Collection[str], ranking: Mapping[str, int]
    ) -> tuple[str, ...]:
        words = self.words.get(gpu, {})
        far = {n: ranking[w] for n, w in words.items() if n in among and w in ranking}
        best = min(far.values(), default=None)
        return tuple(n for n, f in far.items() if f == best)


def listed_nics(nccl: Nccl, node: str) -> dict[int, tuple[str, float | None, Signal]]:
    """Devices that a machine lists: index to name, speed in Mb/s, and the line."""
    return nccl.once(_listed_nics).get(node, {})


def _listed_nics(nccl: Nccl) -> dict[str | None, dict[int, tuple[str, float | None, Signal]]]:
    """By machine."""
    by_node: dict[str | None, dict[int, tuple[str, float | None, Signal]]] = defaultdict(dict)
    for signal in nccl.of("net_devices"):
        if signal.given.get("net") != "Socket":
            for key, value in signal.given.items():
                if key.isdecimal():
                    by_node[signal.node][int(key)] = (value.split(":")[0], None, signal)
    for signal in nccl.of("nic"):
        device = signal.given.get("device", "")
        if device.isdecimal():
            speed = number(signal.given, "speed_mbit")
            by_node[signal.node][int(device)] = (signal.given.get("nic", "?"), speed, signal)
    return dict(by_node)


def nearness(facts: Facts, node: str, nics: Collection[str]) -> Nearness | None:
    """The topology of a host whose log lists these NICs; None where there is none, or several."""
    by_host = facts.once(TOPOLOGY, _topologies)
    named = node if node in by_host else node.split(".")[0]
    sources = by_host.get(named) or by_host.get(None) or []
    fitting = [made for made in sources if made.nic_names() >= set(nics)]
    if not fitting or any(f.words != fitting[0].words for f in fitting):
        return None
    # Of equal ones the one with addresses says more.
    return max(fitting, key=lambda f: len(f.by_pci)).as_of(is_assumed=named not in by_host)


class _Made(Struct, frozen=True):
    rows: tuple[Row, ...]
    words: dict[str, dict[str, str]]
    by_pci: dict[str, str]
    order: tuple[str, ...]

    def nic_names(self) -> set[str]:
        return {nic for words in self.words.values() for nic in words}

    def as_of(self, *, is_assumed: bool) -> Nearness:
        return Nearness(self.rows, is_assumed, self.words, self.by_pci, self.order)


def _topologies(rows: Sequence[Row]) -> dict[str | None, list[_Made]]:
    """By host, one a source."""
    by_host: dict[str | None, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_host[row["host"]][row["source_id"]].append(row)
    return {h: [_made(own) for own in sources.values()] for h, sources in by_host.items()}


def _made(rows: Sequence[Row]) -> _Made:
    words: dict[str, dict[str, str]] = defaultdict(dict)
    index: dict[str, int] = {}
    by_pci: dict[str, str] = {}
    for row in rows:
        if row["nvml_index"] is not None:
            index[str(row["gpu"])] = int(row["nvml_index"])
        if row["pci"] is not None:
            by_pci[str(row["pci"])] = str(row["gpu"])
        if row["peer_kind"] == "nic":
            words[str(row["gpu"])][str(row["peer"])] = str(row["connection"])
    order = tuple(sorted(index, key=lambda g: index[g]))
    return _Made(tuple(rows), dict(words), by_pci, order)

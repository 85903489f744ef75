"""Counters of GPUs, switches, NICs and interfaces: one module a family of formats."""

from __future__ import annotations

from importlib import import_module

from tracekit.ingest.base import IngestOptions, Ingestor, Recognition, Sink, SourceFile
from tracekit.ingest.counters.gpu_table import TableIngestor
from tracekit.ingest.counters.gpu_text import TextIngestor
from tracekit.ingest.counters.kernel_log import KernelLogIngestor
from tracekit.ingest.counters.prometheus import PrometheusIngestor
from tracekit.ingest.counters.smi_xml import SmiXmlIngestor
from tracekit.ingest.counters.topology import TopologyIngestor


class NetIngestor:
    """One family of formats; its module is imported when a file is looked at."""

    def __init__(self, name: str, version: int, module: str) -> None:
        self.name = name
        self.version = version
        self._module = f"tracekit.ingest.counters.{module}"

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Recognise a file of the family by its first bytes."""
        found: Recognition | None = import_module(self._module).sniff(head, name)
        return found

    def read(self, source: SourceFile, sink: Sink, options: IngestOptions) -> None:
        """Stream the file into the sink."""
        import_module(self._module).read(source, sink)


NET_INGESTORS: tuple[Ingestor, ...] = (
    NetIngestor("linux_net", 1, "linux"),
    NetIngestor("sonic_db", 1, "sonic_db"),
    NetIngestor("sonic_cli", 1, "sonic_cli"),
    NetIngestor("infiniband", 1, "infiniband"),
    NetIngestor("ufm", 1, "ufm"),
    NetIngestor("nic", 1, "nic"),
    NetIngestor("switch_json", 1, "switch_json"),
    NetIngestor("nxos", 1, "nxos"),
    NetIngestor("gnmi", 1, "gnmi"),
    NetIngestor("optics", 1, "optics"),
    NetIngestor("lldp", 1, "lldp"),
    NetIngestor("net_csv", 2, "net_table"),
)

GPU_TABLES = TableIngestor()

COUNTER_INGESTORS: tuple[Ingestor, ...] = (
    PrometheusIngestor(),
    GPU_TABLES,
    SmiXmlIngestor(),
    KernelLogIngestor(),
    TextIngestor(),
    TopologyIngestor(),
    *NET_INGESTORS,
)
"""In the order in which they are asked."""

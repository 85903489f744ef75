"""Counters and events of GPUs: one module a family of formats."""

from __future__ import annotations

from tracekit.ingest.base import Ingestor
from tracekit.ingest.gpu.kernel_log import KernelLogIngestor
from tracekit.ingest.gpu.smi_xml import SmiXmlIngestor
from tracekit.ingest.gpu.table import TableIngestor
from tracekit.ingest.gpu.text import TextIngestor
from tracekit.ingest.gpu.topology import TopologyIngestor

GPU_TABLES = TableIngestor()

GPU_INGESTORS: tuple[Ingestor, ...] = (
    GPU_TABLES,
    SmiXmlIngestor(),
    KernelLogIngestor(),
    TextIngestor(),
    TopologyIngestor(),
)
"""In the order in which they are asked."""

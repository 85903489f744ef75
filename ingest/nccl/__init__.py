"""What NCCL, its tools and PyTorch's NCCL backend write: logs, dumps, records, tables."""

from __future__ import annotations

from tracekit.ingest.base import IngestOptions, Recognition, Sink, SourceFile

VERSION = 17


class _Lazy:
    """An ingestor of this package whose files the log's ingestor recognises."""

    version = VERSION

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self._module = module

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Recognition is NcclIngestor's."""
        return None

    def read(self, source: SourceFile, sink: Sink, options: IngestOptions) -> None:
        """Read one file into the sink."""
        from importlib import import_module

        import_module(f"tracekit.ingest.nccl.{self._module}").read(source, sink, options)


FLIGHT_RECORDER = _Lazy("flight_recorder", "flight")
INSPECTOR = _Lazy("nccl_inspector", "inspector")
RAS = _Lazy("nccl_ras", "ras")
TESTS_JSON = _Lazy("nccl_tests", "tests_json")


class _JobLog(_Lazy):
    """Any log, by its name: asked last, when nobody else knows the file."""

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Recognise a log by its name."""
        from tracekit.ingest.nccl import sniff

        return sniff.sniff_job_log(head, name)


JOB_LOG = _JobLog("job_log", "log")


class NcclIngestor:
    """NCCL_DEBUG output, PyTorch's watchdog and nccl-tests tables, also within a job's output."""

    name = "nccl"
    version = VERSION

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Recognise any file of the family; ``Recognition.ingestor`` says which one reads it."""
        from tracekit.ingest.nccl import sniff

        return sniff.sniff(head, name)

    def read(self, source: SourceFile, sink: Sink, options: IngestOptions) -> None:
        """Stream the log into the sink."""
        from tracekit.ingest.nccl import log

        log.read(source, sink, options)

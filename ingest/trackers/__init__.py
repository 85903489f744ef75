"""What experiment trackers keep of a job: W&B, MLflow, TensorBoard, loggers of CSV and JSON lines.

Their steps become rows of ``job_step``, like the lines of a training log.
"""

from __future__ import annotations

from tracekit.ingest.base import IngestOptions, Recognition, Sink, SourceFile


class _Trackers:
    """Tables of metrics, one row a step or one a value."""

    name = "step_metrics"
    version = 1

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Recognise a table by its columns: a step, and a time or a duration beside it."""
        from tracekit.ingest.trackers import tables

        return tables.sniff(head, name)

    def read(self, source: SourceFile, sink: Sink, options: IngestOptions) -> None:
        """Stream the table into ``job_step``."""
        from tracekit.ingest.trackers import tables

        tables.read(source, sink)


class _TensorBoard:
    """TensorBoard's event files."""

    name = "tensorboard"
    version = 1

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Recognise an event file by its first record."""
        from tracekit.ingest.trackers import tensorboard

        return tensorboard.sniff(head, name)

    def read(self, source: SourceFile, sink: Sink, options: IngestOptions) -> None:
        """Stream the records into ``job_step``."""
        from tracekit.ingest.trackers import tensorboard

        tensorboard.read(source, sink)


TRACKERS = (_TensorBoard(), _Trackers())

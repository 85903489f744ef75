"""What a scheduler says of a job: records of Slurm, pods and events of Kubernetes.

They become rows of ``log_event``, which query ``failures`` reads beside what the job printed.
"""

from __future__ import annotations

from tracekit.ingest.base import IngestOptions, Recognition, Sink, SourceFile


class _Slurm:
    """``sacct`` (tables, ``-P`` and ``-p``) and ``scontrol show job``."""

    name = "slurm_jobs"
    version = 1

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Recognise a file that holds nothing but such records."""
        from tracekit.ingest.schedulers import slurm

        return slurm.sniff(head)

    def read(self, source: SourceFile, sink: Sink, options: IngestOptions) -> None:
        """Stream the records into ``log_event``."""
        from tracekit.ingest.schedulers import slurm

        slurm.read(source, sink)


class _Kubernetes:
    """``kubectl get pods`` and ``events`` (JSON, YAML, tables), ``kubectl describe pod``."""

    name = "kubernetes"
    version = 2

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Recognise a file that holds nothing but such objects."""
        from tracekit.ingest.schedulers import kubernetes

        return kubernetes.sniff(head)

    def read(self, source: SourceFile, sink: Sink, options: IngestOptions) -> None:
        """Read the pods and events into ``log_event``."""
        from tracekit.ingest.schedulers import kubernetes

        kubernetes.read(source, sink)


SCHEDULERS = (_Slurm(), _Kubernetes())

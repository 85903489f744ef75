"""What Lustre's servers count for each job: ``lctl get_param obdfilter.*.job_stats`` and ``mdt``'s.

One target's counts for one job are one device, so that jobs are never added up: a server drops a
job that was idle for a while, and a sum over jobs would fall. Newer versions say how long
operations took, older ones only how many there were and of how many bytes (Lustre's manual,
"Lustre Jobstats"; lustre/obdclass/lprocfs_jobstats.c).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.status import Reading, by_lines
from tracekit.ingest.counters.storage_samples import StorageSamples
from tracekit.ingest.counters.storage_words import STORAGE
from tracekit.ingest.lines import Line, shape

KIND = "lustre_jobs"

_US = 1000
_TARGET = re.compile(r"(obdfilter|mdt)\.([\w.-]{1,90})\.job_stats=\s{0,8}(?:job_stats:)?")
_JOB = re.compile(r"\s{0,16}- job_id\s{0,24}:\s{0,40}(\S.{0,99})?")
_SNAPSHOT = re.compile(
    r"\s{0,16}snapshot_time\s{0,24}:\s{0,24}(\d{1,11})(?:\.(\d{1,9}))?(?: secs\.[un]secs)?"
)
_OTHER_TIME = re.compile(r"\s{0,16}(?:start_time|elapsed_time)\s{0,24}:[ \d.]{1,40}secs\.[un]secs")
_OPERATION = re.compile(
    r"\s{0,16}([a-z_]{2,40})\s{0,24}:\s{0,24}\{ ?samples:\s{0,24}(\d{1,20}),\s{0,8}"
    r"unit:\s{0,8}(reqs|bytes|usecs?)(.{0,400})\}"
)
_SUM = re.compile(r", sum:\s{0,24}(\d{1,20})(?!\d)")
_ANY_JOB = re.compile(rb"(?:^|\n|=)job_stats:\s{0,8}\n\s{0,16}- job_id")

_DATA = {"read": "read", "write": "write", "sync": "flush"}
_SIZES = ("read_bytes", "write_bytes")
_METADATA = frozenset({
    "open", "close", "mknod", "link", "unlink", "mkdir", "rmdir", "rename", "getattr", "setattr",
    "getxattr", "setxattr", "statfs", "create", "destroy", "punch", "fallocate", "migrate",
})  # fmt: skip
"""Renames are counted once more as those within a directory and across: those are left out."""
_KNOWN = _METADATA.union(_DATA, _SIZES)


class _Count(NamedTuple):
    place: int
    requests_count: int
    unit: str
    total: int | None


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise the list of jobs by its heading."""
    if b"job_stats:" in head and _ANY_JOB.search(head):
        return Recognition(KIND, "Lustre as its servers count it by job (lctl get_param)", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the counts into storage_sample."""
    with by_lines(source, sink, lambda reading: _Parser(StorageSamples(sink, source), reading)) as (
        parser,
        reading,
    ):
        parser.end_job()
        if reading.good_count:
            reading.from_documentation("job_stats of Lustre's servers")
        if parser.others_count:
            count_other_metrics(sink, parser.others_count)


class _Parser:
    def __init__(self, samples: StorageSamples, reading: Reading) -> None:
        self.samples = samples
        self.others_count = 0
        self._reading = reading
        self._filesystem: str | None = None
        self._target: str | None = None
        self._job: str | None = None
        self._counts: dict[str, _Count] = {}
        """Operations of the job that is read."""
        self._is_stamped = False
        """Whether lines of time say when each dump was made."""

    def line(self, line: Line) -> None:
        text = line.text.rstrip()
        if not text:
            return
        if operation := _OPERATION.fullmatch(text):
            self._operation(line.number, operation)
        elif job := _JOB.fullmatch(text):
            self.end_job()
            self._job = (job[1] or "").strip('"') or "without a name"
        elif snapshot := _SNAPSHOT.fullmatch(text):
            self._snapshot(snapshot)
        elif target := _TARGET.fullmatch(text):
            self.end_job()
            self._filesystem, self._target = target.groups()
            self._reading.good()
        elif (stamp := times.of_line(text.strip())) is not None:
            self.end_job()
            self._target = None
            self._is_stamped = True
            self.samples.at(stamp)
        elif text.strip() != "job_stats:" and not _OTHER_TIME.fullmatch(text):
            if text.endswith("="):
                self.end_job()
                self._target = None
            elif text.lstrip().startswith("-"):
                self.end_job()  # what follows is another job's
            self._reading.bad(line.number, "another line than is known", shape(text))

    def _snapshot(self, snapshot: re.Match[str]) -> None:
        """When the job was last served, unless a line of time says when all was read.

        Some versions count it from the server's start: that is no time of day.
        """
        if not self._is_stamped:
            self.samples.at(times.from_epoch(snapshot[1], snapshot[2] or ""))

    def _operation(self, place: int, operation: re.Match[str]) -> None:
        name = operation[1]
        if self._target is None or self._job is None:
            self._reading.bad(
                place,
                "an operation of no job or no target, whose name lctl get_param prints without -n",
            )
            return
        self._reading.good()
        if name not in _KNOWN:
            self.others_count += 1
            return
        total = _SUM.search(operation[4])
        self._counts[name] = _Count(
            place, int(operation[2]), operation[3], int(total[1]) if total else None
        )

    def end_job(self) -> None:
        """Write what the job that ends here was served."""
        counts, self._counts = self._counts, {}
        metadata = []
        for name, of in counts.items():
            if name in _SIZES:
                if of.unit != "bytes":
                    self.others_count += 1  # servers of metadata count requests in its stead
                    continue
                if of.total is not None:
                    self._put(of.place, name, of.total, 1, name)
                operation = name.partition("_")[0]
                if operation not in counts:
                    self._put(of.place, f"{operation}_requests", of.requests_count, 1, name)
            elif name in _DATA:
                self._put(of.place, f"{_DATA[name]}_requests", of.requests_count, 1, name)
                if _is_timed(of):
                    self._put(of.place, f"{_DATA[name]}_time", of.total, _US, name)
            else:
                metadata.append(of)
        if metadata:
            place, what = metadata[-1].place, "all other operations"
            self._put(
                place, "metadata_requests", sum(of.requests_count for of in metadata), 1, what
            )
            if all(_is_timed(of) for of in metadata):
                spent = sum(of.total or 0 for of in metadata)
                self._put(place, "metadata_time", spent, _US, what)
        self._job = None

    def _put(self, place: int, name: str, printed: object, scale: int, original: str) -> None:
        self.samples.sample(
            place,
            f"{self._target} of job {self._job}",
            STORAGE.meaning(name, scale),
            printed,
            original=original,
            filesystem=self._filesystem,
        )


def _is_timed(of: _Count) -> bool:
    return of.unit.startswith("usec") and of.total is not None

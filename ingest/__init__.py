"""Ingestors: one module or small package a family of file formats, each reading into a sink.

Importing this is cheap: an ingestor imports what it needs when it reads.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from tracekit.ingest import files, streams
from tracekit.ingest.base import (
    STEP_PATTERN,
    IngestOptions,
    Ingestor,
    Recognition,
    SourceFile,
    Splitter,
)
from tracekit.ingest.counters.formats import FAMILIES
from tracekit.ingest.kineto import KinetoIngestor
from tracekit.ingest.nccl import FLIGHT_RECORDER, INSPECTOR, JOB_LOG, RAS, TESTS_JSON, NcclIngestor
from tracekit.ingest.nsys import NsysIngestor
from tracekit.ingest.parquet_text import MAGIC, as_text
from tracekit.ingest.pipeline_timers import PipelineTimersIngestor
from tracekit.ingest.schedulers import SCHEDULERS
from tracekit.ingest.stacks import StacksIngestor
from tracekit.ingest.trackers import TRACKERS

__all__ = [
    "INGESTORS",
    "SPLITTERS",
    "IngestOptions",
    "Ingestor",
    "Recognition",
    "SourceFile",
    "Splitter",
    "ingestor",
    "recognise",
]

_NSYS = NsysIngestor()

INGESTORS: tuple[Ingestor, ...] = (
    KinetoIngestor(),
    _NSYS,
    PipelineTimersIngestor(),
    NcclIngestor(),
    FLIGHT_RECORDER,
    INSPECTOR,
    RAS,
    TESTS_JSON,
    *SCHEDULERS,
    StacksIngestor(),
    *FAMILIES,
    *TRACKERS,  # behind the counters, whose tables may have a column of steps beside them
    JOB_LOG,  # last: it takes any log that nobody knows
)
"""In the order in which they are asked."""

SPLITTERS: tuple[Splitter, ...] = (_NSYS,)
"""Those that may make several sources of one file."""

DEEP_HEAD_BYTES = 4 << 20
"""Decompressed bytes that are looked at where the first ones show JSON but not of what kind."""

MAX_HOLE_BYTES = 256 << 20
"""Zeros at the beginning of a log beyond which nothing is looked for."""
_HOLE = re.compile(rb"\0{16,}")
"""Zeros of a hole in a text: binary data has such stretches too, but no text around them."""

_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "archive", "an archive inside an archive, or without a name that says so"),
    (b"SQLite format 3\0", "sqlite", "a SQLite database that no ingestor knows"),
    (b"\x80\x02", "pickle", "a pickle, which is never loaded from outside"),
    (b"\x80\x03", "pickle", "a pickle, which is never loaded from outside"),
    (b"\x80\x04", "pickle", "a pickle, which is never loaded from outside"),
    (b"\x80\x05", "pickle", "a pickle, which is never loaded from outside"),
    (
        b"PAR1",
        "parquet",
        "a Parquet file without a column that is known; [[source]] columns in "
        "job.toml can say which column is what",
    ),
    (b"\x7fELF", "binary", "a program"),
    (b"%PDF", "document", "a PDF document"),
    (b"\x89PNG", "image", "an image"),
)
"""First bytes, kind and reason of files that are named but not read."""
_TOOLS: tuple[tuple[re.Pattern[bytes], str], ...] = tuple(
    (re.compile(pattern, re.M), reason)
    for pattern, reason in (
        (
            rb"\ALinux \S+ \([^\n]*CPU\)\s+[\d:]{8}(?: [AP]M)? +UID +PID",
            "pidstat: processes, which nothing here asks; of the whole machine `vmstat -t`, `sar` "
            "and `mpstat` are read",
        ),
        (
            rb"\AAAA,progname,nmon",
            "nmon is not read; `vmstat -t`, `iostat -t -o JSON` and `sadf -j` are",
        ),
        (
            rb"\A(?:RESET\n)?[A-Za-z]{3} \S+ \d{9,10} \d{4}/\d\d/\d\d ",
            "atop -P is not read; `vmstat -t`, `iostat -t -o JSON` and `sadf -j` are",
        ),
        (
            rb'\A"[^"\n]{0,20}(?:[Dd]stat|dool) [^"\n]{1,20}CSV output"',
            "dstat or dool: it says neither units nor years; `vmstat -t`, `iostat -t -o JSON` and "
            "`sadf -j` are read",
        ),
        (
            rb"\Aepoch,[a-z_,]{1,100}\n\d{9,10}(?:\.\d+)?,",
            "collectd's CSV plugin, where nothing but the path says what is counted; a table with "
            "a header a counter is read",
        ),
        (
            rb"\ACA '[\w.-]{1,60}'\n\s+CA type:",
            "ibstat: states of ports, no counters; `perfquery` and "
            "`grep -r . /sys/class/infiniband/*/ports` are read",
        ),
        (
            rb"^\|[ =]{0,40}(?:Diagnostic {1,40}\| Result|Health Monitor Report)"
            rb"|\ASuccessfully retrieved statistics for",
            "dcgmi diag, health or stats: verdicts, and sums over a job, no counters of moments; "
            "`dcgmi dmon`, `dcgmi nvlink -e`, `nvidia-smi -q` and dcgm-exporter are read",
        ),
        (
            rb'^ {0,4}"log_history": \[',
            "the state of Hugging Face's Trainer: losses by step, without the time of any; what it "
            "prints and its TensorBoard files are read",
        ),
    )
)
"""First text of what tools print that is named but not read, and what is read instead."""


def ingestor(name: str) -> Ingestor:
    """The ingestor of that name; KeyError if there is none."""
    for known in INGESTORS:
        if known.name == name:
            return known
    raise KeyError(name)


def recognise(source: SourceFile) -> Recognition:
    """What a file is, from one small read of it. Never raises for what a file holds."""
    try:
        head, problem = files.read_head_and_problem(source)
    except Exception as error:  # any file may be given; what it is must be said, not raised
        why = _why(error)
        return Recognition("unreadable", why, status="unreadable")
    if not head:
        if problem:
            return Recognition(
                "unreadable", f"it cannot be unpacked ({problem})", status="unreadable"
            )
        return Recognition("empty", "it holds no bytes", status="empty")
    if source.export:
        return Recognition("nsys_report", f"its export {source.export} is read")
    recognition = _mapped(head, source) if source.columns else _sniff(head, source)
    if recognition is None and len(head) >= files.HEAD_BYTES and head.lstrip()[:1] in (b"{", b"["):
        # Keys of anyone's may stand before those that tell what a JSON file is.
        try:
            recognition = _sniff(files.read_head(source, DEEP_HEAD_BYTES), source)
        except Exception as error:  # as above
            return Recognition("unreadable", _why(error), status="unreadable")
    return recognition or _holed(head, source) or _foreign(head, source)


def _holed(head: bytes, source: SourceFile) -> Recognition | None:
    """A log with a stretch of zeros: one that was cut while its writer had it open (logrotate's
    copytruncate), or whose host lost power before all was on disk."""
    if not _HOLE.search(head) or any(head.startswith(magic) for magic, *_ in _FOREIGN):
        return None
    text = head
    if not head.strip(b"\0"):
        try:
            text = files.read_behind_zeros(source, MAX_HOLE_BYTES)
        except Exception as error:  # any file may be given; what it is must be said, not raised
            return Recognition("unreadable", _why(error), status="unreadable")
    text = _HOLE.sub(b"\n", text).rstrip(b"\0")
    known = (ingestor("nccl"), JOB_LOG)
    return next((found for one in known if (found := one.sniff(text, source.name))), None)


def _sniff(head: bytes, source: SourceFile) -> Recognition | None:
    for known in INGESTORS:
        recognition = known.sniff(head, source.name)
        if recognition is not None:
            return recognition
    if head.startswith(MAGIC):
        # Its columns stand at its end.
        return PipelineTimersIngestor().recognise(source) or _table(source)
    return None


def _table(source: SourceFile) -> Recognition | None:
    """A table of counters in Parquet."""
    head = files.read_head(as_text(source))
    tables = (known for known in FAMILIES if known.is_table)
    return next((found for t in tables if (found := t.sniff(head, source.name))), None)


def _mapped(head: bytes, source: SourceFile) -> Recognition | None:
    if dict(source.columns).get(STEP_PATTERN):
        return Recognition("job_log", "job.toml says how its steps read", JOB_LOG.name)
    from tracekit.ingest.counters.columns import recognise_mapped

    if head.startswith(MAGIC):
        head = files.read_head(as_text(source))
    return recognise_mapped(source, head)


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, files.NotAFileError):
        return error.message
    if isinstance(error, PermissionError):
        return "it may not be read"
    if isinstance(error, streams.LimitError):
        return str(error)
    if isinstance(error, OSError):
        return f"it cannot be read ({error.strerror or type(error).__name__})"
    return f"it cannot be read ({type(error).__name__})"


def _foreign(head: bytes, source: SourceFile) -> Recognition:
    def said(kind: str, reason: str) -> Recognition:
        return Recognition(kind, reason, status="unrecognised")

    for magic, kind, reason in _FOREIGN:
        if head.startswith(magic):
            return said(kind, reason)
    if head[257:262] == b"ustar":
        return said("archive", "an archive inside an archive is not followed")
    if "tfevents" in source.name:
        return said("tensorboard", "a TensorBoard event file by its name, without its first record")
    if not head.strip():
        return Recognition("empty", "it holds nothing but white space", status="empty")
    text = head.removeprefix(b"\xef\xbb\xbf")
    for printed, reason in _TOOLS:
        if printed.search(text[:65536]):
            return said("other_tool", reason)
    start = text.lstrip()[:1]
    if start in (b"{", b"["):
        return said("json", "JSON without traceEvents or anything else that is known")
    if b"\0" in head:
        return said("binary", "binary data of no known kind")
    if source.name.lower().endswith((".csv", ".tsv")):
        return said(
            "table",
            "a table without a header that is known; [[source]] columns in job.toml can say which "
            "column is what",
        )
    return said("text", "text of no known kind")


class _CallablePackage(ModuleType):
    """``tracekit.ingest`` is the package of ingestors and the verb: calling it ingests."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # By name: what ingests stands above this package, which must not know it.
        return import_module("tracekit.api").ingest(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage

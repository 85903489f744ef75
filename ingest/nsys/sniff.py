"""What a file is, from its head; and which sources one export is."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tracekit.errors import InputError
from tracekit.ingest import files
from tracekit.ingest.base import Recognition, SourceFile
from tracekit.ingest.nsys.marks import MAGIC, MARKERS, SUFFIX
from tracekit.wording import shell_path

if TYPE_CHECKING:
    from tracekit.ingest.nsys.database import Tables

_TABLES = re.compile(
    rb"CREATE TABLE \"?(?:StringIds|TARGET_INFO_\w+|META_DATA_(?:EXPORT|CAPTURE)|EXPORT_META_DATA"
    rb"|CUPTI_ACTIVITY_KIND_\w+|NVTX_EVENTS|ENUM_NSYS_EVENT_TYPE)\b"
)
_STATS = re.compile(
    rb"(?m)^ *\*\* [^\n]{1,80} \((?:cuda|nvtx|osrt|openacc|mpi|nccl)_\w{1,40}\):\s*$"
    rb"|\ATime \(%\),Total Time \(ns\),(?:Instances|Count|Num Calls),"
    rb"|\ARange,Style,Total Proj Time"
)
"""A table that ``nsys stats`` prints, or writes as CSV."""
MAX_PROCESSES = 1024
"""Sources that one export may become: a damaged one may name a process a row."""
_HEADER_BYTES = 100
"""Of a SQLite file; nsys writes it last."""
_NAMED = re.compile(r"\.(?:sqlite3?|db3?)$", re.I)
_REPORT = re.compile(r"\.(?:nsys-rep|qdrep)$", re.I)


def export_command(report: str = "REPORT.nsys-rep") -> str:
    """The command that makes an export with everything that is read here.

    Reports that are named .qdrep come from an nsys that knew no --include-blobs (2023 did).
    """
    name = shell_path(report)
    options = "--type=sqlite"
    if not report.lower().endswith(".qdrep"):
        options += " --include-blobs=true"
    return (
        f"nsys export {options} --output={shell_path(_REPORT.sub('', report) + '.sqlite')} {name}"
    )


def is_report(name: str) -> bool:
    """Whether a file is a report that only nsys itself can read."""
    return bool(_REPORT.search(name))


def export_paths(report: str) -> list[str]:
    """Where nsys writes the exports of a report that it is given no name for."""
    return [_REPORT.sub(ending, report) for ending in (".sqlite", SUFFIX)]


def is_whole(source: SourceFile) -> bool:
    """Whether an export has the head of one that was written to its end."""
    try:
        with source.open() as raw:
            return source.name.endswith(SUFFIX) or raw.read(len(MAGIC)) == MAGIC
    except (OSError, InputError):
        return False


def sniff(head: bytes, name: str) -> Recognition | None:
    """An export by the tables that its first pages declare; a report by its name."""
    if head.startswith(MAGIC):
        if len(set(_TABLES.findall(head))) >= 2:
            return Recognition("nsys", "a SQLite export of Nsight Systems", "nsys")
        if len(head) < files.HEAD_BYTES and not _NAMED.search(name):
            return None
        # Its schema may stand on later pages: reading decides.
        return Recognition("nsys", "a SQLite file that may be an Nsight Systems export", "nsys")
    if head.startswith(b"PAR1") and name.endswith(SUFFIX):
        return Recognition("nsys", "a Parquet export of Nsight Systems", "nsys")
    if is_report(name):
        reason = (
            "only nsys itself can read its reports: give --nsys PATH, or export it with "
            + export_command(name)
        )
        return Recognition("nsys_report", reason, status="unreadable")
    if _STATS.search(head):
        return Recognition(
            "nsys_stats",
            "a table of nsys stats: sums without times; give the report or its export",
            status="unrecognised",
        )
    if _NAMED.search(name) and head and not head[:_HEADER_BYTES].strip(b"\0"):
        reason = "its header is zeroed: the export was interrupted"
        return Recognition("nsys", reason, status="unreadable")
    return None


def opened(path: Path) -> Tables:
    """The export at a path: a SQLite file or a folder of Parquet files."""
    from tracekit.ingest.nsys.database import Database
    from tracekit.ingest.nsys.parquet import ParquetTables

    return ParquetTables(path) if path.is_dir() else Database(path)


def folder_name(name: str, files_in_it: Collection[str]) -> str | None:
    """The name of the source that a folder of files is as a whole; None where it is none."""
    if sum(marker in files_in_it for marker in MARKERS) < 2:
        return None
    return name if name.endswith(SUFFIX) else f"{name}{SUFFIX}"


def stored_path(source: SourceFile) -> str:
    """Path of the export that a source is, or is a part of."""
    if source.stored:
        return source.stored
    return source.path.removesuffix(f"!{source.part}") if source.part else source.path


def split(source: SourceFile) -> list[SourceFile]:
    """One source for each process with device work; the export itself where there are not two.

    What cannot be opened stays whole: reading says why.
    """
    is_folder = source.name.endswith(SUFFIX)
    if not source.stored and not is_folder and not _NAMED.search(source.name):
        return [source]
    from tracekit.ingest.nsys import meta
    from tracekit.ingest.nsys.database import OnDisk

    try:
        with source.open() as raw:
            head = raw.read(len(MAGIC))
        if head != MAGIC and not is_folder:
            return [source]
        with OnDisk(source, stored_path(source)) as path, opened(path) as database:
            processes = meta.processes(database) if meta.is_export(database) else []
    except (OSError, InputError):
        return [source]
    if not 2 <= len(processes) <= MAX_PROCESSES:
        return [source]
    return [
        replace(source, path=f"{source.path}!{process.part}", part=process.part)
        for process in processes
    ]

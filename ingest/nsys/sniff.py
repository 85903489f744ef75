"""What a file is, from its head; and which sources one export is."""

from __future__ import annotations

import re
from dataclasses import replace

from tracekit.errors import InputError
from tracekit.ingest import files
from tracekit.ingest.base import Recognition, SourceFile
from tracekit.ingest.nsys import meta
from tracekit.ingest.nsys.database import MAGIC, Database, OnDisk

EXPORT_COMMAND = "nsys export -t sqlite --include-blobs=true -o OUT.sqlite IN.nsys-rep"
_TABLES = re.compile(
    rb"CREATE TABLE \"?(?:StringIds|TARGET_INFO_\w+|META_DATA_(?:EXPORT|CAPTURE)|EXPORT_META_DATA"
    rb"|CUPTI_ACTIVITY_KIND_\w+|NVTX_EVENTS|ENUM_NSYS_EVENT_TYPE)\b"
)
_NAMED = re.compile(r"\.(?:sqlite3?|db3?)$", re.I)
_REPORT = re.compile(r"\.(?:nsys-rep|qdrep)$", re.I)


def sniff(head: bytes, name: str) -> Recognition | None:
    """An export by the tables that its first pages declare; a report by its name."""
    if _REPORT.search(name) and not head.startswith(MAGIC):
        reason = f"an Nsight Systems report: only nsys itself can read it; run {EXPORT_COMMAND}"
        return Recognition("nsys_report", reason, status="unrecognised")
    if head.startswith(MAGIC):
        if len(set(_TABLES.findall(head))) >= 2:
            return Recognition("nsys", "a SQLite export of Nsight Systems", "nsys")
        if len(head) < files.HEAD_BYTES and not _NAMED.search(name):
            return None
        # Its schema may stand on later pages: reading decides.
        return Recognition("nsys", "a SQLite file that may be an Nsight Systems export", "nsys")
    if _NAMED.search(name) and head and not head.strip(b"\0"):
        reason = "its header is zeroed: the export was interrupted; run it again"
        return Recognition("nsys", reason, status="unreadable")
    return None


def stored_path(source: SourceFile) -> str:
    """Path of the export that a source is, or is a part of."""
    return source.path.removesuffix(f"!{source.part}") if source.part else source.path


def split(source: SourceFile) -> list[SourceFile]:
    """One source for each process with device work; the export itself where there are not two.

    What cannot be opened stays whole: reading says why.
    """
    if not _NAMED.search(source.name):
        return [source]
    try:
        with source.open() as raw:
            head = raw.read(len(MAGIC))
        if head != MAGIC:
            return [source]
        with OnDisk(source, source.path) as path, Database(path) as database:
            found = meta.processes(database) if meta.is_export(database) else []
    except (OSError, InputError):
        return [source]
    if len(found) < 2:
        return [source]
    return [
        replace(source, path=f"{source.path}!{process.part}", part=process.part)
        for process in found
    ]

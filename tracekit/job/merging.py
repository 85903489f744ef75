"""Several job descriptions as one."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from tracekit.job.model import ENTRIES, SECTIONS, JobDescription, SectionT, keys_of
from tracekit.job.reading import load_job


def load_jobs(paths: Sequence[str | os.PathLike[str]]) -> JobDescription:
    """Read several job descriptions as one: later files win; contradictions are in ``notes``.

    Without paths: an empty description. Raises InputError as ``load_job``.
    """
    return functools.reduce(merge_jobs, (load_job(p) for p in paths), JobDescription())


def merge_jobs(first: JobDescription, second: JobDescription) -> JobDescription:
    """Both as one: what the second says wins, field by field, and contradictions are noted."""
    notes: list[str] = []
    where = f"{', '.join(first.files) or 'before'}, {', '.join(second.files) or 'after'}"

    def fields(a: SectionT, b: SectionT, place: str) -> SectionT:
        changes: dict[str, Any] = {}
        for key, name in keys_of(type(a)).items():
            old, new = getattr(a, name), getattr(b, name)
            is_table = isinstance(a, JobDescription) and key in ENTRIES
            if isinstance(old, msgspec.Struct) or is_table or new is None or new == old:
                continue
            if old is not None:
                notes.append(f"{place}{key}: {old!r} against {new!r} ({where}); the later is used")
            changes[name] = new
        return msgspec.structs.replace(a, **changes) if changes else a

    def entries(
        a: tuple[SectionT, ...], b: tuple[SectionT, ...], label: str, *by: str
    ) -> tuple[SectionT, ...]:
        merged = {tuple(getattr(e, k) for k in by): e for e in a}
        for entry in b:
            key = tuple(getattr(entry, k) for k in by)
            place = f"{label} {' '.join(str(k) for k in key[-2:] if k not in (None, ''))}: "
            old = merged.get(key)
            merged[key] = entry if old is None else fields(old, entry, place)
        return tuple(merged.values())

    result = fields(first, second, "")
    sections = {s: fields(getattr(first, s), getattr(second, s), f"{s}.") for s in SECTIONS}
    return msgspec.structs.replace(
        result,
        **sections,
        rank=entries(first.rank, second.rank, "rank", "path", "rank"),
        host=entries(first.host, second.host, "host", "host"),
        port=entries(first.port, second.port, "port", "node", "port"),
        range=entries(first.range, second.range, "range", "name"),
        source=entries(first.source, second.source, "source", "base", "path"),
        files=(*first.files, *second.files),
        notes=(*first.notes, *second.notes, *notes),
    )

"""The files that were given, what the job description says of them, and the description itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tracekit.errors import InputError
from tracekit.runs.keys import content_hash, exported_hash, hash_of, whole
from tracekit.store.manifest import LAKE_MARK, Manifest

if TYPE_CHECKING:
    from tracekit.ingest.base import SourceFile
    from tracekit.job import JobDescription


def gather(
    paths: Sequence[str | Path], job_paths: Sequence[str | Path], run: Path | None = None
) -> tuple[list[SourceFile], JobDescription | None]:
    """The source files behind ``paths``, and the job description (given, or found among them).

    What lies inside ``run`` is no source: a run may be kept beside its traces.
    """
    from tracekit.ingest.files import expand

    for path in paths:
        if os.path.isfile(os.path.join(path, LAKE_MARK)):  # noqa: PTH113, PTH118  # may be a URI
            raise InputError(
                f"{path}: a lake of many runs, and no job's files",
                hint=f"tracekit lake ls {path} names its runs; each is LAKE/runs/NAME",
            )
    files: list[SourceFile] = []
    found_jobs: list[str] = []
    run_prefix = os.path.realpath(run) + os.sep if run is not None else None
    for file in expand(paths):
        if run_prefix is not None and os.path.realpath(file.path).startswith(run_prefix):
            continue
        if is_job_description(file):
            found_jobs.append(file.path)
        else:
            files.append(file)
    if has_reports(files):
        from tracekit.ingest.nsys.report import with_exports

        files = with_exports(files)
    if not files:
        raise InputError(
            "nothing to read in " + ", ".join(str(p) for p in paths),
            hint="give trace files, folders or archives; tracekit sources PATH shows what is seen",
        )
    return files, described([*found_jobs, *job_paths])


def described(job_paths: Sequence[str | Path]) -> JobDescription | None:
    """What the job descriptions say together; None where there are none."""
    if not job_paths:
        return None
    from tracekit.jobs_import import load_descriptions

    return load_descriptions([str(p) for p in job_paths])


Columns = Callable[[str], tuple[tuple[str, str], ...]]
"""What the job description says of a path's columns, or of its steps; nothing, mostly."""


def columns_of(job: JobDescription | None) -> Columns:
    """What the job description says of the columns of tables, and of the steps of logs.

    InputError, with path and line, where it speaks of a counter that there is not, or where a
    pattern is none.
    """
    entries = [e for e in job.source if e.columns or e.step_pattern] if job is not None else []
    if not entries:
        return lambda path: ()
    from tracekit.ingest.base import STEP_PATTERN
    from tracekit.ingest.counters.columns import UnknownColumnError, check_columns
    from tracekit.job import PathMatcher, place_of

    for entry in entries:
        if entry.step_pattern:
            from tracekit.ingest.steplog.formats import check_own_pattern

            try:
                check_own_pattern(entry.step_pattern)
            except ValueError as error:
                place = place_of(job.files if job else (), STEP_PATTERN)
                raise InputError(
                    f"{place}[[source]] {entry.path!r}: {STEP_PATTERN}: {error}",
                    hint=r"a group is (?P<step>\d+); which there are: docs/history.md",
                ) from None
        try:
            check_columns(entry.columns or {})
        except UnknownColumnError as error:
            place = place_of(job.files if job else (), error.key)
            raise InputError(
                f"{place}[[source]] {entry.path!r}: {error}", hint=error.hint
            ) from None
    matcher = PathMatcher(entries)

    def find(path: str) -> tuple[tuple[str, str], ...]:
        entry = matcher.find(path)
        if entry is None:
            return ()
        step_pattern = ((STEP_PATTERN, entry.step_pattern),) if entry.step_pattern else ()
        return (*(entry.columns or {}).items(), *step_pattern)

    return find


def explain(file: SourceFile, columns: Columns) -> SourceFile:
    """The file with what the job description says of its columns."""
    layout = columns(file.path)
    return replace(file, columns=layout) if layout else file


def is_job_description(file: SourceFile) -> bool:
    """Whether a file among the paths is a job.toml; members of archives are not."""
    # Importing the job module costs start time: only where a name may be a description.
    if not file.name.lower().endswith(".toml") or not Path(file.path).is_file():
        return False
    from tracekit.ingest.files import read_head
    from tracekit.job import is_job_file

    return is_job_file(file.path, read_head(file))


def has_reports(files: Sequence[SourceFile]) -> bool:
    """Whether there are Nsight Systems reports, which only nsys can read, among the files."""
    from tracekit.ingest.nsys.sniff import is_report

    return any(is_report(f.name) for f in files)


def without_held_reports(
    files: Sequence[SourceFile], previous: Manifest | None
) -> Sequence[SourceFile]:
    """The files without the reports that the run holds exported: their rows stand."""
    if previous is None or not has_reports(files):
        return files
    held = {s.sha256 for s in previous.sources}

    def is_held(file: SourceFile) -> bool:
        parts = (
            s.path.removeprefix(file.path).removeprefix("!")
            for s in previous.sources
            if s.path == file.path or s.path.startswith(f"{file.path}!")
        )
        digest = content_hash(file, {})
        return any(exported_hash(hash_of(digest, p) if p else digest) in held for p in parts)

    return [f for f in files if f.stored or not has_reports([f]) or not is_held(f)]


def job_of(manifest: Manifest) -> JobDescription | None:
    """The job description that a run was made with; its paths are relative to where it lay."""
    if manifest.job_toml is None:
        return None
    from msgspec.structs import replace as with_

    from tracekit.job import parse_job

    job = parse_job(manifest.job_toml.encode(), manifest.job_path or "job.toml")
    bases = iter(manifest.job_bases)
    if len(manifest.job_bases) != len(job.rank) + len(job.source):
        return job
    rank = tuple(with_(e, base=next(bases)) for e in job.rank)
    return with_(job, rank=rank, source=tuple(with_(e, base=next(bases)) for e in job.source))


def job_fields(job: JobDescription | None, previous: Manifest | None) -> dict[str, Any]:
    """What a manifest says of the job description, so that ``job_of`` gives it back."""
    if job is None:
        return {}
    path = whole(job.files[0]) if job.files else previous and previous.job_path
    bases = (*(e.base for e in job.rank), *(e.base for e in job.source))
    return {"job_toml": job_text(job), "job_path": path, "job_bases": bases}


def job_text(job: JobDescription | None) -> str | None:
    if job is None:
        return None
    from tracekit.job import to_toml

    return to_toml(job, {})

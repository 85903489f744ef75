"""Commands that make something to keep: ingest, job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import options as o
from tracekit.cli.look import open_target
from tracekit.cli.output import check_target, write_text
from tracekit.cli.state import note, progress_bar

if TYPE_CHECKING:
    from tracekit.api import OpenRun


def ingest(
    run: Annotated[Path, typer.Option("--run", metavar="RUN", help="Folder of the run.")],
    paths: o.SomePathsArg = None,
    job: o.JobOpt = None,
    workers: o.WorkersOpt = None,
    memory: o.MemoryOpt = None,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", metavar="ADDR", help="A Dask scheduler.")
    ] = None,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Keep Python frames (most of a file).")
    ] = False,
    attempt: o.AttemptOpt = None,
    nsys: o.NsysOpt = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 2 on any partial input.")] = False,
) -> int:
    """Files to a run. The same files again change nothing; new files are added.

    Without PATH, what the run was made from: after an upgrade of tracekit.
    """
    from tracekit import api

    with progress_bar("ingesting") as progress:
        opened = api.ingest(
            [*(paths or [])],
            run=run,
            job=[*(job or [])],
            stacks=stacks,
            workers=workers,
            memory_bytes=o.parse_size(memory, "--memory"),
            scheduler=scheduler,
            attempt=attempt,
            nsys=nsys,
            progress=progress,
        )
    with opened:
        return _say_what_was_read(opened, strict)


def _say_what_was_read(opened: OpenRun, strict: bool) -> int:
    rows = (
        opened.run.prepare(["source"])
        .execute(
            "SELECT status, count(*), sum(rows_count), min(path), arg_min(reason, path) "
            "FROM source GROUP BY status ORDER BY status = 'ok' DESC, status"
        )
        .fetchall()
    )
    bad = 0
    for status, files, count, path, reason in rows:
        plural = "" if files == 1 else "s"
        text = f"{status}: {files} file{plural}, {int(count or 0):,} rows"
        if status != "ok":
            bad += files
            text += f"; first {path}: {reason}"
        note(text)
    note(f"run: {opened.path} (generation {opened.run.manifest.generation})")
    is_all_bad = bad and bad == sum(row[1] for row in rows)
    return 2 if is_all_bad or (strict and bad) else 0


def job(
    paths: o.TargetsArg,
    output: o.OutputOpt = None,
    force: o.ForceOpt = False,
    given: o.JobOpt = None,
    workers: o.WorkersOpt = None,
    memory: o.MemoryOpt = None,
) -> None:
    """The inferred job description, with provenance, to correct and keep."""
    from tracekit.derive.infer import infer_job
    from tracekit.job import to_toml

    check_target(output, force)
    with open_target(paths, given, None, workers, memory) as run:
        description, provenance = infer_job(run.con, run.derived_tables(), run.job)
        write_text(to_toml(description, provenance), output)

"""Commands that make something to keep: ingest, job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import options as o
from tracekit.cli.look import open_target
from tracekit.cli.output import check_target, write_text
from tracekit.cli.state import note, progress_bar
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.api import OpenRun
    from tracekit.fleet.each import Added
    from tracekit.fleet.lakes import AnyLake


def ingest(
    paths: o.SomePathsArg = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Folder of the run.")
    ] = None,
    lake: Annotated[
        str | None, typer.Option("--lake", metavar="LAKE", help="A run of this lake instead.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="JOB", help="With --lake: the run's name; default: job and start."
        ),
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="With --lake: each PATH is a job of its own.")
    ] = False,
    job: o.JobOpt = None,
    workers: o.WorkersOpt = None,
    memory: o.MemoryOpt = None,
    scheduler: o.SchedulerOpt = None,
    cluster: o.ClusterOpt = None,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Keep Python frames (most of a file).")
    ] = False,
    attempt: o.AttemptOpt = None,
    nsys: o.NsysOpt = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 2 on any partial input.")] = False,
    log_format: o.LogFormatOpt = None,
) -> int:
    """Files to a run. The same files again change nothing; new files are added.

    Without PATH, what the run was made from: after an upgrade of tracekit.
    """
    del log_format
    if (run is None) == (lake is None):
        raise UsageError(
            "ingest needs a run or a lake, and one of them",
            hint="tracekit ingest PATH --run RUN, or --lake LAKE",
        )
    if name is not None and lake is None:
        raise UsageError("--name is for a lake", hint="--lake LAKE --name JOB")
    if each and (lake is None or name is not None or job or attempt is not None):
        raise UsageError(
            "--each is for a lake, and every job has its own name, description and attempts",
            hint="tracekit ingest JOBS/* --lake LAKE --each, with a job.toml in each job's folder",
        )
    from tracekit import api

    memory_bytes = o.parse_size(memory)
    if each and lake is not None:
        from tracekit.cluster import cluster_of
        from tracekit.fleet.each import added_each
        from tracekit.fleet.lakes import make_lake

        with cluster_of(scheduler, cluster, workers, memory_bytes) as remote:
            added = added_each(
                make_lake(lake),
                [*(paths or [])],
                remote,
                workers=workers,
                memory_bytes=memory_bytes,
                stacks=stacks,
                nsys=nsys,
            )
            return _say_what_was_added(added, strict)
    with progress_bar("ingesting") as progress:
        reading = {
            "stacks": stacks,
            "workers": workers,
            "memory_bytes": memory_bytes,
            "attempt": attempt,
            "nsys": nsys,
            "progress": progress,
        }
        if lake is not None:
            from tracekit.cluster import cluster_of
            from tracekit.fleet.lakes import make_lake

            with cluster_of(scheduler, cluster, workers, memory_bytes) as remote:
                opened_lake = make_lake(lake)
                ended = _end_date(opened_lake, name)
                run_name, is_new = opened_lake.add(
                    [*(paths or [])], name=name, job_paths=[*(job or [])], cluster=remote, **reading
                )
                where = opened_lake.path(run_name)
                if remote is not None:
                    with opened_lake.drop() as drop:
                        api.keep_waits(remote, where, drop, memory_bytes=memory_bytes)
            opened = api.open(where, memory_bytes=memory_bytes)
            _say_where(run_name, is_new)
            _warn_of_another_date(run_name, ended, _end_date(opened_lake, name))
        else:
            place = {"run": run or "", "scheduler": scheduler, "cluster": cluster}
            opened = api.ingest([*(paths or [])], job=[*(job or [])], **place, **reading)  # type: ignore[arg-type]  # each as ingest declares it
    with opened:
        return _say_what_was_read(opened, strict)


def _say_what_was_added(added: Iterable[tuple[str, Added]], strict: bool) -> int:
    count = bad = 0
    for path, told in added:
        count += 1
        if isinstance(told, Exception):
            bad += 1
            note(
                f"failed: {path}: {told}",
                level="warning",
                event="job_failed",
                path=path,
                reason=str(told),
            )
        else:
            name, is_new = told
            _say_where(name, is_new, path)
    if not count:
        raise UsageError("ingest --each needs paths", hint="tracekit ingest JOBS/* --lake L --each")
    told_of = f"{count - bad} of {count} jobs are in the lake"
    note(told_of, event="jobs_added", jobs_count=count, failed_count=bad)
    return 2 if bad == count or (strict and bad) else 0


def _say_where(name: str, is_new: bool, path: str | None = None) -> None:
    text = f"{'new in the lake' if is_new else 'in the lake already'}: {name}"
    fields = {} if path is None else {"path": path}
    note(
        text + (f" ({path})" if path is not None else ""),
        event="run_added",
        run=name,
        is_new=is_new,
        **fields,
    )


def _end_date(lake: AnyLake, name: str | None) -> str | None:
    """The date on which a run ended; None without such a run, or without a clock."""
    try:
        card = lake.entry(name).card if name is not None else None
    except UsageError:
        return None
    return card.end_utc[:10] if card is not None and card.end_utc is not None else None


def _warn_of_another_date(name: str, before: str | None, after: str | None) -> None:
    """Who gives each night's job the same name would have one run, and no night after the first."""
    if before is not None and after is not None and before < after:
        note(
            f"note: {name} ended on {before} and now ends on {after}: it stays one run, of the "
            "date on which it began. Another night's job needs another --name, or none",
            level="warning",
            run=name,
        )


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
        is_ok = status == "ok"
        note(
            text,
            level="info" if is_ok else "warning",
            event="files_read",
            status=status,
            files_count=files,
            rows_count=int(count or 0),
            **({} if is_ok else {"path": path, "reason": reason}),
        )
    generation = opened.run.manifest.generation
    where = f"run: {opened.path} (generation {generation})"
    note(where, event="run_written", path=str(opened.path), generation=generation)
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
    with open_target(paths, given, o.Part(workers, memory)) as run:
        description, provenance = infer_job(run.run.con, run.derived_tables(), run.job)
        write_text(to_toml(description, provenance), output)

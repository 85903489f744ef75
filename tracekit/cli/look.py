"""Commands that only look: sources, query, sql, cache."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import options as o
from tracekit.cli.output import Listed, check_target, write_rows, write_text
from tracekit.cli.state import note, progress_bar
from tracekit.errors import InputError, UsageError
from tracekit.wording import safe

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.api import OpenRun
    from tracekit.ingest.base import SourceFile
    from tracekit.query_file import Query


def open_target(
    paths: list[str],
    job: list[str] | None = None,
    part: o.Part | None = None,
    nsys: str | None = None,
    budget: str | None = None,
    in_place: bool | Collection[str] = False,
) -> OpenRun:
    """A run, or raw paths through the cache, with a progress bar; ``in_place`` as ``api.open``."""
    from tracekit import api

    part = part or o.Part()
    selected = part.selection
    with progress_bar("reading") as progress:
        run = api.open(
            [*paths],
            job=[*(job or [])],
            selection=selected,
            workers=part.workers,
            memory_bytes=part.memory_bytes,
            nsys=nsys,
            budget_s=o.parse_duration(budget, "--budget"),
            progress=progress,
            in_place=in_place,
        )
    if run.target is not None:
        from msgspec.structs import replace

        run.target = replace(run.target, part=o.selection_words(selected))
    return run


SHOWN_LOSSES = 2
LOST = ("unreadable", "partial", "empty")


def tell_losses(run: OpenRun) -> None:
    """Which files were not read, or not whole, on stderr: rows do not show what they lack."""
    rows = [r for r in run.answers.rows("job_sources") if r["status"] in LOST]
    lost = sorted(rows, key=lambda r: (LOST.index(r["status"]), r["path"], r["source_id"]))
    for row in lost[:SHOWN_LOSSES]:
        reason = f" ({safe(row['reason'])})" if row["reason"] else ""
        note(f"note: {row['status']}: {safe(row['path'])}{reason}")
    if len(lost) > SHOWN_LOSSES:
        more = f"note: and {len(lost) - SHOWN_LOSSES} more files"
        note(f"{more}; {run.target.command('query', 'job_sources')}" if run.target else more)


def sources(
    paths: o.PathsArg,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a file.")] = False,
    suggest: Annotated[
        bool,
        typer.Option("--suggest", help="Of tables that are not recognised: a block for job.toml."),
    ] = False,
) -> None:
    """What each file is recognised as, and why. One small read a file."""
    if suggest and as_json:
        raise UsageError("--suggest writes TOML, not JSON", hint="give one of the two")
    from tracekit.ingest import recognise
    from tracekit.ingest.files import expand
    from tracekit.ingest.nsys.report import with_exports
    from tracekit.runs import columns_of, explain, is_job_description

    files = with_exports(expand(paths))
    if not files:
        raise InputError("no files in " + ", ".join(paths), hint="give files, folders or archives")
    jobs = [file.path for file in files if is_job_description(file)]
    if jobs:
        from tracekit.job import load_jobs

        explained = columns_of(load_jobs(jobs))
        files = [explain(file, explained) for file in files]
    unknown = 0
    for file in files:
        if is_job_description(file):
            kind, status, reason = "job", "ok", "job description"
        else:
            recognition = recognise(file)
            kind, status, reason = recognition.kind, recognition.status, recognition.reason
        unknown += status != "ok"
        if suggest:
            if status != "ok" and (block := _suggested(file)):
                write_text(block, None)
        elif as_json:
            import json

            row = {"path": file.path, "kind": kind, "status": status, "reason": reason}
            write_text(json.dumps(row) + "\n", None)
        else:
            write_text(f"{kind:<20} {safe(file.path)}  ({status}: {safe(reason)})\n", None)
    if unknown:
        note(f"{unknown} of {len(files)} files cannot be used as they are")


def _suggested(file: SourceFile) -> str:
    """What job.toml could say of a table; nothing for what is none."""
    from tracekit.ingest.counters.suggest import suggest
    from tracekit.ingest.files import read_head
    from tracekit.ingest.parquet_text import as_text

    table = suggest(read_head(as_text(file)), file.name)
    return table.toml(file.name) + "\n" if table is not None else ""


@o.takes_part
def query(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH-or-RUN... NAME]",
            help="A run, or files to read; and a named query.",
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the queries.")] = False,
    param: Annotated[
        list[str] | None, typer.Option("--param", metavar="K=V", help="Parameter of the query.")
    ] = None,
    format_: o.FormatOpt = o.TableFormat.table,
    output: o.OutputOpt = None,
    force: o.ForceOpt = False,
    job: o.JobOpt = None,
    *,
    part: o.Part,
) -> None:
    """Rows of one named query. --list shows what there is."""
    from tracekit import catalog

    if list_:
        write_text("".join(_query_line(q) for q in catalog.queries()), None)
        return
    *paths, name = words or [""]
    if not paths:
        raise UsageError("query needs a run and a name", hint="tracekit query --list")
    if not catalog.has(name) and catalog.has(paths[0]):  # as other tools have it: the name first
        name, *paths = words or []
    query = catalog.find(name)  # a wrong name must not cost an ingest
    check_target(output, force)
    with open_target(paths, job, part, in_place=query.reads) as run:
        tell_losses(run)
        write_rows(_asked(run, name, _params(param), format_), format_, output)


KEPT_CELLS = 10_000
"""Answers of up to this many values are kept beside the run."""


def _asked(
    run: OpenRun, name: str, given: dict[str, str], format_: o.TableFormat
) -> pa.Table | Listed:
    """The rows of a query; as they are kept where they are, without a start of DuckDB and Arrow."""
    from tracekit import catalog

    query = catalog.find(name)
    defaults = {p.name: p.default for p in query.params}
    params = {k: v for k, v in query.bind(given).items() if v != defaults[k]}
    if query.completed is not None or format_ is o.TableFormat.parquet:
        return run.table(name, **given)
    rows = run.answers.kept_rows(name, params)
    if rows is None:
        answer = run.few_rows(name, given, KEPT_CELLS // len(query.columns))
        if not isinstance(answer, list):
            return answer
        rows = answer
        run.answers.keep(name, params, rows)
        run.answers.save()
    return Listed(
        [c.name for c in query.columns],
        [[row[c.name] for row in rows] for c in query.columns],
        [c.type not in ("INTEGER", "BIGINT", "DOUBLE") for c in query.columns],
    )


def _query_line(query: Query) -> str:
    params = "".join(f" --param {p.name}={p.default}" for p in query.params)
    return f"{query.name:<24} {query.title}{params}\n"


def _params(given: list[str] | None) -> dict[str, str]:
    params = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--param: cannot read {text!r}", hint="--param rounding=hta")
        params[key] = value
    return params


@o.takes_part
def sql(
    target: o.TargetArg,
    statement: Annotated[
        str | None, typer.Argument(metavar="[SELECT]", help="One SELECT; - reads stdin.")
    ] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the SQL here.")] = None,
    format_: o.FormatOpt = o.TableFormat.table,
    output: o.OutputOpt = None,
    force: o.ForceOpt = False,
    job: o.JobOpt = None,
    *,
    part: o.Part,
) -> None:
    """Any SELECT over the run's views. It can read the run and nothing else."""
    from tracekit.cli.memory import bounded
    from tracekit.store import DEFAULT_MEMORY_BYTES

    check_target(output, force)
    text = _statement(statement, file)
    with open_target([target], job, part, in_place=True) as run:
        tell_losses(run)
        limit = part.memory_bytes or DEFAULT_MEMORY_BYTES
        with bounded(limit):
            rows = run.rows(text)
        write_rows(rows, format_, output)


def _statement(statement: str | None, file: Path | None) -> str:
    if (statement is None) == (file is None):
        raise UsageError(
            "sql needs one statement", hint='tracekit sql RUN "SELECT ...", or -f FILE, or -'
        )
    if file is not None:
        from tracekit.job import read_given

        try:
            return read_given(file, "a statement").decode()
        except UnicodeDecodeError:
            raise InputError(f"{file}: its bytes are no UTF-8") from None
    return sys.stdin.read() if statement == "-" else statement or ""


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove what is cached.")] = False,
    older_than_days: Annotated[
        float, typer.Option("--older-than-days", min=0, help="With --clear: unused that long.")
    ] = 0.0,
) -> None:
    """What is cached from raw paths, and clearing it."""
    from tracekit import cache as store_cache

    if clear:
        gone = store_cache.clear(older_than_days * 86400)
        for removed in gone:
            stay = f"; {removed.left_count} files stay that the cache did not make"
            left = stay if removed.left_count else ""
            note(f"{removed.path}: {removed.size_bytes / 1e6:.1f} MB{left}")
        note(f"removed {len(gone)} runs, {sum(r.size_bytes for r in gone) / 1e6:.1f} MB")
        return
    runs = list(store_cache.cached_runs())
    for run in runs:
        used = time.strftime("%Y-%m-%d %H:%M", time.gmtime(run.used_at_s))
        first = safe(run.sources[0]) if run.sources else "?"
        more = f" and {len(run.sources) - 1} more" if len(run.sources) > 1 else ""
        write_text(f"{run.size_bytes / 1e6:9.1f} MB  {used} UTC  {run.path}  {first}{more}\n", None)
    note(f"{len(runs)} runs in {store_cache.runs_folder()}")

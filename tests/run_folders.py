"""What stands in a run's folder, and a process that makes one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tracekit import runs, store
from tracekit.schema import TABLES

ROOT = Path(__file__).resolve().parent.parent


def rows(run: Path) -> dict[str, list[str]]:
    """The rows of every table, sorted; derived keys of a run's folder do not occur in them."""
    with store.open_run(run) as opened:
        return {t.name: sorted(map(repr, opened.con.table(t.name).fetchall())) for t in TABLES}


def sources(run: Path) -> list[tuple[str, str, int | None]]:
    """Path, status and rank of every source."""
    with store.open_run(run) as opened:
        return opened.con.execute(
            "SELECT path, status, rank FROM source LEFT JOIN source_context USING (source_id) "
            "ORDER BY source_id"
        ).fetchall()


def start_python(script: str, *arguments: object) -> subprocess.Popen[str]:
    """A real process that runs the script with this checkout's tracekit."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rows_of_both_at_once(job: Path, run: Path) -> dict[str, list[str]]:
    whole = run.with_name("whole")
    runs.ingest([job], whole)
    return rows(whole)


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from tracekit import runs, store
    from tracekit.runs import build, execute
    from tracekit.store import writer

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    def dying_at(function, turn):
        turns = iter(range(1, 99))
        def call(*given, **named):
            if next(turns) == turn:
                die()
            return function(*given, **named)
        return call

    run, job, moment = sys.argv[1:]
    match moment:
        case "the first source is read":
            execute._ingest_source = die
        case "a source is half written":
            writer.SourceSink.close = die
        case "the shard is not yet in place":
            Path.rename = dying_at(Path.rename, 1)
        case "the shard is in place":
            build._derive = die
        case "the derived tables are half written":
            store.write_table = dying_at(store.write_table, 3)
        case "the derived tables are not yet in place":
            Path.rename = dying_at(Path.rename, 2)
        case "the manifest is not yet in place":
            os.link = die
        case "the manifest is in place":
            link = os.link
            os.link = lambda *given: (link(*given), die())
    runs.ingest([job], Path(run))
"""

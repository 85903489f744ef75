"""All commands, in the order of ``--help``."""

from __future__ import annotations

import typer

from tracekit.cli import (
    build,
    capture,
    compare,
    diagnosis,
    expect,
    fleet,
    look,
    plot,
    simulate,
    timeline,
    whatif,
)


def register(app: typer.Typer) -> None:
    """Add every command to the application (once)."""
    if app.registered_commands:
        return
    app.command("sources")(look.sources)
    app.command("ingest")(build.ingest)
    app.command("diagnose")(diagnosis.diagnose)
    app.command("show")(diagnosis.show)
    app.command("query")(look.query)
    app.command("sql")(look.sql)
    app.command("compare", cls=compare.Sided)(compare.compare)
    app.command("timeline")(timeline.timeline)
    app.command("plot")(plot.plot)
    app.command("job")(build.job)
    app.command("expect")(expect.expect)
    app.command("whatif")(whatif.whatif)
    app.command("capture")(capture.capture)
    app.command("explain")(diagnosis.explain)
    app.command("simulate")(simulate.simulate)
    app.command("cache")(look.cache)
    app.command("rollup")(fleet.rollup)
    app.add_typer(fleet.lake, name="lake")

"""Commands over many runs: lake."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import options as o
from tracekit.cli.output import Listed, write_rows, write_text
from tracekit.cli.state import note
from tracekit.wording import safe

if TYPE_CHECKING:
    from tracekit.fleet.lake import Entry
    from tracekit.store.removal import Removed

lake = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The runs of a lake: many under one root, as ingest --lake puts them there.",
)

LakeArg = Annotated[str, typer.Argument(metavar="LAKE", help="Folder of the lake.")]
JsonOpt = Annotated[bool, typer.Option("--json", help="As JSON.")]
DryOpt = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


@lake.command("ls")
def ls(
    lake: LakeArg,
    name: Annotated[
        str | None, typer.Option("--name", metavar="GLOB", help="Whose name matches, as 'llama-*'.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="D", help="That ran on this date or later.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="D", help="That ran on this date or earlier.")
    ] = None,
    signature: Annotated[
        str | None,
        typer.Option("--signature", metavar="S", help="Whose signature begins so."),
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="HOST", help="That had a part on this host.")
    ] = None,
    format_: o.FormatOpt = o.TableFormat.table,
) -> None:
    """The runs of a lake, by date."""
    from tracekit.fleet.lake import Lake

    if format_ is o.TableFormat.parquet:
        format_ = o.TableFormat.csv
    found = Lake(lake).entries(
        name=name,
        since=o.parse_date(since, "--since"),
        until=o.parse_date(until, "--until"),
        signature=signature,
        host=host,
    )
    entries = list(found)
    write_rows(_listed(entries), format_)
    for entry in entries:
        if entry.damage:
            note(f"note: {entry.name}: {entry.damage}")
    note(f"{len(entries)} runs")


def _listed(entries: list[Entry]) -> Listed:
    names = ["date", "name", "job_name", "signature", "world_size", "hosts_count", "framework"]
    rows: list[list[object]] = []
    for entry in entries:
        card = entry.card
        if card is None:
            rows.append([None, entry.name, *[None] * 5, str(entry.path)])
            continue
        hosts = len(card.hosts) or None
        about = [card.job_name, card.signature, card.world_size, hosts, card.framework]
        rows.append([card.date, card.name, *about, str(entry.path)])
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(8)]
    is_text = [name not in ("world_size", "hosts_count") for name in [*names, "path"]]
    return Listed([*names, "path"], columns, is_text)


@lake.command("show")
def show(
    lake: LakeArg,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the run.")],
    as_json: JsonOpt = False,
) -> None:
    """What is known of one run, and where it is: every command that takes a RUN takes its path."""
    from tracekit.errors import StoreError
    from tracekit.fleet.lake import Lake

    entry = Lake(lake).entry(name)
    if entry.card is None:
        raise StoreError(f"{entry.name}: {entry.damage}", hint="tracekit lake rm, and ingest again")
    said = {**asdict(entry.card), "path": str(entry.path)}
    if as_json:
        write_text(json.dumps(said, indent=1) + "\n", None)
        return
    lines = []
    for label, value in said.items():
        text = ", ".join(value) if isinstance(value, tuple) else str(value)
        lines.append(f"{label:<16} {'-' if value in (None, ()) else safe(text)}\n")
    write_text("".join(lines), None)


@lake.command("rm")
def rm(
    lake: LakeArg,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of runs.")],
    dry_run: DryOpt = False,
) -> None:
    """Remove runs. The fleet's tables keep what they said."""
    from tracekit.fleet.lake import Lake

    found = Lake(lake)
    for entry in [found.entry(name) for name in names]:  # a wrong name removes nothing
        if dry_run:
            note(f"would remove {entry.path}")
        else:
            _tell(found.remove(entry.name))


@lake.command("prune")
def prune(
    lake: LakeArg,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="90d", help="Ran and came in longer ago.")
    ],
    dry_run: DryOpt = False,
) -> None:
    """Remove runs of long ago. The fleet's tables keep what they said."""
    from tracekit.fleet.lake import Lake

    found = Lake(lake)
    old = found.older_than(o.parse_days(older_than, "--older-than"))
    for entry in old:
        if dry_run:
            note(f"would remove {entry.path}")
        else:
            _tell(found.remove(entry.name))
    note(f"{'would remove' if dry_run else 'removed'} {len(old)} runs")


def _tell(removed: Removed) -> None:
    stay = f"; {removed.left_count} files stay that tracekit did not make"
    left = stay if removed.left_count else ""
    note(f"removed {removed.path}: {removed.size_bytes / 1e6:.1f} MB{left}")

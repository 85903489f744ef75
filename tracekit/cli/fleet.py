"""Commands over many runs: lake, rollup, site."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins

from tracekit.cli import options as o
from tracekit.cli.diagnosis import ConfigOpt, FailOn, settings_of
from tracekit.cli.output import Listed, check_target, write_rows, write_text
from tracekit.cli.plain import PlainCommand, PlainGroup
from tracekit.cli.state import STATE, fail, note
from tracekit.errors import UsageError
from tracekit.wording import plural, safe

if TYPE_CHECKING:
    from tracekit.fleet.lake import Entry
    from tracekit.fleet.lakes import AnyLake
    from tracekit.fleet.night import Night
    from tracekit.fleet.nights import Price
    from tracekit.fleet.rollup import Rolled
    from tracekit.fleet.site import Site
    from tracekit.fleet.store import FleetStore
    from tracekit.fleet.summary import Links
    from tracekit.store.removal import Removed

lake = typer.Typer(
    cls=PlainGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="The runs of a lake: many under one root, as ingest --lake puts them there.",
)

NOTIFY_S = 60.0
"""How long whoever is notified may take."""
SHOWN_LATER = 3
"""Runs dated later than tomorrow that are named."""

LakeArg = Annotated[str, typer.Argument(metavar="LAKE", help="Folder of the lake, or its URI.")]
JsonOpt = Annotated[bool, typer.Option("--json", help="As JSON.")]
DryOpt = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


@lake.command("ls", cls=PlainCommand)
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
    from tracekit.fleet.lakes import lake_at

    if format_ is o.TableFormat.parquet:
        raise UsageError("a list of runs is no table of Parquet", hint="--format csv")
    entries = list(
        lake_at(lake).entries(
            name=name,
            since=o.parse_date(since, "--since"),
            until=o.parse_date(until, "--until"),
            signature=signature,
            host=host,
        )
    )
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


@lake.command("show", cls=PlainCommand)
def show(
    lake: LakeArg,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the run.")],
    as_json: JsonOpt = False,
) -> None:
    """What is known of one run, and where it is: every command that takes a RUN takes its path."""
    from tracekit.errors import StoreError
    from tracekit.fleet.lakes import lake_at

    entry = lake_at(lake).entry(name)
    if entry.card is None:
        raise StoreError(f"{entry.name}: {entry.damage}", hint="tracekit lake rm, and ingest again")
    said = {**to_builtins(entry.card), "path": str(entry.path)}
    if as_json:
        write_text(json.dumps(said, indent=1) + "\n", None)
        return
    lines = []
    for label, value in said.items():
        text = ", ".join(value) if isinstance(value, tuple) else str(value)
        lines.append(f"{label:<16} {'-' if value in (None, ()) else safe(text)}\n")
    write_text("".join(lines), None)


@lake.command("rm", cls=PlainCommand)
def rm(
    lake: LakeArg,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of runs.")],
    dry_run: DryOpt = False,
) -> None:
    """Remove runs. The fleet's tables keep what they said."""
    from tracekit.fleet.lakes import lake_at

    opened_lake = lake_at(lake)
    for entry in [opened_lake.entry(name) for name in names]:  # a wrong name removes nothing
        if dry_run:
            note(f"would remove {entry.path}")
        else:
            _tell(opened_lake.remove(entry.name))


@lake.command("prune", cls=PlainCommand)
def prune(
    lake: LakeArg,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="90d", help="Ran and came in longer ago.")
    ],
    dry_run: DryOpt = False,
) -> None:
    """Remove runs of long ago. The fleet's tables keep what they said."""
    from tracekit.fleet.lake import older_than as aged
    from tracekit.fleet.lakes import lake_at

    opened_lake = lake_at(lake)
    old = aged(opened_lake.entries(), o.parse_days(older_than, "--older-than"))
    count = 0
    for entry in old:
        if dry_run:
            note(f"would remove {entry.path}")
        else:
            try:
                _tell(opened_lake.remove(entry.name))
            except UsageError:  # somebody else removed it since
                continue
        count += 1
    note(f"{'would remove' if dry_run else 'removed'} {count} runs")


def _tell(removed: Removed) -> None:
    stay = f"; {removed.left_count} files stay that tracekit did not make"
    left = stay if removed.left_count else ""
    note(f"removed {removed.path}: {removed.size_bytes / 1e6:.1f} MB{left}")


class NightFormat(StrEnum):
    """How a night is written."""

    text = "text"
    markdown = "markdown"
    json = "json"


NightDateOpt = Annotated[
    str | None, typer.Option("--date", metavar="D", help="Only runs of this date (UTC).")
]
NightSinceOpt = Annotated[
    str | None, typer.Option("--since", metavar="D", help="Only runs of this date or later.")
]
NightFormatOpt = Annotated[NightFormat, typer.Option("--format", help="How the night is written.")]
FailOnNewOpt = Annotated[
    FailOn | None,
    typer.Option("--fail-on", help="Exit 1 where something new is of this severity or above."),
]
StrictOpt = Annotated[
    bool, typer.Option("--strict", help="Exit 2 where a run, or the notify command, failed.")
]
NotifyOpt = Annotated[
    str | None,
    typer.Option(
        "--notify-command", metavar="CMD", help="Gets the night on stdin; started without a shell."
    ),
]
OpenMetricsOpt = Annotated[
    Path | None,
    typer.Option(
        "--openmetrics",
        metavar="F",
        help="Replace F: four weeks, or since --since, with timestamps.",
    ),
]
TextfileOpt = Annotated[
    Path | None,
    typer.Option("--textfile", metavar="F", help="Replace F: the night, for node-exporter."),
]
SiteOpt = Annotated[
    Path | None,
    typer.Option(
        "--site", metavar="DIR", help="Write the fleet's pages there; the night links to them."
    ),
]
SiteUrlOpt = Annotated[
    str | None,
    typer.Option("--site-url", metavar="URL", help="Where that folder is served, for the links."),
]
ReportsOpt = Annotated[
    int,
    typer.Option(
        "--reports", metavar="N", min=0, help="Runs whose report pages the site has, at most."
    ),
]
PriceOpt = Annotated[
    str | None,
    typer.Option("--gpu-hour-price", metavar="PRICE", help="Losses in money too, as at 2.10EUR."),
]


def rollup(
    lake: LakeArg,
    date: NightDateOpt = None,
    since: NightSinceOpt = None,
    dry_run: DryOpt = False,
    format_: NightFormatOpt = NightFormat.text,
    output: o.OutputOpt = None,
    force: o.ForceOpt = False,
    fail_on: FailOnNewOpt = None,
    strict: StrictOpt = False,
    notify_command: NotifyOpt = None,
    openmetrics: OpenMetricsOpt = None,
    textfile: TextfileOpt = None,
    price: PriceOpt = None,
    site: SiteOpt = None,
    site_url: SiteUrlOpt = None,
    reports: ReportsOpt = 100,
    workers: o.WorkersOpt = None,
    memory: o.MemoryOpt = None,
    scheduler: o.SchedulerOpt = None,
    cluster: o.ClusterOpt = None,
    config: ConfigOpt = None,
    log_format: o.LogFormatOpt = None,
) -> int:
    """Every run that is new or changed into the fleet's tables, and what the night says.

    The same night again changes nothing; after a kill the next call goes on.
    """
    from tracekit.cluster import cluster_of
    from tracekit.errors import RunWriteError, StoreError
    from tracekit.fleet.lakes import lake_at
    from tracekit.fleet.night import judged
    from tracekit.fleet.nights import keep, told_before
    from tracekit.fleet.rollup import rolled_up
    from tracekit.fleet.store import FleetStore
    from tracekit.fleet.summary import Links, to_json
    from tracekit.runs import available_cpus

    del log_format
    date, since = o.parse_date(date, "--date"), o.parse_date(since, "--since")
    _check_before_rollup(output, force, (openmetrics, textfile), site)
    base = _site_base(site, site_url)
    if date is not None and since is not None:
        raise UsageError("--date and --since exclude each other", hint="--since 2026-07-21")
    command = _words(notify_command)
    stated = _price(price)
    opened_lake = lake_at(lake)
    memory_bytes = o.parse_size(memory)
    settings = settings_of(config)
    with cluster_of(scheduler, cluster, workers, memory_bytes) as remote:
        rolled = rolled_up(
            opened_lake,
            date=date,
            since=since,
            dry_run=dry_run,
            workers=workers or available_cpus(),
            memory_bytes=memory_bytes,
            config=settings,
            cluster=remote,
            is_interrupted=lambda: STATE.is_interrupted,
        )
    for name, why in rolled.failed:
        note(f"failed: {name}: {why}", level="warning", event="run_failed", run=name, reason=why)
    for name in rolled.removed:
        note(f"removed meanwhile: {name}", event="run_removed", run=name)
    if dry_run:
        write_text("".join(f"{safe(name)}\n" for name in rolled.done), output)
        note(f"would roll up {len(rolled.done)} runs; {rolled.unchanged_count} are held already")
        return 0
    store = FleetStore(opened_lake.fleet)
    day = date or _last_date(store)
    if day is None:
        note("the lake has no run yet")
        return 2 if strict and rolled.failed else 0
    night = judged(store, day, rolled, price=stated, told=told_before(store.folder, day))
    _log_counts(rolled, day)
    links = None
    if site is not None:
        try:
            made = _site(
                store,
                opened_lake,
                site,
                night,
                count=reports,
                workers=workers or available_cpus(),
                memory_bytes=memory_bytes,
                config=settings,
            )
            links = Links(base, made.reports)
        except (RunWriteError, StoreError) as error:
            fail(error.message, error.hint)  # a full disk there keeps nobody from being told
    text = _written(night, format_, opened_lake, links)
    write_text(text, output)
    is_notified = not command or _notify(command, text)
    if is_notified:  # else the next night tells it as new
        keep(store.folder, day, to_json(night))
    _write_metrics(store, night, since, openmetrics, textfile)
    is_whole = (is_notified or not strict) and (links is not None or site is None)
    return _exit_status(night, rolled, strict, fail_on) if is_whole else 2


def _last_date(store: FleetStore) -> str | None:
    """The last date of any run up to tomorrow, since a clock may be somewhat ahead.

    Runs that are dated later are named: one wrong clock must not be the last night for years.
    """
    import datetime

    ledger = store.ledger()
    today = datetime.datetime.now(datetime.UTC).date()
    tomorrow = (today + datetime.timedelta(days=1)).isoformat()
    later = {n: r["date"] for n, r in ledger.items() if (r["date"] or "") > tomorrow}
    dates = {row["date"] for row in ledger.values() if row["date"]}
    past = dates - set(later.values())
    for name, day in sorted(later.items())[:SHOWN_LATER] if past else ():
        note(
            f"{name} is dated {day}, which is not yet: its host's clock is wrong (or this one's, "
            f"by which it is {today.isoformat()}), and no night before that date counts it",
            level="warning",
        )
    if past and len(later) > SHOWN_LATER:
        note(f"{plural(len(later) - SHOWN_LATER, 'run')} more dated later", level="warning")
    return max(past or dates, default=None)


def _check_before_rollup(
    output: Path | None, force: bool, replaced: Iterable[Path | None], site: Path | None
) -> None:
    """UsageError or StoreError for what a night must not find out in the morning."""
    from tracekit.fleet.store import check_installed

    if site is not None:
        from tracekit.fleet.site import check_folder

        check_folder(site)
    check_installed()
    check_target(output, force)
    for path in replaced:
        check_target(path, True)


def _exit_status(night: Night, rolled: Rolled, strict: bool, fail_on: FailOn | None) -> int:
    """2 where a run failed and ``--strict`` asks, 1 where something new is as severe as asked."""
    from tracekit.findings import Severity

    if strict and rolled.failed:
        fail(f"--strict, and {len(rolled.failed)} runs failed")
        return 2
    worst = night.worst()
    if fail_on is None or worst is None:
        return 0
    return int(worst.weight >= Severity(fail_on.value).weight)


def _log_counts(rolled: Rolled, day: str) -> None:
    """For who collects JSON: a night that says nothing went well, or was never begun."""
    if STATE.is_log_json:
        note(
            f"rolled up {plural(len(rolled.done), 'run')}",
            event="rolled_up",
            night=day,
            done_count=len(rolled.done),
            failed_count=len(rolled.failed),
            unchanged_count=rolled.unchanged_count,
        )


def _written(night: Night, format_: NightFormat, lake: AnyLake, links: Links | None) -> str:
    from tracekit.fleet import summary

    if format_ is NightFormat.json:
        return summary.to_json(night, links)
    if format_ is NightFormat.markdown:
        return summary.to_markdown(night, links)
    return summary.to_text(night, lake.root, links)


def _site_base(site: Path | None, url: str | None) -> str:
    """What links of the night begin with. UsageError where that is no URL, or of no site."""
    if url is None:
        return str(site.absolute()) if site is not None else ""
    if site is None:
        raise UsageError("--site-url says where a site is served", hint="--site DIR beside it")
    if not re.fullmatch(r"https?://[^\s<>\"\\]+", url):
        raise UsageError(
            f"--site-url: {url!r} is no address of a site",
            hint="--site-url https://fleet.example.org",
        )
    return url.rstrip("/")


def _site(
    store: FleetStore,
    lake: AnyLake,
    folder: Path,
    night: Night,
    *,
    count: int,
    workers: int,
    memory_bytes: int | None,
    config: Mapping[str, Any],
) -> Site:
    """The site of a night, and what is said of it."""
    from tracekit.fleet import reports
    from tracekit.fleet.site import write_site

    asked = reports.asked(
        lake, count=count, workers=workers, memory_bytes=memory_bytes, config=config
    )
    written = write_site(store, lake.root, folder, night, asked)
    made = written.reports
    told = f"{len(made.pages)} of them reports, {made.new_count} new"
    note(f"wrote {len(written.pages)} pages, {told}; open {folder / 'index.html'}")
    if made.missing:
        note(f"note: {plural(len(made.missing), 'run')} without a report page: the site says why")
    return written


def site(
    lake: LakeArg,
    folder: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Write here.")],
    date: Annotated[
        str | None, typer.Option("--date", metavar="D", help="As of this date; default: the last.")
    ] = None,
    reports: ReportsOpt = 100,
    price: PriceOpt = None,
    workers: o.WorkersOpt = None,
    memory: o.MemoryOpt = None,
    config: ConfigOpt = None,
) -> None:
    """The fleet as a static site, from what rollup keeps."""
    from tracekit.errors import InputError
    from tracekit.fleet.lakes import lake_at
    from tracekit.fleet.night import judged
    from tracekit.fleet.nights import told_before
    from tracekit.fleet.rollup import Rolled
    from tracekit.fleet.site import check_folder
    from tracekit.fleet.store import FleetStore
    from tracekit.runs import available_cpus

    stated = _price(price)
    check_folder(folder)
    opened_lake = lake_at(lake)
    store = FleetStore(opened_lake.fleet)
    day = o.parse_date(date, "--date") or _last_date(store)
    if day is None:
        raise InputError(f"{lake}: nothing is rolled up yet", hint=f"tracekit rollup {lake}")
    _site(
        store,
        opened_lake,
        folder,
        judged(store, day, Rolled(), price=stated, told=told_before(store.folder, day)),
        count=reports,
        workers=workers or available_cpus(),
        memory_bytes=o.parse_size(memory),
        config=settings_of(config),
    )


def _write_metrics(
    store: FleetStore,
    night: Night,
    since: str | None,
    openmetrics: Path | None,
    textfile: Path | None,
) -> None:
    from datetime import date, timedelta

    from tracekit.fleet import metrics
    from tracekit.fleet.limits import Limits
    from tracekit.fleet.nights import prices

    if openmetrics is not None:
        weeks = timedelta(days=Limits().window_days - 1)
        first = since or (date.fromisoformat(night.date) - weeks).isoformat()
        told = prices(store.folder, first, night.date)
        write_text(metrics.history(store, first, night.date, night.price, told), openmetrics)
    if textfile is not None:
        write_text(metrics.current(night), textfile)


def _price(text: str | None) -> Price | None:
    """An amount with its currency. UsageError where it is something else, or nothing."""
    from tracekit.fleet.nights import Price

    if text is None:
        return None
    amount = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([A-Za-z]{1,8}|[$€£¥])", text.strip())
    if amount is None or float(amount[1]) == 0:
        raise UsageError(
            f"--gpu-hour-price: {text!r} is no price with a currency",
            hint="--gpu-hour-price 2.10EUR",
        )
    return Price(float(amount[1]), amount[2])


def _words(command: str | None) -> list[str]:
    """A command as the words that it is started with. UsageError where it has none."""
    if command is None:
        return []
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(
            f"--notify-command: {error}", hint="--notify-command 'mail -s x y'"
        ) from None
    if not words:
        raise UsageError("--notify-command: nothing is given", hint="--notify-command 'mail x'")
    return words


def _notify(command: list[str], text: str) -> bool:
    """Hand the night over, as UTF-8 whatever the locale, and whether that went well: what goes
    wrong there is said, and the night stays as it is."""
    why = None
    try:
        done = subprocess.run(  # noqa: S603  # what the user gave, no shell between
            command,
            input=text.encode("utf-8", "backslashreplace"),
            timeout=NOTIFY_S,
            check=False,
            stdout=subprocess.DEVNULL,
        )
        if done.returncode:
            why = f" ended with {done.returncode}"
    except subprocess.TimeoutExpired:
        why = f": not done within {NOTIFY_S:g} s"
    except OSError as error:
        why = f": {error.strerror or type(error).__name__}"
    if why is not None:
        fail(f"--notify-command: {safe(command[0])}{why}")
    return why is None

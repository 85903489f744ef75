"""Options that several commands share, and how their text is read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tracekit.cli.state import STATE
from tracekit.errors import UsageError
from tracekit.logs import log_json

if TYPE_CHECKING:
    from tracekit.store import Selection

R = TypeVar("R")


class TableFormat(StrEnum):
    """How rows are written."""

    table = "table"
    csv = "csv"
    json = "json"
    jsonl = "jsonl"
    parquet = "parquet"


class LogFormat(StrEnum):
    """How messages are written to stderr."""

    text = "text"
    json = "json"


def _log(context: typer.Context, format_: LogFormat | None) -> LogFormat | None:
    if format_ is LogFormat.json and not STATE.is_log_json:
        STATE.is_log_json = True
        context.call_on_close(log_json())
    return format_


LogFormatOpt = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format",
        callback=_log,
        is_eager=True,
        help="How stderr reads; json: an object a line.",
    ),
]
PathsArg = Annotated[
    list[str], typer.Argument(metavar="PATH...", help="Files, folders, globs, archives.")
]
SomePathsArg = Annotated[
    list[str] | None, typer.Argument(metavar="PATH...", help="Files, folders, globs, archives.")
]
TargetsArg = Annotated[
    list[str], typer.Argument(metavar="PATH-or-RUN...", help="A run, or files to read.")
]
TargetArg = Annotated[str, typer.Argument(metavar="RUN", help="A run, or a file or folder.")]
JobOpt = Annotated[
    list[str] | None,
    typer.Option("--job", metavar="F", help="Job description, or one to import; repeatable."),
]
WorkersOpt = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Worker processes; default: the CPUs it may use."),
]
MemoryOpt = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Memory to use, such as 2GB: for queries (512MB), and shared out among workers.",
    ),
]
SchedulerOpt = Annotated[
    str | None,
    typer.Option("--scheduler", metavar="ADDR", help="Work on this Dask cluster: tcp://HOST:8786."),
]
ClusterOpt = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="KIND", help="Start a Dask cluster: local, slurm or kubernetes."
    ),
]
BudgetOpt = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="T",
        help="Report within about this time (60s, 5m); say what was not read.",
    ),
]
FormatOpt = Annotated[TableFormat, typer.Option("--format", help="How rows are written.")]
OutputOpt = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="F", help="Write here, not to stdout.")
]
ForceOpt = Annotated[bool, typer.Option("--force", help="Overwrite what exists.")]
RanksOpt = Annotated[
    str | None, typer.Option("--ranks", metavar="0-7,37", help="Only these ranks.")
]
HostsOpt = Annotated[str | None, typer.Option("--hosts", metavar="A,B", help="Only these hosts.")]
StepsOpt = Annotated[str | None, typer.Option("--steps", metavar="10-20", help="Only these steps.")]
SinceOpt = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="From then (ISO 8601 UTC or epoch s).")
]
UntilOpt = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Until then.")]
AttemptOpt = Annotated[
    int | None, typer.Option("--attempt", min=1, help="Attempt (restart); default: the last.")
]
WindowOpt = Annotated[
    int | None, typer.Option("--window", min=0, help="Capture window, from 0; default: all.")
]


@dataclass(frozen=True)
class Part:
    """What is read of a run, and by how much of the machine: options of all that read one."""

    workers: WorkersOpt = None
    memory: MemoryOpt = None
    ranks: RanksOpt = None
    hosts: HostsOpt = None
    steps: StepsOpt = None
    since: SinceOpt = None
    until: UntilOpt = None
    attempt: AttemptOpt = None
    window: WindowOpt = None

    @property
    def memory_bytes(self) -> int | None:
        """UsageError where that is no size."""
        return parse_size(self.memory)

    @property
    def selection(self) -> Selection:
        """UsageError names the option that cannot be read."""
        from tracekit.store import Selection

        return Selection(
            ranks=parse_ranges(self.ranks, "--ranks"),
            hosts=parse_names(self.hosts, "--hosts"),
            steps=parse_ranges(self.steps, "--steps"),
            since_ns=parse_time(self.since, "--since"),
            until_ns=parse_time(self.until, "--until"),
            attempt=self.attempt,
            window=self.window,
        )


def takes_part(command: Callable[..., R]) -> Callable[..., R]:
    """A command whose last parameter is ``part``: on the command line, the options of a Part."""
    options = inspect.signature(Part, eval_str=True).parameters
    others = inspect.signature(command, eval_str=True).parameters.values()

    @wraps(command)
    def called(**given: Any) -> R:
        part = Part(**{name: given.pop(name) for name in options})
        return command(**given, part=part)

    signature = inspect.Signature([*(p for p in others if p.name != "part"), *options.values()])
    called.__signature__ = signature  # type: ignore[attr-defined]  # what Typer reads
    return called


NsysOpt = Annotated[
    str | None,
    typer.Option("--nsys", metavar="PATH", help="The nsys that exports .nsys-rep files."),
]

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_DAYS = re.compile(r"(\d+(?:\.\d+)?)\s*([dw]?)")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)


def parse_ranges(text: str | None, option: str) -> tuple[tuple[int, int], ...]:
    """``0-7,37`` as inclusive ranges. UsageError names the option."""
    if text is None:
        return ()
    ranges = []
    _check_given(text, option, "0-7,37")
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if not match:
            raise UsageError(f"{option}: cannot read {part!r}", hint=f"{option} 0-7,37")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise UsageError(f"{option}: {part!r} runs backwards", hint=f"{option} {high}-{low}")
        ranges.append((low, high))
    return tuple(ranges)


def parse_names(text: str | None, option: str) -> tuple[str, ...]:
    """``a, b`` as names. UsageError names the option."""
    if text is None:
        return ()
    _check_given(text.replace(",", ""), option, "gpu-01,gpu-02")
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _check_given(text: str, option: str, example: str) -> None:
    # A variable of the shell that is empty must not select everything.
    if not text.strip():
        raise UsageError(f"{option}: nothing is given", hint=f"{option} {example}")


def parse_time(text: str | None, option: str) -> int | None:
    """ISO 8601 (UTC unless it names a zone) or epoch seconds, as ns since the epoch."""
    if text is None:
        return None
    if re.fullmatch(r"\d+(\.\d+)?", text):
        whole, _, fraction = text.partition(".")
        return int(whole) * 10**9 + int((fraction + "0" * 9)[:9])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option}: cannot read {text!r}", hint=f"{option} 2026-07-21T02:41:07Z"
        ) from None
    from datetime import UTC

    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since_epoch = moment - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = since_epoch.days * 86400 + since_epoch.seconds
    return seconds * 10**9 + since_epoch.microseconds * 1000


def _amount(pattern: re.Pattern[str], text: str, option: str, example: str) -> re.Match[str]:
    """A number above 0 with its unit; UsageError for anything else."""
    match = pattern.fullmatch(text.strip())
    if not match or float(match[1]) <= 0:
        raise UsageError(f"{option}: cannot read {text!r}", hint=f"{option} {example}")
    return match


def parse_size(text: str | None) -> int | None:
    """``2GB`` (powers of 1000; ``GiB`` is 1024) of ``--memory`` as bytes."""
    if text is None:
        return None
    match = _amount(_SIZE, text, "--memory", "2GB")
    base = 1024 if "i" in text.lower() else 1000
    return int(float(match[1]) * base ** " KMGT".index(match[2].upper() or " "))


def parse_duration(text: str | None, option: str) -> float | None:
    """``90``, ``60s``, ``5m``, ``1h`` as seconds."""
    if text is None:
        return None
    match = _amount(_DURATION, text, option, "60s")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def parse_days(text: str, option: str) -> float:
    """``90``, ``90d``, ``12w`` as days."""
    match = _amount(_DAYS, text, option, "90d")
    return float(match[1]) * (7 if match[2] == "w" else 1)


def parse_date(text: str | None, option: str) -> str | None:
    """``2026-07-21``, as it is written."""
    if text is None:
        return None
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise UsageError(f"{option}: {text!r} is no date", hint=f"{option} 2026-07-21") from None


def selection_words(chosen: Selection) -> dict[str, str]:
    """A Selection as the options that mean it."""

    def ranges(spans: tuple[tuple[int, int], ...]) -> str:
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)

    def time(moment_ns: int | None) -> str | None:
        return None if moment_ns is None else f"{moment_ns // 10**9}.{moment_ns % 10**9:09d}"

    words = {
        "--ranks": ranges(chosen.ranks),
        "--hosts": ",".join(chosen.hosts),
        "--steps": ranges(chosen.steps),
        "--since": time(chosen.since_ns),
        "--until": time(chosen.until_ns),
        "--attempt": None if chosen.attempt is None else str(chosen.attempt),
        "--window": None if chosen.window is None else str(chosen.window),
    }
    return {option: value for option, value in words.items() if value}

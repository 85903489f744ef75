"""What stands before a log's lines: dates in whatever form, and what carried them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import nccl_logs
from soaks import soak
from tracekit.ingest.steplog.heads import Heads

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
NCCL_LOGS = Path(__file__).parents[3] / "shared" / "data" / "nccl"


def read(*lines: str) -> list[str]:
    text = "\n".join(lines).encode()
    return b"\n".join(Heads().texts([text])).decode().split("\n")


def of_lines(line: str) -> list[str]:
    """The line among others of its kind, a second apart."""
    return [line.replace("SS", f"{second:02d}") for second in range(1, 7)]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("07/21/2026 10:00:SS - INFO - __main__ - step", "2026-07-21 10:00:SS - INFO"),
        ("[07/21/2026 10:00:SS] step", "[2026-07-21 10:00:SS] step"),
        ("INFO:07/21/2026 09:00:SS PM:step", "INFO:2026-07-21 21:00:SS:step"),
        ("07/21/2026, 12:00:SS AM step", "2026-07-21 00:00:SS step"),
        ("21/07/2026 10:00:SS,123 step", "2026-07-21 10:00:SS.123 step"),
        ("21-07-2026 10:00:SS step", "2026-07-21 10:00:SS step"),
        ("2026-07-21,10:00:SS | INFO | Train Epoch: 0", "2026-07-21 10:00:SS | INFO"),
        ("[2026-07-21 - 10:00:SS] step", "[2026-07-21 10:00:SS] step"),
        ("2026.07.21 10:00:SS step", "2026-07-21 10:00:SS step"),
        ("2026/07/21-10:00:SS step", "2026-07-21 10:00:SS step"),
        ("[Tue Jul 21 10:00:SS 2026] step", "[2026-07-21 10:00:SS] step"),
        ("Tue Jul 21 10:00:SS UTC 2026 step", "2026-07-21 10:00:SSZ step"),
        ("Jul 1, 2026 10:00:SS.5 step", "2026-07-01 10:00:SS.5 step"),
        ("21-Jul-2026 10:00:SS step", "2026-07-21 10:00:SS step"),
        ("[1/Jul/2026:10:00:SS +0200] step", "[2026-07-01 10:00:SS+0200] step"),
        ("20260721 10:00:SS,123 step", "2026-07-21 10:00:SS.123 step"),
        ("20260721T1000SSZ step", "2026-07-21 10:00:SSZ step"),
        ("17846028SS.125 step", None),
        ("17846028SS125 step", None),
        # A date without a year is none, but its clock tells how long lines are apart.
        ("Jul 21 10:00:SS node07 python3[4711]: step", "I0721 10:00:SS.0 node07"),
        ("Jul  1 10:00:SS.25 node07 python3[4711]: step", "I0701 10:00:SS.25 node07"),
        # Another date behind it is the program's own.
        ("Jul 21 10:00:SS 2026-07-21 08:00:SS step", "I0721 10:00:SS.0 2026-07-21 08:00:SS"),
    ],
)
def test_dates_of_heads_are_written_as_iso_does(line: str, told: str | None) -> None:
    lines = of_lines(line)
    if told is None:
        start = datetime.fromtimestamp(1784602800, UTC)
        expected = [f"{start:%Y-%m-%d %H:%M}:{second:02d}.125Z step" for second in range(1, 7)]
        assert read(*lines) == expected
        return
    for got, begins in zip(read(*lines), of_lines(told), strict=True):
        assert got.startswith(begins)
    assert [got.rpartition("step")[1] for got in read(*lines)] == [
        line.rpartition("step")[1] for line in lines
    ]


@pytest.mark.parametrize(
    "lines",
    [
        of_lines("2026-07-21 10:00:SS step"),
        of_lines("[07/21/26 10:00:SS] INFO step"),
        # Few of many lines name a date: a message's.
        [*[f"step {i}" for i in range(200)], *of_lines("data of 07/21/2026 10:00:SS")[:5]],
        of_lines("07/21/2026 10:00:SS step")[:4],
        of_lines("x" * 81 + " 07/21/2026 10:00:SS step"),
        # Numbers that fall are none of a clock.
        [f"{1784602800 - 60 * i} step" for i in range(10)],
        [f"{1784602800 + i} step".replace("1784", "0784") for i in range(10)],
        of_lines("v1.2026.07.21 of SS files"),
        ['{"log": 7, "time": "2026-07-21T10:00:00Z"}'] * 6,
        ['{"message": "step 1", "timestamp": "2026-07-21T10:00:00Z"}'] * 6,  # a program's own
        ['{"log": "a", '] * 6,
    ],
)
def test_what_else_stands_there_stays(lines: list[str]) -> None:
    assert read(*lines) == lines


@pytest.mark.parametrize(
    ("dates", "is_day_first"),
    [
        (["09/07/2026", "14/07/2026"], True),
        (["07/09/2026", "07/14/2026"], False),
        # A midnight is a day later, and not a month.
        (["05/06/2026", "06/06/2026"], True),
        (["05/06/2026", "05/07/2026"], False),
        (["05/06/2026"], False),
        (["05/06/2026", "07/08/2026"], False),
    ],
)
def test_dates_tell_whether_the_day_comes_first(dates: list[str], is_day_first: bool) -> None:
    lines = read(*[f"{date} 10:00:0{i} step" for date in dates for i in range(5)])
    month, day = (3, 0) if is_day_first else (0, 3)
    assert lines[::5] == [
        f"2026-{date[month : month + 2]}-{date[day : day + 2]} 10:00:00 step" for date in dates
    ]


def test_of_an_order_that_proves_wrong_too_late_the_clock_alone_is_told() -> None:
    """What was read has its month for its day: the right date behind it would be a leap."""
    texts = [b"\n".join(b"%02d/06/2026 10:00:00 a" % day for _ in range(5)) for day in (5, 13, 14)]
    first, *others = Heads().texts(texts)
    assert first.startswith(b"2026-05-06 10:00:00 a\n")
    assert [text.split(b"\n")[0] for text in others] == [b"10:00:00 a"] * 2


def test_what_the_first_text_told_holds_for_the_others() -> None:
    heads = Heads()
    first, second = heads.texts(
        [b"\n".join([b"07/21/2026 10:00:00 a"] * 5), b"07/22/2026 11:00:00"]
    )
    assert first.startswith(b"2026-07-21 10:00:00 a\n") and second == b"2026-07-22 11:00:00"


def test_records_are_taken_apart_in_each_text_once_the_first_told() -> None:
    """A line that is none may stand anywhere, at the head of a later text as well."""
    record = b'{"log":"step 1\\n","stream":"stderr","time":"2026-07-21T10:00:00Z"}'
    first, second = Heads().texts([b"\n".join([record] * 5), b"torn\n" + record])
    line = b"2026-07-21T10:00:00Z step 1"
    assert first.split(b"\n") == [line] * 5 and second.split(b"\n") == [b"torn", line]


def _stamped(form: str, between: str) -> Callable[[int, str], str]:
    def carried(number: int, line: str) -> str:
        at = datetime.fromtimestamp(1784602867 + number / 8, UTC)
        return at.strftime(form) + between + line

    return carried


def _recorded(name: str, of_time: str, form: str, **more: str) -> Callable[[int, str], str]:
    def carried(number: int, line: str) -> str:
        at = datetime.fromtimestamp(1784602867 + number / 8, UTC)
        time = at.strftime(form) if form else f"{1784602867 * 10**6 + number * 125_000}"
        return json.dumps({**more, name: line + "\n", of_time: time})

    return carried


CARRIERS: dict[str, Callable[[int, str], str]] = {
    "syslog": _stamped("%b %d %H:%M:%S", " node07 torchrun[4711]: "),
    "journalctl-iso": _stamped("%Y-%m-%dT%H:%M:%S+00:00", " node07 torchrun[4711]: "),
    "journalctl-unix": lambda i, line: f"{1784602867 + i / 8:.6f} node07 torchrun[4711]: {line}",
    "docker": _recorded("log", "time", "%Y-%m-%dT%H:%M:%S.%f123Z", stream="stderr"),
    "journalctl-json": _recorded("MESSAGE", "__REALTIME_TIMESTAMP", "", _PID="4711"),
    "google": _recorded("textPayload", "timestamp", "%Y-%m-%dT%H:%M:%S.%fZ", logName="train"),
    "logcli": _recorded("line", "timestamp", "%Y-%m-%dT%H:%M:%S.%fZ"),
    "compose": lambda _, line: f"trainer-1  | {line}",
    "ts": _stamped("%b %d %H:%M:%S", " "),
    "brackets": _stamped("[%Y-%m-%d %H:%M:%S]", " "),
    "containerd": _stamped("%Y-%m-%dT%H:%M:%S.%f", "123Z stderr F "),
    "srun": lambda _, line: f"0: {line}",
}


LABELLED = "torchrun-two-nodes"
"""By srun already."""


def _told(text: str) -> tuple[object, ...]:
    """What was read of a log, but for what its own clock says of times."""
    tables = nccl_logs.read(text).tables

    def kept(row: dict[str, Any]) -> tuple[object, ...]:
        fields = [f for f in row["fields"] or () if not f.startswith(("silent_ns=", "task="))]
        return row["code"], row["place"], tuple(fields)

    return (
        [kept(row) for row in tables.get("log_event", ())],
        [row["step"] for row in tables.get("job_step", ())],
        {name: len(rows) for name, rows in tables.items()},
    )


def _same_carried(path: Path, carrier: str) -> None:
    text = path.read_text(errors="replace").rstrip("\n")
    carried = map(CARRIERS[carrier], *zip(*enumerate(text.split("\n")), strict=True))
    assert _told("\n".join(carried) + "\n") == _told(text + "\n")


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize(
    "name",
    soak(
        sorted(path.stem for path in LOGS.glob("*.log") if path.stem != LABELLED),
        fast=["torchrun-early", "torchrun-record", "multiprocessing-spawn"],
    ),
)
def test_of_a_real_log_the_same_is_read_whatever_carried_it(name: str, carrier: str) -> None:
    """``torchrun-early`` names nobody: who lost what stood before its summary was accused."""
    _same_carried(LOGS / f"{name}.log", carrier)


@pytest.mark.slow
@pytest.mark.parametrize("carrier", [c for c in CARRIERS if c != "srun"])
def test_of_labelled_lines_too(carrier: str) -> None:
    _same_carried(LOGS / f"{LABELLED}.log", carrier)


@pytest.mark.slow
@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.skipif(not NCCL_LOGS.exists(), reason="../shared/data is not here")
def test_of_real_logs_of_nccl_too(carrier: str) -> None:
    logs = sorted(NCCL_LOGS.glob("*.log"))
    assert logs
    for path in logs:
        _same_carried(path, carrier)

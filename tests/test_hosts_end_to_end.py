"""Recorded traces of a throttled host beside what hosts tell of themselves, from files to report.

The traces are recorded (two hosts of two ranks, both ranks of the second stopped for 40 of every
100 ms); the files of control groups are made, since SIGSTOP leaves no mark in them. An hour's log
with counters beside it is made as well.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import tracekit
from tracekit.findings import Finding

TWIN = Path(__file__).parents[1] / "fixtures/twins/ddp-throttled-host"
RULES = ("cpu-throttled", "memory-pressure", "slow-host")


def window() -> tuple[int, int]:
    with tracekit.open([*sorted(TWIN.glob("*.json.gz")), TWIN / "job.toml"]) as run:
        (row,) = run.sql("SELECT start_ns, end_ns FROM run").to_dicts()
    return int(row["start_ns"]), int(row["end_ns"])


def stamp(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def quota(start_ns: int, end_ns: int, throttled: float, group: str = "job") -> str:
    """``cpu.stat`` twice a second; a share of the periods runs out."""
    path = f"/sys/fs/cgroup/cpu/{group}/cpu.stat"
    lines = []
    for i, ns in enumerate(range(start_ns - 2 * 10**9, end_ns + 2 * 10**9, 10**9 // 2)):
        held = int(5 * i * throttled)
        lines += [stamp(ns), f"{path}:nr_periods {5 * i}", f"{path}:nr_throttled {held}"]
        lines.append(f"{path}:throttled_time {held * 40_000_000}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def seen() -> tuple[int, int]:
    return window()


def findings(
    tmp_path: Path, seen: tuple[int, int], *given: tuple[str, float, str]
) -> list[Finding]:
    for i, (host, throttled, group) in enumerate(given):
        folder = tmp_path / host
        folder.mkdir(exist_ok=True)
        (folder / f"cpu{i}.txt").write_text(quota(*seen, throttled, group))
    files = [
        *sorted(TWIN.glob("*.json.gz")),
        TWIN / "job.toml",
        *sorted(tmp_path.glob("*/cpu*.txt")),
    ]
    with tracekit.open(files) as run:
        return list(run.diagnose(select=RULES).findings)


def test_a_quota_of_the_late_host_is_why_it_is_slow(tmp_path: Path, seen: tuple[int, int]) -> None:
    (found,) = findings(tmp_path, seen, ("host0", 0.02, "job"), ("host1", 0.9, "job"))
    assert (found.rule, found.scope.hosts, found.scope.ranks) == (
        "cpu-throttled",
        ("host1",),
        (2, 3),
    )


@pytest.mark.parametrize(
    "given",
    [
        pytest.param([("host0", 0.9, "job"), ("host1", 0.02, "job")], id="the other host's"),
        pytest.param([("host0", 0.9, "job"), ("host1", 0.9, "job")], id="all hosts alike"),
        pytest.param(
            [("host0", 0.0, "job"), ("host1", 0.9, "a"), ("host1", 0.0, "b")], id="whose is it"
        ),
    ],
)
@pytest.mark.slow  # another job through the same lines
def test_otherwise_the_host_is_slow_and_nobody_says_why(
    tmp_path: Path, seen: tuple[int, int], given: list[tuple[str, float, str]]
) -> None:
    (found,) = findings(tmp_path, seen, *given)
    assert (found.rule, found.scope.hosts) == ("slow-host", ("host1",))


def test_counters_of_another_day_are_nobody_s(tmp_path: Path, seen: tuple[int, int]) -> None:
    day = 86_400 * 10**9 // 4
    earlier = (seen[0] - day, seen[1] - day)
    (found,) = findings(tmp_path, earlier, ("host0", 0.02, "job"), ("host1", 0.9, "job"))
    assert found.rule == "slow-host"


HOURS = 6
START_NS = 1_795_400_000 * 10**9


def logged_job(tmp_path: Path, *, pressed: str | None) -> list[Finding]:
    """Six hours of steps of a second; in the fourth hour each takes 1.3 s. ``pressed``: the host
    whose tasks wait for memory 60 % of that hour, as others do 1 % of all the time."""
    now, lines, step = START_NS, [], 0
    slow = (START_NS + 3 * 3600 * 10**9, START_NS + 4 * 3600 * 10**9)
    while now < START_NS + HOURS * 3600 * 10**9:
        step += 1
        took = 1_300 if slow[0] <= now < slow[1] else 1_000 + step % 7
        now += took * 1_000_000
        lines.append(
            f" [{stamp(now)}] iteration {step:8d}/ 100000 | consumed samples: {step * 512:12d} | "
            f"elapsed time per iteration (ms): {took:.1f} | learning rate: 1.0E-04 | "
            "global batch size:   512 | lm loss: 2.0E+00 |"
        )
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    for host in ("gpu-10", "gpu-11", "gpu-12"):
        total, dump = 0.0, []
        for ns in range(START_NS, START_NS + HOURS * 3600 * 10**9, 60 * 10**9):
            dump += [stamp(ns), f"/proc/pressure/memory:some avg10=0.00 avg60=0.00 avg300=0.00 "
                     f"total={int(total * 1e6)}"]  # fmt: skip
            total += 60 * (0.6 if host == pressed and slow[0] <= ns < slow[1] else 0.01)
        folder = tmp_path / host
        folder.mkdir()
        (folder / "pressure.txt").write_text("\n".join(dump) + "\n")
    with tracekit.open([tmp_path]) as run:
        return [f for f in run.diagnose().findings if f.rule in RULES]


def test_an_hour_of_reclaim_in_the_log_s_slow_hour(tmp_path: Path) -> None:
    (found,) = logged_job(tmp_path, pressed="gpu-11")
    assert (found.rule, found.scope.hosts) == ("memory-pressure", ("gpu-11",))


def test_a_slow_hour_without_pressure_names_no_host(tmp_path: Path) -> None:
    assert logged_job(tmp_path, pressed=None) == []

"""Rolling up: only what is new, twice the same, whole after a kill, stopped by no bad run."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from msgspec.structs import replace

from fleet_nights import FIRST, Fleet, FleetLake, day_of, dies
from soaks import soak
from tracekit.cli import fleet as fleet_cli
from tracekit.cli import main
from tracekit.errors import InputError, RunWriteError, StoreError, UsageError
from tracekit.fleet import lake as lake_module
from tracekit.fleet import lock, rollup
from tracekit.fleet import store as fleet_store
from tracekit.fleet.lake import Entry, make_lake
from tracekit.fleet.rollup import rolled_up
from tracekit.fleet.store import FleetStore
from tracekit.fleet.tables import SCHEMA_VERSION, TABLES
from traces import BASE_NS, write_job

ROOT = Path(__file__).resolve().parents[2]
DAYS = 3


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    small = Fleet(1, days=DAYS)
    small.runs = {day: runs[:6] for day, runs in small.runs.items()}
    return small


def rolled(lake: FleetLake, days: int | None = None, **options: Any) -> rollup.Rolled:
    lake.days = lake.days if days is None else days
    return rolled_up(lake, diagnose=lake.diagnosed, **options)


def tables(root: Path) -> dict[str, list[Any]]:
    """What the tables hold, whoever asks: no ledger between."""
    store = FleetStore(root / "fleet")
    return {
        t.name: sorted(map(repr, store._read(t)))
        for t in TABLES
        if (root / "fleet" / t.name).exists()
    }


@pytest.fixture(scope="module")
def undisturbed(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    lake = FleetLake(tmp_path_factory.mktemp("whole"), fleet)
    rolled(lake, DAYS)
    return tables(lake.root)


def test_night_after_night_equals_all_at_once_row_for_row(
    fleet: Fleet, tmp_path: Path, undisturbed: dict[str, list[Any]]
) -> None:
    lake = FleetLake(tmp_path, fleet)
    for day in range(1, DAYS + 1):
        done = rolled(lake, day)
        assert len(done.done) == 6
        assert done.unchanged_count == 6 * (day - 1)
        assert done.dates == (day_of(day),)
    assert tables(tmp_path) == undisturbed
    assert len(lake.asked) == 6 * DAYS  # each run once


def test_the_same_night_again_changes_nothing(fleet: Fleet, tmp_path: Path) -> None:
    lake = FleetLake(tmp_path, fleet)
    rolled(lake, 1)
    before = sorted(p.name for p in tmp_path.rglob("*.json"))
    again = rolled(lake)
    assert (again.done, again.unchanged_count) == ((), 6)
    assert sorted(p.name for p in tmp_path.rglob("*.json")) == before
    assert len(lake.asked) == 6


def test_a_run_that_changed_takes_the_place_of_what_it_was(fleet: Fleet, tmp_path: Path) -> None:
    lake = FleetLake(tmp_path, fleet)
    rolled(lake, 2)
    name = fleet.runs[day_of(1)][0][0].name

    def moved(entry: Entry) -> dict[str, list[Any]]:
        found = lake.diagnosed(entry)
        own = {"date": entry.card.date} if entry.card else {}
        return {t: [{**row, **own, "run": name} for row in rows] for t, rows in found.items()}

    card, _rows = fleet.runs[day_of(1)][0]
    changed = Entry(name, tmp_path, replace(card, date=day_of(2), key="other"))
    lake._stamps = lambda: {name: "other"}  # type: ignore[method-assign]
    lake.entry = lambda name: changed  # type: ignore[method-assign]
    assert rolled_up(lake, diagnose=moved).done == (name,)
    store = FleetStore(tmp_path / "fleet")
    of_it = [r for r in store._read(TABLES[0]) if r["run"] == name]
    assert [r["date"] for r in of_it] == [day_of(2)]
    assert len(store._read(TABLES[0])) == 12


@pytest.mark.parametrize("commit", soak([0, 1, 2, 5, 7, 8], fast=[1, 8]))
def test_stopped_at_any_commit_the_next_rollup_makes_it_whole(
    commit: int,
    fleet: Fleet,
    tmp_path: Path,
    undisturbed: dict[str, list[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = FleetLake(tmp_path, fleet)
    rolled(lake, DAYS - 1)
    real, count = FleetStore._replace, iter(range(100))

    def stopped(*given: Any) -> None:
        if next(count) == commit:
            raise KeyboardInterrupt
        real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(FleetStore, "_replace", stopped)
        with pytest.raises(KeyboardInterrupt):
            rolled(lake, DAYS)
    store = FleetStore(tmp_path / "fleet")
    assert {r["date"] for r in store.rows("job")} == {day_of(1), day_of(2)}  # no half night counts
    rolled(lake)
    assert tables(tmp_path) == undisturbed


def test_one_bad_run_never_stops_the_night_and_is_named(fleet: Fleet, tmp_path: Path) -> None:
    lake = FleetLake(tmp_path, fleet, 1)
    names = [card.name for card, _ in fleet.runs[day_of(1)]]

    def ask(entry: Entry) -> dict[str, list[Any]]:
        if entry.name == names[0]:
            raise InputError("nothing to read")
        if entry.name == names[1]:
            raise ZeroDivisionError
        return lake.diagnosed(entry)

    done = rolled_up(lake, diagnose=ask)
    assert dict(done.failed) == {
        names[0]: "nothing to read",
        names[1]: "internal error, a bug of tracekit: ZeroDivisionError",
    }
    assert set(done.done) == set(names[2:])
    store = FleetStore(tmp_path / "fleet")
    assert {r["run"] for r in store.rows("job")} == set(names[2:])
    assert store.ledger()[names[0]]["reason"] == "nothing to read"
    assert set(rolled_up(lake, diagnose=lake.diagnosed).done) == set(names[:2])  # tried again


def test_a_run_removed_while_it_is_read_has_not_failed(fleet: Fleet, tmp_path: Path) -> None:
    seen, unseen = (card.name for card, _ in fleet.runs[day_of(1)][:2])
    gone: set[str] = set()
    going = {unseen}

    class Shrinking(FleetLake):
        def entry(self, name: str) -> Entry:
            if name in gone:
                raise UsageError(f"there is no run {name!r}")
            return super().entry(name)

    def ask(entry: Entry) -> dict[str, list[Any]]:
        if entry.name in going:
            gone.add(entry.name)
            raise InputError("a file is gone")
        return lake.diagnosed(entry)

    lake = Shrinking(tmp_path, fleet, 1)
    done = rolled_up(lake, diagnose=ask)
    assert (done.removed, done.failed) == ((unseen,), ())
    store = FleetStore(tmp_path / "fleet")
    assert unseen not in store.ledger()
    assert unseen not in {r["run"] for r in store.rows("job")}
    # A later generation of a run that a night has told of: what it told stays.
    told = [r for r in store.rows("host") if r["run"] == seen]
    assert told
    lake.simulated = Fleet(2, days=DAYS)
    going = {seen}
    done = rolled_up(lake, diagnose=ask)
    assert (done.removed, done.failed) == ((seen,), ())
    rows = FleetStore(tmp_path / "fleet").rows("host")
    assert [r for r in rows if r["run"] == seen] == told
    assert len({r["run"] for r in rows}) > 1


def test_a_night_opens_no_run_that_an_earlier_one_has_seen(fleet: Fleet, tmp_path: Path) -> None:
    lake = FleetLake(tmp_path, fleet)
    for day in range(1, DAYS + 1):
        lake.opened.clear()
        rolled(lake, day)
        assert sorted(lake.opened) == sorted(card.name for card, _ in fleet.runs[day_of(day)])
    lake.opened.clear()
    assert rolled(lake).unchanged_count == 6 * DAYS
    assert rolled(lake, date=day_of(2)).unchanged_count == 6
    assert rolled(lake, since=day_of(2)).unchanged_count == 12
    assert not lake.opened


def test_a_run_whose_files_were_copied_is_opened_once_and_diagnosed_never_again(
    fleet: Fleet, tmp_path: Path
) -> None:
    lake = FleetLake(tmp_path, fleet)
    rolled(lake, 1)
    before = tables(tmp_path)
    lake.asked.clear()
    lake.prefix = "copied "
    for opened in (6, 0):
        lake.opened.clear()
        again = rolled(lake)
        assert (again.done, again.unchanged_count, len(lake.opened)) == ((), 6, opened)
    assert not lake.asked
    assert tables(tmp_path) == before


def test_files_that_no_version_of_the_last_week_has_go(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_store, "LEDGER_FILES_COUNT", 0)
    lake = FleetLake(tmp_path, fleet)
    for day in range(1, DAYS):
        rolled(lake, day)

    def files(name: str) -> tuple[int, int]:
        there = (lake.fleet / name).rglob("*.parquet")
        return len(list(there)), len(DeltaTable(lake.fleet / name).file_uris())

    there, active = files("ledger")
    assert there > active
    (lake.fleet / "job" / f"date={day_of(1)}" / "killed.parquet").write_bytes(b"x")
    monkeypatch.setattr(fleet_store, "SWEEP_AFTER_HOURS", 0)
    rolled(lake, DAYS)
    assert [files(name) for name in ("ledger", "job")] == [(1, 1), (DAYS, DAYS)]
    assert len(FleetStore(lake.fleet).rows("job")) == 6 * DAYS


@pytest.mark.parametrize("count", soak([11, 30_000], fast=[11]))
def test_the_ledger_takes_any_number_of_runs_at_once(
    count: int, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if count < fleet_store.LEDGER_ROWS_COUNT:
        monkeypatch.setattr(fleet_store, "LEDGER_ROWS_COUNT", 4)
    rolled(FleetLake(tmp_path, fleet), 1)
    store = FleetStore(tmp_path / "fleet")
    (row, *_) = store.ledger().values()
    for stamp in ("here", "copied"):
        rows = [{**row, "run": f"r{i}", "stamp": stamp} for i in range(count)]
        store.write_ledger(rows)
        held = store.ledger()
        assert len(held) == count + 6
        assert [held[r["run"]] for r in rows] == rows


def test_a_full_disk_is_named_and_what_was_written_before_is_whole(
    fleet: Fleet, tmp_path: Path
) -> None:
    lake = FleetLake(tmp_path, fleet)
    rolled(lake, 1)
    before = tables(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(StoreError, match="File too large") as failed:
            rolled(lake, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "remove" not in (failed.value.hint or "")
    assert {r["date"] for r in FleetStore(lake.fleet).rows("job")} == {day_of(1)}
    assert tables(tmp_path) == before
    assert len(rolled(lake).done) == 6


@pytest.mark.parametrize("free_bytes", [5_000, 100_000])  # none for the ledger; none for tables
def test_a_disk_without_room_for_a_night_is_named_before_a_table_is_begun(
    free_bytes: int, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = FleetLake(tmp_path, fleet)
    rolled(lake, 1)
    before = tables(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free_bytes))
    with pytest.raises(StoreError, match=r"No space left on device: .* MB may be needed, 0\.\d MB"):
        rolled(lake, 2)
    assert FleetStore(lake.fleet).ledger().keys() <= {
        *(card.name for card, _ in fleet.runs[day_of(1)]),
        *(card.name for card, _ in fleet.runs[day_of(2)] if free_bytes > 50_000),
    }
    assert tables(tmp_path) == before
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10**9))
    assert len(rolled(lake).done) == 6


def test_tables_of_a_newer_tracekit_are_left_alone(
    fleet: Fleet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lake = FleetLake(tmp_path, fleet)
    monkeypatch.setattr(rollup, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    rolled(lake, 1)
    monkeypatch.undo()
    with pytest.raises(StoreError, match="a newer tracekit wrote these tables"):
        rolled(lake, 2)
    monkeypatch.setattr(rollup, "SCHEMA_VERSION", SCHEMA_VERSION + 2)
    assert not caplog.text
    again = rolled(lake)
    assert (len(again.done), again.again_count) == (12, 6)  # older rows are made again
    assert "an older tracekit wrote the rows of 6 runs otherwise" in caplog.text


def test_what_an_older_tracekit_said_of_a_run_stays_where_it_can_be_read_no_more(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = FleetLake(tmp_path, fleet)
    rolled(lake, 1)
    before = tables(tmp_path)
    (name, *others) = [card.name for card, _ in fleet.runs[day_of(1)]]
    monkeypatch.setattr(rollup, "SCHEMA_VERSION", SCHEMA_VERSION + 1)

    def ask(entry: Entry) -> dict[str, list[Any]]:
        if entry.name == name:
            raise InputError("written with registry version 12, this tracekit has 13")
        return lake.diagnosed(entry)

    for _ in range(2):  # it is tried and named every night
        done = rolled_up(lake, diagnose=ask)
        assert [n for n, _ in done.failed] == [name]
        assert tables(tmp_path) == before
        assert {r["run"] for r in FleetStore(lake.fleet).rows("job")} == {name, *others}
    lake.simulated = Fleet(2, days=DAYS)  # of its next generation nothing is known
    rolled_up(lake, diagnose=ask)
    assert name not in {r["run"] for r in FleetStore(lake.fleet).rows("job")}


def test_an_interrupt_that_a_library_made_an_error_of_fails_no_run(
    fleet: Fleet, tmp_path: Path
) -> None:
    lake = FleetLake(tmp_path, fleet, 1)
    pressed: list[str] = []

    def asked(entry: Entry) -> dict[str, list[Any]]:
        pressed.append(entry.name)
        raise RuntimeError("interrupted")

    with pytest.raises(KeyboardInterrupt):
        rolled_up(lake, diagnose=asked, is_interrupted=lambda: bool(pressed))
    assert len(pressed) == 1
    assert not lake.fleet.exists()  # what is in the ledger was diagnosed


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.slow  # several processes; one of each kind stays
def test_sigterm_lets_go_of_the_lock(workers: int, tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake")
    write_job(tmp_path / "job", steps_count=2)
    lake.add([tmp_path / "job"], name="job", workers=1)
    script = tmp_path / "script.py"  # workers import it
    script.write_text(SLEEPY)
    process = subprocess.Popen(
        [sys.executable, script, str(lake.root), str(workers)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    held = lake.root / "rollup.lock"
    end = time.monotonic() + 60
    while not (lake.root / "asleep").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert held.exists()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (143, "terminated\n")
    assert not held.exists()


SLEEPY = """
import sys, time
from pathlib import Path
from tracekit.fleet import rollup
from tracekit.cli import fleet as fleet_cli
from tracekit.cli import main

def asleep(entry, **_):
    (entry.path.parents[1] / "asleep").touch()
    time.sleep(600)

rollup.diagnosed = asleep
if __name__ == "__main__":
    main(["-v", "rollup", sys.argv[1], "--workers", sys.argv[2]])
"""


def test_a_data_file_that_is_cut_is_named(fleet: Fleet, tmp_path: Path) -> None:
    lake = FleetLake(tmp_path, fleet)
    rolled(lake, 1)
    for part in (tmp_path / "fleet" / "job").rglob("*.parquet"):
        part.write_bytes(part.read_bytes()[:200])
    with pytest.raises(StoreError, match="job: cannot be read") as failed:
        FleetStore(lake.fleet).rows("job")
    assert "pruned" in (failed.value.hint or "")


def test_dry_run_says_and_writes_nothing(fleet: Fleet, tmp_path: Path) -> None:
    lake = FleetLake(tmp_path, fleet, 1)
    assert len(rolled(lake, dry_run=True).done) == 6
    assert not list(tmp_path.iterdir())


def test_dates_bound_what_is_read(fleet: Fleet, tmp_path: Path) -> None:
    lake = FleetLake(tmp_path, fleet, DAYS)
    assert rolled(lake, date=day_of(2)).dates == (day_of(2),)
    assert rolled(lake, since=day_of(2)).dates == (day_of(3),)
    assert FIRST.isoformat() not in {r["date"] for r in FleetStore(tmp_path / "fleet").rows("job")}


def test_two_rollups_without_a_lock_leave_equal_tables(
    fleet: Fleet,
    tmp_path: Path,
    undisturbed: dict[str, list[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lock may be lost (an hour without a sign): Delta's commits must hold alone."""
    from contextlib import contextmanager

    @contextmanager
    def free(_: Path) -> Any:
        yield lambda: None

    monkeypatch.setattr(lake_module, "held", free)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            rolled(FleetLake(tmp_path, fleet), DAYS)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rolled(FleetLake(tmp_path, fleet), DAYS)
    assert not failed
    assert tables(tmp_path) == undisturbed


# ---------------------------------------------------------------- the lock


def test_a_second_rollup_is_told_who_is_at_work(fleet: Fleet, tmp_path: Path) -> None:
    lake = FleetLake(tmp_path, fleet)
    with (
        lock.held(tmp_path / "rollup.lock"),
        pytest.raises(StoreError, match=f"process {os.getpid()} on {socket.gethostname()[:4]}"),
    ):
        rolled(lake, 1)
    assert len(rolled(lake, 1).done) == 6
    assert not list(tmp_path.glob("rollup.lock*"))


Spoil = Callable[[Path], object]


def owner(path: Path, host: str, pid: int) -> None:
    path.write_text(json.dumps({"host": host, "pid": pid, "token": "x"}))


def test_a_dead_owner_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rollup.lock"
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    owner(path, socket.gethostname().split(".")[0], done.pid)
    with lock.held(path):
        pass
    owner(path, "elsewhere", 1)
    with pytest.raises(StoreError, match="on elsewhere"), lock.held(path):
        pass
    long_ago = time.time() - lock.DEAD_AFTER_S - 1
    os.utime(path, (long_ago, long_ago))
    with lock.held(path):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ahead_s", [-2 * lock.DEAD_AFTER_S, 2 * lock.DEAD_AFTER_S])
def test_a_lock_is_as_old_as_its_file_system_says(
    tmp_path: Path, ahead_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of whoever comes may be hours wrong."""
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + ahead_s)
    path = tmp_path / "rollup.lock"
    owner(path, "elsewhere", 1)
    with pytest.raises(StoreError, match=r"on elsewhere, alive [0-9] s ago"), lock.held(path):
        pass
    long_ago_s = now_s - lock.DEAD_AFTER_S - 1
    os.utime(path, (long_ago_s, long_ago_s))
    with lock.held(path):
        pass


def test_a_lake_that_may_only_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("")
    with (
        pytest.raises(RunWriteError, match=r"lake: cannot be written"),
        lock.held(tmp_path / "lake" / "rollup.lock"),
    ):
        pass


def test_who_works_keeps_its_lock_young(tmp_path: Path) -> None:
    path = tmp_path / "rollup.lock"
    with lock.held(path) as alive:
        os.utime(path, (0, 0))
        alive()
        assert time.time() - path.stat().st_mtime < 60


# ---------------------------------------------------------------- real runs, and the command


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of two small runs, of which one is broken."""
    folder = tmp_path_factory.mktemp("real")
    write_job(folder / "slow", stall_ms=30)
    lake = make_lake(folder / "lake")
    lake.add([folder / "slow"], name="slow", workers=1)
    lake.add([folder / "slow"], name="broken", workers=1)
    for shard in lake.path("broken").rglob("host_op*.parquet"):
        shard.write_bytes(b"x")
    return folder / "lake"


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code, *capsys.readouterr()


def test_the_command_says_the_night_and_notifies(
    real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "told"
    script = f"import sys, pathlib; pathlib.Path({str(told)!r}).write_text(sys.stdin.read())"
    notify = f'{sys.executable} -c "{script}"'
    code, out, err = call(capsys, "rollup", real, "--workers", 1, "--notify-command", notify)
    assert code == 0, err
    assert "dataloader-stall: " in out
    assert "failed: broken: " in out
    assert told.read_text() == out
    rows = FleetStore(real / "fleet").rows("finding")
    assert any(r["rule"] == "dataloader-stall" and r["is_verdict"] for r in rows)
    budget = FleetStore(real / "fleet").rows("budget")
    assert sum(r["gpu_hours_per_day"] for r in budget) == pytest.approx(2 * 24)
    assert call(capsys, "rollup", real, "--workers", 1, "--strict")[0] == 2
    code, out, _ = call(capsys, "rollup", real, "--workers", 1, "--format", "json")
    assert (code, json.loads(out)["rolled"]["unchanged_count"]) == (0, 1)
    assert call(capsys, "rollup", real, "--workers", 1, "--fail-on", "note")[0] == 0


@pytest.mark.slow  # whole commands, of which others take the same way
def test_a_run_whose_clock_is_years_ahead_is_no_last_night(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = make_lake(tmp_path / "lake")
    for name, ahead_days in (("now", 0), ("ahead", 3650)):
        write_job(tmp_path / name, steps_count=2, base_ns=BASE_NS + ahead_days * 86_400 * 10**9)
        lake.add([tmp_path / name], name=name, workers=1)
    day = {e.name: e.card.date for e in lake.entries() if e.card}
    code, out, err = call(capsys, "rollup", lake.root, "--workers", 1)
    assert code == 0
    assert out.startswith(f"Night of {day['now']}: 1 run, 2 new")
    assert f"ahead is dated {day['ahead']}, which is not yet" in err
    code, out, _ = call(capsys, "rollup", lake.root, "--workers", 1, "--date", day["ahead"])
    assert (code, out.startswith(f"Night of {day['ahead']}: 1 run")) == (0, True)
    for number in range(4):
        lake.add([tmp_path / "ahead"], name=f"ahead{number}", workers=1)
    err = call(capsys, "rollup", lake.root, "--workers", 1)[2]
    assert (err.count("is dated"), "2 runs more dated later" in err) == (3, True)
    assert err.count("(or this one's, by which it is 20") == 3
    for name in set(lake.names()) - {"ahead"}:
        lake.remove(name)
    shutil.rmtree(lake.root / "fleet")
    code, out, err = call(capsys, "rollup", lake.root, "--workers", 1)
    assert out.startswith(f"Night of {day['ahead']}")  # where nothing else is there, it is told
    assert "not yet" not in err


@pytest.mark.parametrize("words", ["20260721", "2026-W30-2"])
def test_a_date_is_one_however_iso_8601_writes_it(
    words: str, real: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(capsys, "rollup", real, "--workers", 1, "--date", words)
    assert (code, out.startswith("Night of 2026-07-21: 1 run")) == (0, True)
    assert {p.name for p in (real / "fleet" / "nights").glob("*.json")} == {"2026-07-21.json"}
    metrics = real.parent / "fleet.om"
    call(capsys, "rollup", real, "--workers", 1, "--since", words, "--openmetrics", metrics)
    assert "tracekit_" in metrics.read_text()
    code, _, err = call(capsys, "rollup", real, "--date", "2026-07-21T00:00:00+02:00")
    assert (code, "is no date" in err) == (2, True)


@pytest.mark.parametrize("words", [["--notify-command", "'"], ["--notify-command", " "]])
def test_a_command_that_cannot_be_meant_costs_no_night(
    words: list[str], real: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(capsys, "rollup", real, *words)
    assert code == 2
    assert "--notify-command" in err


def test_losses_are_in_money_where_a_price_is_stated(
    real: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("rollup", real, "--workers", 1, "--format", "json")
    plain = json.loads(call(capsys, *words)[1])
    assert plain["price"] is None
    assert {loss["amount_per_day"] for loss in plain["losses"]} == {None}
    priced = json.loads(call(capsys, *words, "--gpu-hour-price", "200.5 EUR")[1])
    assert priced["price"] == {"gpu_hour": 200.5, "currency": "EUR"}
    assert [loss["amount_per_day"] for loss in priced["losses"]] == pytest.approx(
        [200.5 * loss["gpu_hours_per_day"] for loss in plain["losses"]]
    )
    largest = plain["losses"][0]["gpu_hours_per_day"]
    for price, told in (("200.5EUR", f"{200.5 * largest:,.0f} EUR"), ("1$", f"{largest:.2f} $")):
        out = call(capsys, "rollup", real, "--workers", 1, "--gpu-hour-price", price)[1]
        assert f", {told} a day, " in out
    assert "EUR" not in call(capsys, "rollup", real, "--workers", 1)[1]


def test_losses_are_in_energy_and_money_where_a_run_tells_its_power_and_prices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job"
    write_job(job, stall_ms=30)
    lines = [
        f"2026/07/21 03:01:{6 + i // 10:02d}.{i % 10}00, {gpu}, GPU-{gpu}, {350 + 100 * gpu}.00 W"
        for i in range(30)
        for gpu in range(2)
    ]
    smi = ["timestamp, index, uuid, power.draw [W]", *lines]
    (job / "node0.csv").write_text("\n".join(smi) + "\n")
    (job / "job.toml").write_text(
        '[prices]\ngpu_hour = 2.0\nkilowatt_hour = 0.5\ncurrency = "EUR"\n'
        '[[source]]\npath = "node0.csv"\ntimezone = "UTC"\nhost = "node0"\n'
    )
    make_lake(tmp_path / "lake").add([job], name="j", workers=1)
    words = ("rollup", tmp_path / "lake", "--workers", 1)
    code, out, err = call(capsys, *words)
    assert code == 0, err
    assert " kWh a day, " in out
    assert " EUR a day, 1 run" in out
    for price in (None, "3USD"):
        asked = ("--gpu-hour-price", price) if price else ()
        said = json.loads(call(capsys, *words, "--format", "json", *asked)[1])["losses"][0]
        hours, kwh = said["gpu_hours_per_day"], said["energy_joules_per_day"] / 3.6e6
        assert said["cause"] == "dataloader-stall"
        assert kwh == pytest.approx(0.4 * hours)  # the GPUs draw 350 and 450 watts
        assert said["amount_per_day"] == pytest.approx(
            3 * hours if price else 2 * hours + 0.5 * kwh
        )
        assert (said["currency"], said["energy_runs_count"]) == ("USD" if price else "EUR", 1)


FABRIC = (
    'Switch\t41 "S-b83fd203006b4a90"\t\t# "MF0;leaf01:MQM8700/U1" enhanced port 0 lid 3 lmc 0\n'
    '[1]\t"H-b83fd203006b4b00"[1](b83fd203006b4b00) \t\t# "node0 mlx5_0" lid 9 4xHDR\n'
)


@pytest.mark.slow  # whole commands, of which others take the same way
def test_a_run_says_in_which_racks_its_hosts_are_and_where_its_log_says_time_went(
    tmp_path: Path,
) -> None:
    job = tmp_path / "job"
    write_job(job)
    lines = "".join(
        f" [2026-07-21 0{3 + n // 60}:{n % 60:02d}:00] iteration {n + 1:8d}/ 100 |"
        " elapsed time per iteration (ms): 60000.0 |\n"
        for n in range(25)
    )
    (job / "train.log").write_text(lines)
    stated = '[[host]]\nhost = "NODE0.example.org"\n'
    (job / "job.toml").write_text(stated + 'rack = "r7"\nleaf = "leaf3"\n')
    lake = make_lake(tmp_path / "lake")
    lake.add([job], name="racked", workers=1)
    (job / "job.toml").write_text(stated + 'leaf = "leaf3"\n')
    lake.add([job], name="switched", workers=1)
    (job / "job.toml").unlink()
    lake.add([job], name="bare", workers=1)
    (job / "ibnetdiscover.txt").write_text(FABRIC)
    lake.add([job], name="mapped", workers=1)
    rolled_up(lake)
    store = FleetStore(lake.fleet)
    racks = {r["run"]: r["rack"] for r in store.rows("host") if r["host"] == "node0"}
    assert racks == {
        "racked": "r7",
        "switched": "below leaf3",
        "bare": None,
        "mapped": "below leaf01",
    }
    rows = [r for r in store.rows("goodput") if r["run"] == "racked"]
    assert {r["part"]: r["spent_s"] for r in rows} == {"productive": 24 * 60}
    assert [r["gpu_hours"] for r in rows] == [2 * r["spent_s"] / 3600 for r in rows]


@pytest.mark.slow  # whole commands, of which others take the same way
def test_a_port_is_one_however_the_files_of_a_night_spell_its_host(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake")
    nights = [["node0"], ["node0.example.org"], ["Node0.a.org", "node0.b.org"]]
    for night, nodes in enumerate(nights):
        begun_ns = BASE_NS + night * 86_400 * 10**9
        job = tmp_path / f"job{night}"
        write_job(job, base_ns=begun_ns)
        points = [
            f"net,host={node},interface=eth{port} bytes_recv={10**6 * i}i,"
            f"packets_recv={1000 * i}i,drop_in={200 * i * port}i {begun_ns + (i - 10) * 2 * 10**8}"
            for i in range(40)
            for node in nodes
            for port in range(2)
        ]
        (job / "net.influx").write_text("\n".join(points) + "\n")
        lake.add([job], name=f"night{night}", workers=1)
    rolled_up(lake)
    store = FleetStore(lake.fleet)
    ports = {
        run: [r["link"] for r in store.rows("link") if r["run"] == run] for run in lake.names()
    }
    assert ports["night0"] == ports["night1"] == ["node0:eth0", "node0:eth1"]
    found = {r["run"]: r["links"] for r in store.rows("finding") if r["rule"] == "packet-loss"}
    assert found["night0"] == found["night1"] == ["node0:eth1"]
    # Two full names with one short form are two machines.
    assert [p.partition(":")[0].lower() for p in ports["night2"]] == [
        "node0.a.org",
        "node0.a.org",
        "node0.b.org",
        "node0.b.org",
    ]


@pytest.mark.slow
def test_a_later_price_changes_nothing_that_was_told_of_a_night(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = make_lake(tmp_path / "lake")
    for night in range(3):
        write_job(tmp_path / f"{night}", stall_ms=30, base_ns=BASE_NS + night * 86_400 * 10**9)
        lake.add([tmp_path / f"{night}"], name=f"j{night}", workers=1)
        if night < 2:
            price = ("--gpu-hour-price", "2EUR") if night else ()
            call(capsys, "rollup", lake.root, "--workers", 1, *price)
    samples = tmp_path / "samples.om"
    asked = ("--gpu-hour-price", "3EUR", "--openmetrics", samples)
    call(capsys, "rollup", lake.root, "--workers", 1, *asked)
    told: dict[str, dict[str, float]] = {"amount": {}, "gpu_hours": {}}
    for line in samples.read_text().splitlines():
        if line.startswith("tracekit_lost_") and 'cause="dataloader-stall"' in line:
            metric, value, at = line.split()
            what = metric.removeprefix("tracekit_lost_").partition("_per_day")[0]
            told[what][at] = float(value)
    first, second, third = sorted(told["gpu_hours"])
    assert told["amount"] == {
        second: pytest.approx(2 * told["gpu_hours"][second]),
        third: pytest.approx(3 * told["gpu_hours"][third]),
    }
    assert first not in told["amount"]  # of that night no money was told
    (lake.fleet / "nights" / "2026-07-22.json").write_text("{")
    call(capsys, "rollup", lake.root, "--workers", 1, *asked)
    assert samples.read_text().count("tracekit_lost_amount_per_day{") > 1  # by the price of today


@pytest.mark.parametrize("price", ["", "2.1", "EUR", "-2EUR", "0EUR", "nan", "1e9EUR", "2,1EUR"])
def test_a_price_that_is_none_is_refused(
    price: str, real: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "rollup", real, f"--gpu-hour-price={price}")
    assert (code, out) == (2, "")
    assert "2.10EUR" in err


def test_a_notification_that_fails_is_said_and_the_night_stands(
    real: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = call(capsys, "rollup", real, "--workers", 1, "--notify-command", "false")
    assert code == 0
    assert out.startswith("Night of ")
    assert "false ended with 1" in err
    words = ("rollup", real, "--workers", 1, "--notify-command")
    code, out, err = call(capsys, *words, "/no/such/program --token=hidden")
    assert (code, out.startswith("Night of ")) == (0, True)
    assert "--notify-command: /no/such/program: No such file or directory" in err
    assert "hidden" not in err
    monkeypatch.setattr(fleet_cli, "NOTIFY_S", 0.2)
    assert "sleep: not done within 0.2 s" in call(capsys, *words, "sleep 60")[2]


def test_what_nobody_was_told_is_new_the_next_night_and_a_site_that_fails_keeps_nobody_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job(tmp_path / "job", steps_count=2)
    lake = make_lake(tmp_path / "lake")
    lake.add([tmp_path / "job"], name="job", workers=1)
    told = tmp_path / "told.txt"
    words = ("rollup", lake.root, "--workers", 1, "--notify-command")
    assert call(capsys, *words, "false")[0] == 0
    assert not list(lake.fleet.glob("nights/*.json"))

    def full(*_: object, **__: object) -> None:
        raise RunWriteError("/var/www/fleet: cannot be written (No space left on device)")

    monkeypatch.setattr(fleet_cli, "_site", full)
    script = tmp_path / "notify"
    script.write_text(f"#!/bin/sh\ncat > {told}\n")
    script.chmod(0o755)
    code, out, err = call(capsys, *words, script, "--site", tmp_path / "site")
    assert (code, "error: /var/www/fleet: cannot be written" in err) == (2, True)
    assert told.read_text() == out
    assert len(list(lake.fleet.glob("nights/*.json"))) == 1


@pytest.mark.slow  # whole commands, of which others take the same way
def test_strict_ends_with_2_where_nobody_was_notified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(tmp_path / "job", steps_count=2)
    lake = make_lake(tmp_path / "lake")
    lake.add([tmp_path / "job"], name="job", workers=1)
    words = ("rollup", lake.root, "--workers", 1, "--strict", "--notify-command")
    assert call(capsys, *words, "true")[0] == 0
    assert call(capsys, *words, "false")[0] == 2


def test_kill_9_leaves_nothing_that_counts(fleet: Fleet, tmp_path: Path) -> None:
    """A real process, killed somewhere in its night; tests above stop at each commit."""
    script = (
        "import sys; from pathlib import Path; from fleet_nights import Fleet, FleetLake\n"
        "from tracekit.fleet.rollup import rolled_up\n"
        "lake = FleetLake(Path(sys.argv[1]), Fleet(1, days=2), 2); print('go', flush=True)\n"
        "rolled_up(lake, diagnose=lake.diagnosed)"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    work = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
    )
    assert work.stdout is not None
    work.stdout.readline()
    for _ in range(400):  # until something is written
        if list(tmp_path.glob("fleet/*/_delta_log/*.json")):
            break
        time.sleep(0.01)
    work.send_signal(signal.SIGKILL)
    work.wait()
    work.stdout.close()
    whole = FleetLake(tmp_path / "whole", Fleet(1, days=2), 2)
    rolled_up(whole, diagnose=whole.diagnosed)
    again = FleetLake(tmp_path, whole.simulated, 2)
    rolled_up(again, diagnose=again.diagnosed)
    assert tables(tmp_path) == tables(tmp_path / "whole")


@pytest.mark.slow  # whole commands, of which others take the same way
def test_a_process_that_is_killed_is_named_and_the_others_are_done(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = FleetLake(tmp_path, fleet, 1)
    names = [card.name for card, _ in fleet.runs[day_of(1)]]
    monkeypatch.setattr(rollup, "diagnosed", dies)
    monkeypatch.setenv("DIES", names[2])
    done = rolled_up(lake, workers=2)
    assert done.failed == ((names[2], "its process was killed: out of memory?"),)
    assert sorted(done.done) == sorted(set(names) - {names[2]})

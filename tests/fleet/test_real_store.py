"""A lake in a real S3 server on loopback, behind a proxy that cuts, delays and refuses.

Needs moto's server, by its path in TRACEKIT_MOTO_SERVER: with what it needs it is 300 MB, and so no
requirement of the tests. Seen with moto 5.2.5; an older 5.2.1 ended uploads with an empty answer,
which is an error. tests/fleet/test_object_lake.py needs no server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from store_servers import (
    ALL,
    Plan,
    asked,
    command,
    commit_at_once,
    proxied,
    roll_up_one,
    rows_of,
    served,
    told_of,
)

from tracekit import objects
from tracekit.fleet.lakes import lake_at, make_lake
from tracekit.fleet.object_lake import ObjectLake
from tracekit.fleet.rollup import rolled_up
from tracekit.fleet.store import FleetStore
from tracekit.objects import Objects
from traces import write_job

ROOT = "s3://lakes/nightly"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks of a job."""
    folder = tmp_path_factory.mktemp("job")
    write_job(folder, steps_count=2)
    return folder


@pytest.fixture(scope="module")
def served_by() -> Iterator[tuple[int, int, Plan]]:
    """Ports of a server and of the proxy before it, and who says what that does."""
    program = os.environ.get("TRACEKIT_MOTO_SERVER")
    if program is None:
        pytest.skip(
            "needs an S3 server: pip install 'moto[server]>=5.2.5', TRACEKIT_MOTO_SERVER=its path"
        )
    with served([program, "-H", "127.0.0.1", "-p", "PORT"]) as port, proxied(port) as (own, say):
        yield port, own, say


@pytest.fixture
def plan(
    served_by: tuple[int, int, Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Plan]:
    """An empty bucket ``lakes``, behind a proxy that does nothing yet."""
    server, proxy, say = served_by
    say()
    asked(server, "/moto-api/reset", "POST")
    asked(server, "/lakes", "PUT")
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy}",
        "AWS_ACCESS_KEY_ID": "planted-id",
        "AWS_SECRET_ACCESS_KEY": "planted-secret",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "TRACEKIT_CACHE_DIR": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    yield say
    say()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a server that is gone need not wait long."""
    monkeypatch.setattr(objects, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(objects, "CLIENT_TRIES", 1)


@pytest.mark.parametrize("fault", ["ok", "503", "cut answer", "cut upload", "slow"])
def test_ingest_rollup_and_diagnosis_from_a_server_that_fails_now_and_then(
    fault: str, plan: Plan, job: Path, tmp_path: Path
) -> None:
    plan(fault, every=5, methods="PUT" if fault == "cut upload" else ALL)
    assert command("ingest", str(job), "--lake", ROOT, "--name", "j", "--workers", "1") == 0
    roll_up_one(ROOT)
    told = told_of(f"{ROOT}/runs/j")
    assert plan()[fault] > 2
    plain = make_lake(tmp_path / "plain")
    plain.add([job], name="j", workers=1)
    roll_up_one(tmp_path / "plain")
    assert rows_of(ROOT) == rows_of(tmp_path / "plain")
    assert told == told_of(plain.path("j"))


@pytest.mark.usefixtures("hasty")
def test_a_server_that_goes_away_leaves_no_half_run_and_a_clear_error(
    plan: Plan, job: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_lake(ROOT)
    words = ("ingest", str(job), "--lake", ROOT, "--name", "j", "--workers", "1")
    for point in (1, 5, 12):
        plan("gone", after=point)
        assert command(*words) == 2
        said = capfd.readouterr().err
        assert f"error: {ROOT}" in said
        assert "hint: " in said
        assert plan()["gone"]
        assert lake_at(ROOT).names() == []
    assert command(*words) == 0
    assert lake_at(ROOT).names() == ["j"]


@pytest.mark.usefixtures("hasty")
def test_nothing_of_the_credentials_is_printed_or_written(
    plan: Plan, job: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_lake(ROOT).add([job], name="j", workers=1)
    roll_up_one(ROOT)
    plan("503")
    assert command("diagnose", f"{ROOT}/runs/j") == 2
    assert command("rollup", ROOT, "--workers", "1") == 2
    said = capfd.readouterr()
    assert said.err.count("error: s3://lakes/nightly") == 2
    assert "planted" not in said.out + said.err
    plan()
    at = Objects(ROOT)
    for name in at.sizes():
        assert b"planted" not in (at.read(name) or b"")
    for path in (tmp_path / "cache").rglob("*"):
        assert path.is_dir() or b"planted" not in path.read_bytes()


def test_workers_of_a_cluster_need_nothing_but_the_store(
    plan: Plan, job: Path, tmp_path: Path
) -> None:
    """Processes with a cache each, which share no folder but that of the traces."""
    pytest.importorskip("distributed", reason="needs pip install 'tracekit[cluster]'")
    words = ["--cluster", "local", "--workers", "2"]
    assert command("ingest", str(job), "--lake", ROOT, "--name", "j", *words) == 0
    assert command("rollup", ROOT, "-o", str(tmp_path / "night.txt"), *words) == 0
    plain = make_lake(tmp_path / "plain")
    plain.add([job], name="j", workers=1)
    roll_up_one(tmp_path / "plain")
    assert rows_of(ROOT) == rows_of(tmp_path / "plain")
    assert told_of(f"{ROOT}/runs/j") == told_of(plain.path("j"))
    assert not Objects(ROOT).sizes("tmp")


def test_a_night_asks_no_more_of_the_store_however_many_runs_it_has_seen(
    plan: Plan, job: Path
) -> None:
    lake = lake_at(str(make_lake(ROOT).root))
    assert isinstance(lake, ObjectLake)
    lake.add([job], name="j", workers=1)
    roll_up_one(ROOT)
    entry = lake.entry("j")
    assert entry.card is not None
    row = FleetStore(lake.fleet).ledger()["j"]

    def requests_of_a_night() -> int:
        plan()
        assert rolled_up(lake_at(ROOT)).done == ()
        return plan()["ok"]

    few = requests_of_a_night()
    for index in range(60):
        lake._write_card(replace(entry.card, name=f"j{index}"), None)
    FleetStore(lake.fleet).write_ledger([{**row, "run": f"j{i}"} for i in range(60)])
    assert rolled_up(lake_at(ROOT)).unchanged_count == 61
    assert requests_of_a_night() <= few + 4  # of the ledger's one commit more


def test_writers_of_the_same_tables_at_once_lose_no_row(plan: Plan) -> None:
    plan()
    commit_at_once(ROOT)


def test_a_bucket_that_may_only_be_read_is_read_and_named_by_who_would_write(
    plan: Plan, job: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("ingest", str(job), "--lake", ROOT, "--name")
    assert command(*words, "j") == 0
    roll_up_one(ROOT)
    plan("403", methods="PUT,POST,DELETE")
    capfd.readouterr()
    for writing in ([*words, "other"], ["rollup", ROOT], ["lake", "rm", ROOT, "j"]):
        assert command(*writing) == 2
        said = capfd.readouterr().err
        assert f"error: {ROOT}" in said
        assert "access denied" in said
        assert "planted" not in said
    assert command("lake", "ls", ROOT) == 0
    assert command("diagnose", f"{ROOT}/runs/j") == 0
    assert command("site", ROOT, "-o", str(tmp_path / "site"), "--workers", "1") == 0
    plan()
    assert lake_at(ROOT).names() == ["j"]

"""A lake in a real S3 server on loopback, behind a proxy that cuts, delays and refuses.

Needs moto's server, by its path in TRACEKIT_MOTO_SERVER: with what it needs it is 300 MB, and so no
requirement of the tests. Seen with moto 5.2.5; an older 5.2.1 ended uploads with an empty answer,
which is an error. tests/fleet/test_object_lake.py needs no server.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tracekit import api, objects
from tracekit.cli.app import main
from tracekit.fleet import tables
from tracekit.fleet.lakes import lake_at, make_lake
from tracekit.fleet.rollup import rolled_up
from tracekit.fleet.store import FleetStore
from tracekit.objects import Objects
from traces import write_job

ROOT = "s3://lakes/nightly"
ALL = "GET,PUT,HEAD,POST,DELETE"
Plan = Callable[..., dict[str, int]]
"""Says what happens from here on; gives what was met before."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks of a job."""
    folder = tmp_path_factory.mktemp("job")
    write_job(folder, steps_count=2)
    return folder


def _asked(port: int, path: str, method: str = "GET") -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - loopback
        return bytes(answer.read())


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    """Ports of a server and of the proxy before it."""
    program = os.environ.get("TRACEKIT_MOTO_SERVER")
    if program is None:
        pytest.skip(
            "needs an S3 server: pip install 'moto[server]>=5.2.5', TRACEKIT_MOTO_SERVER=its path"
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    quiet = subprocess.DEVNULL
    words = [program, "-H", "127.0.0.1", "-p", str(port)]
    before = [sys.executable, str(Path(__file__).with_name("failing_proxy.py")), str(port)]
    with (
        subprocess.Popen(words, stdout=quiet, stderr=quiet) as server,
        subprocess.Popen(before, stdout=subprocess.PIPE, stderr=quiet) as proxy,
    ):
        try:
            assert proxy.stdout is not None
            own = int(proxy.stdout.readline())
            for _ in range(300):
                try:
                    _asked(port, "/moto-api/")
                except OSError:
                    time.sleep(0.1)
                else:
                    break
            yield port, own
        finally:
            server.terminate()
            proxy.terminate()


@pytest.fixture
def plan(ports: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plan]:
    """An empty bucket ``lakes``, behind a proxy that does nothing yet."""
    server, proxy = ports

    def say(
        fault: str = "ok", every: int = 1, methods: str = ALL, after: int = 0
    ) -> dict[str, int]:
        said = urlencode({"fault": fault, "every": every, "methods": methods, "after": after})
        met: dict[str, int] = json.loads(_asked(proxy, f"/plan?{said}"))
        return met

    say()
    _asked(server, "/moto-api/reset", "POST")
    _asked(server, "/lakes", "PUT")
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


def _command(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    return int(ended.value.code or 0)


def _rows(root: str | Path) -> dict[str, list[dict[str, Any]]]:
    store = FleetStore(lake_at(root).fleet)
    return {t.name: store.rows(t.name) for t in tables.TABLES}


def _rolled(root: str | Path) -> None:
    rolled = rolled_up(lake_at(root))
    assert (len(rolled.done), rolled.failed) == (1, ())


def _told(run: str | Path) -> str:
    """What its diagnosis says, wherever it lies."""
    with api.open(run) as opened:
        text = opened.diagnose().to_json()
    assert str(run) in text
    return text.replace(str(run), "RUN")


@pytest.mark.parametrize("fault", ["ok", "503", "cut answer", "cut upload", "slow"])
def test_ingest_rollup_and_diagnosis_from_a_server_that_fails_now_and_then(
    fault: str, plan: Plan, job: Path, tmp_path: Path
) -> None:
    plan(fault, every=5, methods="PUT" if fault == "cut upload" else ALL)
    assert _command("ingest", str(job), "--lake", ROOT, "--name", "j", "--workers", "1") == 0
    _rolled(ROOT)
    told = _told(f"{ROOT}/runs/j")
    assert plan()[fault] > 2
    plain = make_lake(tmp_path / "plain")
    plain.add([job], name="j", workers=1)
    _rolled(tmp_path / "plain")
    assert _rows(ROOT) == _rows(tmp_path / "plain")
    assert told == _told(plain.path("j"))


@pytest.mark.usefixtures("hasty")
def test_a_server_that_goes_away_leaves_no_half_run_and_a_clear_error(
    plan: Plan, job: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_lake(ROOT)
    words = ("ingest", str(job), "--lake", ROOT, "--name", "j", "--workers", "1")
    for point in (1, 5, 12):
        plan("gone", after=point)
        assert _command(*words) == 2
        said = capfd.readouterr().err
        assert f"error: {ROOT}" in said
        assert "hint: " in said
        assert plan()["gone"]
        assert lake_at(ROOT).names() == []
    assert _command(*words) == 0
    assert lake_at(ROOT).names() == ["j"]


@pytest.mark.usefixtures("hasty")
def test_nothing_of_the_credentials_is_printed_or_written(
    plan: Plan, job: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_lake(ROOT).add([job], name="j", workers=1)
    _rolled(ROOT)
    plan("503")
    assert _command("diagnose", f"{ROOT}/runs/j") == 2
    assert _command("rollup", ROOT, "--workers", "1") == 2
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
    assert _command("ingest", str(job), "--lake", ROOT, "--name", "j", *words) == 0
    assert _command("rollup", ROOT, "-o", str(tmp_path / "night.txt"), *words) == 0
    plain = make_lake(tmp_path / "plain")
    plain.add([job], name="j", workers=1)
    _rolled(tmp_path / "plain")
    assert _rows(ROOT) == _rows(tmp_path / "plain")
    assert _told(f"{ROOT}/runs/j") == _told(plain.path("j"))
    assert not Objects(ROOT).sizes("tmp")

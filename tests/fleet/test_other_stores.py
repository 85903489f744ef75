"""The whole way of a lake in Azure's and Google's stores, as servers on loopback have them.

Azure's: Azurite (npm install azurite), by the path of its program ``azurite-blob`` in
TRACEKIT_AZURITE. Google's: gcp-storage-emulator (of PyPI), by the path of its program in
TRACEKIT_GCS_EMULATOR; it has no XML interface, through which Delta Lake works, and so moto's server
stands in for that (TRACEKIT_MOTO_SERVER, as in test_real_store.py). Seen with Azurite 3.37.0,
gcp-storage-emulator 2026.7.19 and moto 5.2.5.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from store_servers import (
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
from tracekit.errors import StoreError
from tracekit.fleet.lakes import lake_at, make_lake
from tracekit.objects import Objects
from traces import write_job

SECRET = base64.b64encode(b"planted-secret").decode()
BUCKET = "lakes"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks of a job."""
    folder = tmp_path_factory.mktemp("job")
    write_job(folder, steps_count=2)
    return folder


def _program(variable: str, what: str) -> str:
    program = os.environ.get(variable)
    if program is None:
        pytest.skip(f"needs {what}, its path in {variable}")
    return program


@pytest.fixture(scope="module", params=["abfs", "gs"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, str], Plan]]:
    """A store with one bucket: its scheme, the environment that tells where it is, and a plan."""
    with ExitStack() as stack:
        if request.param == "abfs":
            azurite = _program("TRACEKIT_AZURITE", "an Azure store: npm install azurite")
            folder = str(tmp_path_factory.mktemp("azurite"))
            host = ["--blobHost", "127.0.0.1", "--blobPort", "PORT", "-l", folder]
            words = [azurite, *host, "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
            accounts = {**os.environ, "AZURITE_ACCOUNTS": f"planted:{SECRET}"}
            port = stack.enter_context(served(words, accounts))
            own, say = stack.enter_context(proxied(port))
            environment = {
                "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{own}/planted",
                "AZURE_STORAGE_ACCOUNT_NAME": "planted",
                "AZURE_STORAGE_ACCOUNT_KEY": SECRET,
            }
        else:
            emulator = _program("TRACEKIT_GCS_EMULATOR", "pip install gcp-storage-emulator")
            moto = _program("TRACEKIT_MOTO_SERVER", "pip install 'moto[server]>=5.2.5'")
            words = [emulator, "start", "--host", "127.0.0.1", "--port", "PORT", "--in-memory"]
            port = stack.enter_context(served([*words, f"--default-bucket={BUCKET}"]))
            xml = stack.enter_context(served([moto, "-H", "127.0.0.1", "-p", "PORT"]))
            asked(xml, f"/{BUCKET}", "PUT")
            own, say = stack.enter_context(proxied(port, xml))
            environment = {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{own}"}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            if request.param == "abfs":
                Objects(f"abfs://{BUCKET}")._fs.create_dir(BUCKET)
        yield request.param, environment, say


@pytest.fixture
def root(
    store: tuple[str, dict[str, str], Plan],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """Where nothing is yet."""
    scheme, environment, say = store
    say()
    for name, value in {**environment, "TRACEKIT_CACHE_DIR": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    return f"{scheme}://{BUCKET}/{abs(hash(request.node.name)):x}"


def test_the_whole_way_gives_what_a_folder_gives(
    root: str, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("ingest", str(job), "--lake", root, "--name", "j", "--workers", "1")
    assert command(*words) == 0
    assert command(*words) == 0  # changes nothing
    assert lake_at(root).entry("j").card is not None
    roll_up_one(root)
    plain = make_lake(tmp_path / "plain")
    plain.add([job], name="j", workers=1)
    roll_up_one(tmp_path / "plain")
    assert rows_of(root) == rows_of(tmp_path / "plain")
    assert told_of(f"{root}/runs/j") == told_of(plain.path("j"))
    capsys.readouterr()
    assert command("rollup", root, "--workers", "1", "--format", "json") == 0
    assert '"unchanged_count": 1' in capsys.readouterr().out
    assert command("site", root, "-o", str(tmp_path / "site")) == 0
    assert (tmp_path / "site" / "index.html").exists()
    assert command("lake", "prune", root, "--older-than", "1d", "--dry-run") == 0
    assert command("lake", "rm", root, "j") == 0
    assert lake_at(root).names() == []
    assert Objects(f"{root}/runs").sizes() == {}


def test_a_claim_keeps_others_away_until_its_process_is_dead_there(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lake(root)
    lake = lake_at(root)
    with lake.rolling_up(), pytest.raises(StoreError, match="another rollup is at work"):
        lake.rolling_up().__enter__()
    at = Objects(root)
    at.write("claims/rollup/dead", b"")
    with pytest.raises(StoreError, match="another rollup is at work"):
        lake.rolling_up().__enter__()
    listed = objects.Objects._listed
    monkeypatch.setattr(
        objects.Objects,
        "_listed",
        lambda self, name: {
            n: (size, changed - (1e5 if n.endswith("dead") else 0))
            for n, (size, changed) in listed(self, name).items()
        },
    )
    assert at.older_than("claims", 1000) == ["claims/rollup/dead"]  # the store tells when
    with lake.rolling_up():
        assert len(at.sizes("claims")) == 1


def test_a_store_that_goes_away_or_refuses_leaves_no_half_run_and_no_secret(
    root: str,
    store: tuple[str, dict[str, str], Plan],
    job: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(objects, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(objects, "TRIES", 1)
    monkeypatch.setattr(objects, "SILENT_S", 2.0)
    scheme, _, say = store
    make_lake(root)
    words = ("ingest", str(job), "--lake", root, "--name", "j", "--workers", "1")
    for fault, after in (("gone", 12), ("503", 12)):
        say(fault, after=after)
        assert command(*words) == 2
        assert say()[fault]
        assert lake_at(root).names() == []
    assert command(*words) == 0
    roll_up_one(root)
    if scheme == "abfs":  # an emulator of Google's asks for no credentials
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"planted-x").decode())
        assert command("lake", "ls", root) == 2
        assert command("rollup", root, "--workers", "1") == 2
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", SECRET)
    said = capfd.readouterr()
    assert f"error: {root}" in said.err
    at = Objects(root)
    held = [at.read(name) or b"" for name in at.sizes()]
    held += [p.read_bytes() for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert len(held) > 10
    for secret in ("planted-", SECRET):
        assert secret not in said.out + said.err
        assert not any(secret.encode() in data for data in held)


def test_writers_of_the_same_tables_at_once_lose_no_row_there(root: str) -> None:
    if root.startswith("gs:"):
        pytest.skip("moto's server knows no write of Google's that depends on a generation")
    commit_at_once(root)

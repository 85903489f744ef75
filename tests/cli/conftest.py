"""What tests of commands share: a call in this process, and a job as files and as a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import Done, Tracekit
from tracekit import api
from tracekit.cli import main
from traces import write_job


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder as cwd; the cache is that of the file, so traces of several tests are read
    once."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.delenv("TRACEKIT_DEBUG", raising=False)


@pytest.fixture
def tracekit(capsys: pytest.CaptureFixture[str]) -> Tracekit:
    """Run a command in this process."""

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, out, err)

    return call


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of two ranks; rank 1 waits 30 ms for input in each of steps 5 to 10."""
    folder = tmp_path_factory.mktemp("slow")
    write_job(folder, stall_ms=30)
    return folder


@pytest.fixture(scope="module")
def run(slow: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a run."""
    folder = tmp_path_factory.mktemp("runs") / "slow"
    api.ingest(slow, run=folder).close()
    return folder

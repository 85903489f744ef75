"""Streams that are closed, full or narrow; files that are whole or not there; signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pyarrow as pa
import pytest

from soaks import soak
from tracekit import api
from tracekit.cli import output, state
from tracekit.errors import UsageError
from traces import write_job

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    write_job(folder / "job", steps_count=1)
    with api.ingest(folder / "job", run=folder / "run"):
        return folder / "run"


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command of a shell, in which ``tracekit`` is this checkout's."""
    return subprocess.run(
        ["bash", "-c", f'tracekit() {{ "{sys.executable}" -m tracekit "$@"; }}; {command}'],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a system without /dev/full")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("tracekit query --list > /dev/full", "No space left"),
        ("tracekit --help > /dev/full", "No space left"),
        ("tracekit query --list >&-", "Bad file descriptor"),
    ],
)
def test_an_output_that_cannot_be_written_is_said(command: str, words: str) -> None:
    done = shell(command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: standard output cannot be written ({words}")
    assert "hint: -o FILE" in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a system without /dev/full")
@pytest.mark.parametrize("to", ["2> /dev/full", "2>&-"])
def test_a_stderr_that_cannot_be_written_changes_no_answer(to: str) -> None:
    done = shell(f"tracekit query /nowhere step_time {to}")
    assert (done.returncode, done.stdout) == (2, "")


def test_a_stream_of_ascii_takes_any_text(run: Path) -> None:
    sql = "SELECT 'Jürgen 日本 😀' AS name"
    done = shell(f'tracekit sql {run} "{sql}" --format json', PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [{"name": "Jürgen 日本 😀"}]
    table = shell(f'tracekit sql {run} "{sql}"', PYTHONIOENCODING="ascii")
    assert table.returncode == 0
    assert "J\\u00fcrgen" in table.stdout


# ---------------------------------------------------------------- files


def test_a_file_that_cannot_be_written_whole_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "report.txt"
    kept.write_text("last night's")

    def half(self: Path, text: str, **_: object) -> int:
        with self.open("w") as stream:
            stream.write(text[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(UsageError, match="No space left on device"):
        output.write_text("today's", kept)
    assert kept.read_text() == "last night's"
    assert [p.name for p in tmp_path.iterdir()] == ["report.txt"]


def test_a_link_is_written_through_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "real.txt").chmod(0o640)
    link = tmp_path / "link.txt"
    link.symlink_to("real.txt")
    output.write_text("new", link)
    assert (link.is_symlink(), (tmp_path / "real.txt").read_text()) == (True, "new")
    assert (tmp_path / "real.txt").stat().st_mode & 0o777 == 0o640
    output.write_text("gone", Path("/dev/null"))
    assert Path("/dev/null").is_char_device()


# ---------------------------------------------------------------- tables


def test_a_wide_table_is_cut_in_its_names_and_never_in_a_number() -> None:
    rows = pa.table(
        {
            "name": ["k" * 90, "sgemm"],
            "host": ["node-" + "7" * 30, "n1"],
            "when": pa.array([0, 1], pa.timestamp("ns")),
            "total_ns": [1_234_567_890_123, 5],
        }
    )
    whole = output.table(rows)
    assert "k" * 90 in whole
    assert whole.endswith("(2 rows)\n")
    for width in (80, 120):
        lines = output.table(rows, width).splitlines()
        assert max(map(len, lines)) <= width
        assert lines[2].endswith("1234567890123")
        assert "1970-01-01 00:00:00" in lines[2]
        assert "kkk..." in lines[2]
        assert lines[-1] == "(2 rows; names are cut: --format csv has them whole)"
    narrow = output.table(rows, 30).splitlines()  # numbers and the beginning of names stay
    assert narrow[2].startswith("kkkkkkkkk...  node-7777...  1970-01-01 00:00:00")
    assert narrow[2].endswith("1234567890123")


@pytest.mark.skipif(shutil.which("script") is None, reason="a system without util-linux's script")
@pytest.mark.parametrize("columns", soak([60, 120], fast=1))
def test_a_terminal_gets_tables_and_reports_of_its_width(run: Path, columns: int) -> None:
    """On a terminal of its own, as people have them; a pipe gets everything."""
    script = f"stty cols {columns}; '{sys.executable}' -m tracekit"
    outer = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    sql = "SELECT repeat('n', 200) AS name, 7 AS count"
    done = subprocess.run(
        ["script", "-qec", f'{script} sql {run} "{sql}"; {script} diagnose {run}', "/dev/null"],
        env={**outer, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    shown = done.stdout.splitlines()
    prose = [line for line in shown if "tracekit " not in line and str(run) not in line]
    assert max(map(len, prose)) <= columns
    assert any(line.endswith("...      7") for line in prose)


# ---------------------------------------------------------------- signals


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


INTERRUPTED = """
    import sys
    import tracekit.derive.run as module
    from tracekit.cli import main

    def slow(con, *_, **__):
        print("go", flush=True)
        con.execute("SELECT count(*) FROM range(1000000000000) a").fetchall()

    module.derive = slow
    main(sys.argv[1:])
"""


def test_ctrl_c_while_deriving_is_130(tmp_path: Path) -> None:
    """DuckDB makes an error of its own of it."""
    write_job(tmp_path / "job", steps_count=1)
    process = start(INTERRUPTED, "ingest", tmp_path / "job", "--run", tmp_path / "run")
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "interrupted\n")
    assert not (tmp_path / "run" / "manifests").exists()


def test_an_interrupt_that_a_library_swallowed_prints_no_half_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(state.STATE, "is_interrupted", True)
    with pytest.raises(KeyboardInterrupt):
        output.write_text("half an answer", None)
    assert capsys.readouterr().out == ""


WORKERS = """
    import os, sys, time
    from pathlib import Path
    from tracekit.runs import execute

    def tell(path):
        Path(path).write_text(str(os.getpid()))
        time.sleep(600)

    if __name__ == "__main__":
        with execute._pool(2) as pool:
            for path in sys.argv[1:]:
                pool.submit(tell, path)
            print("go", flush=True)
            time.sleep(600)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(
    tmp_path: Path, sent: signal.Signals
) -> None:
    script = tmp_path / "script.py"  # workers import it
    script.write_text(textwrap.dedent(WORKERS))
    told = [tmp_path / "a", tmp_path / "b"]
    process = subprocess.Popen(
        [sys.executable, script, *told],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def wait_for(what: object, seconds: float = 40.0) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if what():  # type: ignore[operator]
                return True
            time.sleep(0.05)
        return False

    assert wait_for(lambda: all(p.exists() and p.read_text() for p in told))
    pids = [int(p.read_text()) for p in told]
    process.send_signal(sent)
    process.wait(timeout=30)

    def are_gone() -> bool:
        return not any(Path(f"/proc/{pid}").exists() and is_running(pid) for pid in pids)

    assert wait_for(are_gone)


def is_running(pid: int) -> bool:
    """Not a zombie that waits for its parent to ask."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")

"""``--log-format json``: stderr is one JSON object a line, whatever happens."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tracekit import logs
from tracekit.cli import main
from tracekit.fleet.lake import make_lake
from traces import write_job

ROOT = Path(__file__).resolve().parent.parent.parent
JSON = ("--log-format", "json")


def called(*words: object, **environment: str) -> tuple[int, str, list[dict[str, Any]]]:
    """Exit code, stdout and the objects on stderr of a process: its workers write there too."""
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout, [json.loads(line) for line in done.stderr.splitlines()]


def called_here(
    capsys: pytest.CaptureFixture[str], *words: object
) -> tuple[object, str, list[dict[str, Any]]]:
    """The same of a command in this process."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    out, err = capsys.readouterr()
    return ended.value.code, out, [json.loads(line) for line in err.splitlines()]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    write_job(folder / "job", stall_ms=30, steps_count=2)
    return folder / "job"


@pytest.fixture(scope="module")
def lake(traces: Path) -> Path:
    """Two runs, one of them broken."""
    made = make_lake(traces.parent / "lake")
    for name in ("good", "broken"):
        made.add([traces], name=name, workers=1)
    for shard in made.path("broken").rglob("host_op*.parquet"):
        shard.write_bytes(b"x")
    return traces.parent / "lake"


def test_an_ingest_says_what_it_read_as_objects(traces: Path, tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"traceEvents": [')
    words = ("ingest", traces, tmp_path / "half.json", "--run", tmp_path / "run", "--workers", 1)
    code, out, said = called(*words, *JSON)
    assert (code, out) == (0, "")
    files = {s["status"]: s for s in said if s.get("event") == "files_read"}
    assert files["ok"]["level"] == "info"
    assert files["ok"]["rows_count"] > 0
    (bad,) = [s for status, s in files.items() if status != "ok"]
    assert (bad["level"], bad["files_count"]) == ("warning", 1)
    assert bad["path"].endswith("half.json")
    assert said[-1]["event"] == "run_written"
    assert said[-1]["path"] == str(tmp_path / "run")
    for one in said:
        assert datetime.fromisoformat(one["time"]).utcoffset() is not None
        assert one["message"]


def test_the_option_stands_before_or_after_the_command(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("ingest", traces, "--run", tmp_path / "run", "--workers", 1)
    after = called_here(capsys, *words, *JSON)[2]
    before = called_here(capsys, *JSON, *words)[2]
    same = called_here(capsys, "--log-format=json", *words, *JSON)[2]
    assert len(before) == len(after) == len(same)


@pytest.mark.parametrize("json_words", [JSON, ("--log-format=json",)])
def test_a_mistake_in_an_option_is_json_wherever_it_stands(json_words: tuple[str, ...]) -> None:
    for words in (["--nosuch", *json_words], [*json_words, "--nosuch"]):
        code, out, said = called("rollup", "lake", *words)
        assert (code, out) == (2, "")
        assert [s["level"] for s in said] == ["error"]
        assert "--nosuch" in said[0]["message"]


@pytest.mark.slow
def test_a_rollup_names_who_failed_and_counts(lake: Path) -> None:
    code, out, said = called("rollup", lake, "--workers", 2, "--strict", *JSON)
    assert code == 2
    assert out.startswith("Night of ")
    by_event = {s.get("event"): s for s in said}
    assert by_event["run_failed"]["run"] == "broken"
    assert by_event["run_failed"]["level"] == "warning"
    assert by_event["run_failed"]["reason"] in by_event["run_failed"]["message"]
    counts = by_event["rolled_up"]
    assert (counts["done_count"], counts["failed_count"], counts["unchanged_count"]) == (1, 1, 0)
    assert said[-1]["level"] == "error"  # --strict
    again = called("rollup", lake, "--workers", 1, *JSON)[2]
    assert again[-1]["unchanged_count"] == 1


def test_quiet_leaves_errors(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called_here(capsys, "-q", "rollup", lake, "--workers", 1, *JSON)[2] == []
    (said,) = called_here(capsys, "-q", *JSON, "rollup", lake, "--workers", 1, "--strict")[2]
    assert said["level"] == "error"


@pytest.mark.parametrize(
    "words",
    [
        (*JSON, "rollup", "nowhere"),
        ("rollup", "nowhere", *JSON),
        (*JSON, "rollup", "--no-such-option"),
        (*JSON, "no-such-command"),
        ("ingest", "nowhere", *JSON),
    ],
)
def test_a_wrong_call_is_one_object(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, said = called_here(capsys, *words)
    assert (code, out) == (2, "")
    assert [s["level"] for s in said] == ["error"]
    assert "\n" not in said[0].get("hint", "")


def test_a_bug_is_one_object(
    lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("tracekit.fleet.rollup.rolled_up", breaks)
    with pytest.raises(SystemExit) as ended:
        main(["rollup", str(lake), *JSON])
    assert ended.value.code == 70
    said = json.loads(capsys.readouterr().err)
    assert said["level"] == "error"
    assert "RuntimeError" in said["message"]
    assert "--debug" in said["hint"]


def test_what_libraries_say_is_json_too_and_only_meanwhile(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = [*logging.getLogger().handlers]
    undo = logs.log_json()
    try:
        logging.getLogger("tracekit").warning("note: %s\nhint: forged", "a name")
        warnings.warn("old", stacklevel=1)
        wrong = {"name": "theirs", "levelno": logging.ERROR, "msg": "bad %d", "args": ("x",)}
        logging.getLogger().handlers[-1].handle(logging.makeLogRecord(wrong))
    finally:
        undo()
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [s["level"] for s in said] == ["warning", "warning", "error"]
    assert said[0]["logger"] == "tracekit"
    assert said[0]["message"].startswith("a name")
    assert "old" in said[1]["message"]
    assert said[2]["message"] == "bad %d"
    assert logging.getLogger().handlers == before
    assert logs.JSON_VARIABLE not in os.environ


def test_text_stays_text(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["ingest", str(traces), "--run", str(tmp_path / "run"), "--workers", "1", *JSON])
    assert capsys.readouterr().err.startswith("{")
    with pytest.raises(SystemExit):
        main(["ingest", str(traces), "--run", str(tmp_path / "run"), "--workers", "1"])
    assert capsys.readouterr().err.startswith("ok: ")

"""The command line: a reader's session, exit codes, what goes to stderr."""

from __future__ import annotations

import json
import logging
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import ONE_RULE, ROOT, Tracekit, assert_refused, start
from soaks import soak
from tracekit import api, catalog
from tracekit.cli import main
from tracekit.target import COMMAND
from traces import make_trace, write_job, write_trace

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("healthy")
    write_job(folder)
    return folder


# ---------------------------------------------------------------- the session of a reader


def test_a_session_from_files_to_an_explanation(
    tracekit: Tracekit, slow: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done = tracekit("sources", slow)
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["kineto", "kineto"]
    done = tracekit("ingest", slow, "--run", run)
    assert (done.code, done.out) == (0, "")
    assert "ok: 2 files" in done.err
    assert f"run: {run} (generation 1)" in done.err
    done = tracekit("query", run, "step_time", "--format", "jsonl")
    assert (done.code, len(done.out.splitlines()), done.err) == (0, 12, "")
    done = tracekit("sql", run, "SELECT count(*) AS n FROM gpu_op", "--format", "csv")
    assert (done.code, done.out) == (0, "n\n24\n")
    done = tracekit("diagnose", run)
    assert done.code == 0
    assert "VERDICT   Rank 1 waits 30.0 ms for input" in done.out
    assert len(done.out.splitlines()) <= 25
    shown = tracekit("show", run, "F1")
    assert shown.code == 0
    assert shown.out.startswith("dataloader-stall/1")
    assert f"{slow}/rank1.json" in shown.out
    assert tracekit("show", run, "dataloader-stall/1").out == shown.out
    done = tracekit("explain", "dataloader-stall")
    assert done.code == 0
    assert "min_impact_ratio" in done.out


def test_the_commands_that_a_report_suggests_work(tracekit: Tracekit, run: Path) -> None:
    text = tracekit("diagnose", run).out
    suggested = [line for line in text.splitlines() if line.startswith("MORE")]
    for command in suggested[0].removeprefix("MORE").split("    "):
        words = shlex.split(command)
        if words:
            assert words[0] == "tracekit"
            assert tracekit(*words[1:]).code == 0, command


NAMES = ("a b", "-y", "it's; touch owned", "$(touch owned)\n\x1b[2J", "~", "*")
"""Names of files that a shell, a terminal or an option's parser would take for something else."""


def commands_in(*texts: str) -> list[str]:
    """Commands of tracekit inside sentences."""
    found = [match[0].strip() for text in texts for match in COMMAND.finditer(text)]
    return [one for one in found if one.startswith("tracekit ")]


def words_of(command: str) -> list[str]:
    """A command's words as bash reads them, which knows more than shlex."""
    script = f"printf '%s\\0' {command}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def printed(text: str) -> set[str]:
    """Commands that stand by themselves in lines of a report."""
    parts = [part for line in text.splitlines() for part in line.split("    ")]
    return {c for part in parts for c in commands_in(part.removeprefix("MORE").strip())}


@pytest.mark.parametrize(
    ("given", "is_job_given"),
    soak(
        [
            (["./" + NAMES[3], NAMES[2]], True),
            (["./-y", "a b"], True),
            (["~", "./*"], False),
            (["./" + NAMES[3], NAMES[2]], False),
        ],
        fast=[(["./" + NAMES[3], NAMES[2]], True)],
    ),
)
def test_every_command_that_a_report_prints_runs_as_printed(
    tracekit: Tracekit, slow: Path, given: list[str], is_job_given: bool
) -> None:
    """Whatever the files are called, however many were given, and of whatever part it speaks."""
    traces = sorted(slow.glob("*.json"))
    for name, path in zip(NAMES, [*traces[:2]] * 3, strict=True):
        Path(name).mkdir()
        (Path(name) / path.name).write_bytes(path.read_bytes())
    Path("my job.toml").write_text("[parallelism]\ndp = 2\n[model]\nlayers = 2\n")
    options = ["--job", "my job.toml"] if is_job_given else ["--steps", "5-10", "--ranks", "0,1"]
    whole = tracekit("diagnose", *given, *options, "--all").out
    document = json.loads(tracekit("diagnose", *given, *options, "--format", "json").out)
    told = [entry["capture"] or "" for entry in document["not_checked"]]
    for finding in document["findings"]:
        told += [*finding["confirm"], *finding["remedy"], *finding["next_capture"]]
    shown = tracekit("show", *given, "F1", *options).out
    commands = {*commands_in(*told), *printed(whole), *printed(shown)}
    verbs = {command.split()[1] for command in commands}
    assert {"show", "query", "explain", "job", "capture"} <= verbs
    for command in sorted(commands):
        assert command.isprintable()
        words = words_of(command)
        assert not {"RUN", "PATH"} & set(words), command
        done = tracekit(*words[1:])
        assert done.code == 0, (command, done.err)
        Path("job.toml").unlink(missing_ok=True)
        if words[1] == "show":
            assert done.out == shown
    assert not Path("owned").exists()


def test_a_finding_is_named_by_its_id_where_rules_were_left_out(
    tracekit: Tracekit, run: Path
) -> None:
    text = tracekit("diagnose", run, "--ignore", "exposed-communication").out
    assert f"tracekit show {run} dataloader-stall/1" in text


def test_many_paths_are_named_by_the_folder_that_holds_what_was_read(
    tracekit: Tracekit, slow: Path
) -> None:
    for number, path in enumerate([*sorted(slow.glob("*.json"))[:2]] * 2):
        Path(f"part{number}").mkdir()
        target = Path(f"part{number}") / path.name
        target.write_bytes(path.read_bytes() if number < 2 else b"nothing")
    parts = [f"part{n}" for n in range(4)]
    document = json.loads(tracekit("diagnose", *parts, *ONE_RULE, "--format", "json").out)
    assert document["run"]["id"] == "part0 part1 part2 and 1 more"
    text = tracekit("diagnose", *parts, *ONE_RULE).out
    (command,) = (c for c in printed(text) if c.startswith("tracekit show "))
    words = words_of(command)
    assert len(words) == 4
    assert tracekit(*words[1:]).code == 0


def test_raw_paths_give_the_same_diagnosis_as_a_run(
    tracekit: Tracekit, run: Path, slow: Path
) -> None:
    """But for the name of what was given, which the report's commands repeat."""
    of_run, of_paths = (tracekit("diagnose", t, "--format", "json").out for t in (run, slow))
    assert f"tracekit job {run} " in of_run
    ours, theirs = json.loads(of_run.replace(str(run), str(slow))), json.loads(of_paths)
    ours.pop("run")
    theirs.pop("run")
    assert ours == theirs


def test_a_healthy_job_has_nothing_to_fix(tracekit: Tracekit, healthy: Path) -> None:
    done = tracekit("diagnose", healthy)
    assert done.code == 0
    assert "othing to fix: 100 ms a step" in done.out


def test_the_inferred_job_description_can_be_given_back(
    tracekit: Tracekit, slow: Path, tmp_path: Path
) -> None:
    target = tmp_path / "job.toml"
    done = tracekit("job", slow, "-o", target)
    assert (done.code, done.out) == (0, "")
    assert tracekit("job", slow).out == target.read_text()
    with api.open(slow, job=[target]) as opened:
        assert opened.job is not None
        assert opened.job.world_size == 2
    done = tracekit("diagnose", slow, "--job", target)
    assert done.code == 0
    assert "Rank 1 waits 30.0 ms" in done.out
    again = tracekit("diagnose", slow, target).out
    # The lines above hold paths, and wrap where those are long.
    found, expected = (text.partition("VERDICT")[2].splitlines()[:5] for text in (again, done.out))
    assert found == expected


# ---------------------------------------------------------------- exit codes


def test_a_timeline_says_what_it_left_out(tracekit: Tracekit, run: Path, tmp_path: Path) -> None:
    """Where more than fits is there, and where no file is named."""
    drawn = tmp_path / "drawn.json"
    done = tracekit("timeline", run, "-o", drawn, "--max-slices", 20, "--no-findings")
    assert done.code == 0, done.err
    assert "left out: " in done.err
    assert f"wrote {drawn}: 2 ranks, " in done.err and "0 findings" in done.err
    assert json.loads(drawn.read_text())["traceEvents"]
    assert_refused(tracekit("timeline", run), "timeline needs --output F", hint="-o ")


def test_fail_on_a_severity_that_is_reached_is_1(tracekit: Tracekit, run: Path) -> None:
    for severity in ("note", "critical"):
        done = tracekit("diagnose", run, *ONE_RULE, "--fail-on", severity)
        assert done.code == 1
        assert "VERDICT" in done.out
    assert tracekit("diagnose", run, *ONE_RULE).code == 0


def test_fail_on_a_severity_that_is_not_reached_is_0(tracekit: Tracekit, healthy: Path) -> None:
    assert tracekit("diagnose", healthy, "--fail-on", "major").code == 0


def test_fail_on_passes_where_there_is_nothing_to_fix(tracekit: Tracekit, healthy: Path) -> None:
    """Whatever minor findings and notes stand beside that verdict."""
    done = tracekit("diagnose", healthy, "--fail-on", "note", "--format", "json")
    assert json.loads(done.out)["verdict"]["kind"] == "inherent"
    assert json.loads(done.out)["verdict"]["severity"] is None
    assert done.code == 0


@pytest.mark.parametrize("world_size", [2, 1])
def test_fail_on_where_nothing_could_be_checked_is_3(
    tracekit: Tracekit, tmp_path: Path, world_size: int
) -> None:
    document = make_trace(0, world_size=world_size)
    document["traceEvents"] = [e for e in document["traceEvents"] if e["cat"] == "cpu_op"]
    trace = write_trace(tmp_path / "rank0.json", document)
    done = tracekit("diagnose", trace, "--fail-on", "critical")
    assert done.code == 3
    assert "error: --fail-on" in done.err
    assert tracekit("-q", "diagnose", trace, "--fail-on", "critical").err == done.err
    assert tracekit("diagnose", trace).code == 0


def test_strict_makes_a_partial_input_2(tracekit: Tracekit, slow: Path, tmp_path: Path) -> None:
    for path in slow.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (tmp_path / "rank1.json").read_text()
    (tmp_path / "rank1.json").write_text(text[:-500])
    files = [tmp_path / "rank0.json", tmp_path / "rank1.json"]
    assert tracekit("diagnose", *files, *ONE_RULE).code == 0
    done = tracekit("-q", "diagnose", *files, *ONE_RULE, "--strict")
    assert done.code == 2
    assert "error: --strict" in done.err
    assert tracekit("ingest", *files, "--run", tmp_path / "a").code == 0
    done = tracekit("ingest", *files, "--run", tmp_path / "b", "--strict")
    assert done.code == 2
    assert "partial: 1 file" in done.err
    assert tracekit("diagnose", slow, *ONE_RULE, "--strict").code == 0


def test_the_query_may_come_first(tracekit: Tracekit, run: Path) -> None:
    last = tracekit("query", run, "step_time", "--format", "csv")
    assert last.code == 0
    assert tracekit("query", "step_time", run, "--format", "csv") == last


def test_a_bug_of_ours_is_70_and_shows_no_traceback(
    tracekit: Tracekit, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("what the file said")

    monkeypatch.setattr(catalog, "few_rows", fail)
    shutil.rmtree(run / "answers", ignore_errors=True)  # another test may have asked before
    done = tracekit("query", run, "step_time")
    assert (done.code, done.out) == (70, "")
    assert done.err.splitlines()[0].startswith("error: internal error")
    assert done.err.splitlines()[1].startswith("hint: ")
    assert "what the file said" not in done.err
    with pytest.raises(ZeroDivisionError):
        main(["--debug", "query", str(run), "step_time"])


def test_interruption_is_130(
    tracekit: Tracekit, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "open", interrupt)
    done = tracekit("diagnose", run)
    assert (done.code, done.out) == (130, "")


def test_ctrl_c_ends_a_real_ingest_and_leaves_no_half_run(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "rank0.json", make_trace(0, world_size=1))
    script = (
        "import sys, time; from tracekit.cli import main; from tracekit.runs import execute\n"
        "execute._ingest_source = lambda *_: (print('go', flush=True), time.sleep(60))\n"
        "main(sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, "ingest", str(trace), "--run", str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)  # it ends in any case: its exit code says why
    assert "Traceback" not in errors
    assert process.returncode == 130, errors
    assert not (tmp_path / "run" / "manifests").exists()


def test_a_reader_that_leaves_early_is_no_error(run: Path) -> None:
    text = shlex.quote("SELECT * FROM range(100000)")
    command = (
        f"{shlex.quote(sys.executable)} -m tracekit sql {run} {text} --format csv | head -1; "
        'exit "${PIPESTATUS[0]}"'
    )
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "range\n", "")


# ---------------------------------------------------------------- stderr, quiet, colour


def test_quiet_leaves_only_data_and_errors(tracekit: Tracekit, slow: Path, run: Path) -> None:
    level = logging.getLogger("tracekit").level
    done = tracekit("-q", "ingest", slow, "--run", "r")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert tracekit("-q", "query", run, "step_time").err == ""
    assert tracekit("-q", "query", run, "nonsense").err.startswith("error: ")
    assert logging.getLogger("tracekit").level == level  # of that command, not of the process


def test_colour_only_on_a_terminal_that_wants_it(run: Path) -> None:
    def on_terminal(**env: str) -> str:
        ours, theirs = pty.openpty()
        process = start(
            "diagnose",
            run,
            "--select",
            "dataloader-stall",
            stdout=theirs,
            env={"TERM": "xterm", **env},
        )
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # how a terminal on Linux says that the other side is closed
                break
            if not part:
                break
            parts.append(part)
        os.close(ours)
        assert process.wait(timeout=60) == 0
        return b"".join(parts).decode()

    assert "\x1b[" in on_terminal()
    assert "\x1b[" not in on_terminal(NO_COLOR="1")
    assert "\x1b[" not in on_terminal(TERM="dumb")

"""A planted secret appears in no output, run, cache or error.

Names of annotations are stored by design (their sensitivity is "name"); everything else that a
stranger's file may hold is either on an allow-list or not kept.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tracekit import api
from tracekit.cli import main
from tracekit.errors import TracekitError
from traces import make_trace, write_trace

SECRET = "hunter2-7f3d9c"  # noqa: S105  # a marker, planted to be looked for
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TRACEKIT_DEBUG", raising=False)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two ranks whose files hold the secret wherever a user or an environment might put one."""
    folder = tmp_path / "job"
    document = make_trace(0, stall_ms=30)
    document |= {
        "user_note": f"token={SECRET}",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "PT_PROFILER_JOB_NAME": SECRET,
        "PT_PROFILER_JOB_ROW": {"HF_TOKEN": SECRET},
        "environment": {"WANDB_API_KEY": SECRET, SECRET: "1"},
        "traceName": f"/home/{SECRET}/trace.json",
        "INFO": [f"logged in as {SECRET}"],
    }
    document["distributedInfo"] |= {"master_addr": SECRET, "token": SECRET}
    document["deviceProperties"][0]["note"] = SECRET
    events = document["traceEvents"]
    for event in events:
        event["args"] |= {"payload": SECRET, "Concrete Inputs": [SECRET], "user": {"k": SECRET}}
    place = {"pid": 1000, "tid": 1000, "ts": 300, "dur": 5}
    for category in ("user_annotation", "cpu_op", "cuda_runtime", "kernel", "unheard_of"):
        args = {"secret": SECRET, "correlation": SECRET, "stream": SECRET, "dtype": SECRET}
        events.append({"ph": "X", "cat": category, "name": "harmless", **place, "args": args})
    events += [
        {"ph": "M", "name": "process_labels", "pid": 1000, "args": {"labels": SECRET}},
        {"ph": "M", "name": "thread_name", "pid": 1000, "tid": 1, "args": {"name": SECRET}},
        {"ph": "i", "name": "mark", "cat": "x", "ts": 1, "pid": 1, "tid": 1, "s": SECRET},
        {"ph": "C", "name": "counter", "ts": 1, "pid": 1, "args": {SECRET: 1}},
        {"ph": "X", "cat": "cpu_op", "name": "harmless", **place, "ts": SECRET},
        {"ph": SECRET, "cat": SECRET, "ts": SECRET, "dur": SECRET, "pid": SECRET},
        SECRET,
        [SECRET],
    ]
    write_trace(folder / "rank0.json.gz", document)
    text = json.dumps(make_trace(1, stall_ms=30)).encode()
    damage = (
        b'{"ph": "X", "cat": "cpu_op", "name": "' + SECRET.encode() + b'" "ts": 1 oops},'
        b'{"ph": "X", "cat": "' + SECRET.encode() + b"\xff\xfe" + b'", "name": ' + b"\xc3(,"
        b"inf " + SECRET.encode() + b" nan},"
    )
    marker = b'"traceEvents": ['
    at = text.index(marker) + len(marker)
    cut = text[:-2] + b', "late": "' + SECRET.encode()
    (folder / "rank1.json").write_bytes(cut[:at] + damage + cut[at:])
    (folder / "env.txt").write_text(f"export TOKEN={SECRET}\n")
    (folder / "config.json").write_text(json.dumps({"password": SECRET}))
    (folder / "broken.json.gz").write_bytes(gzip.compress(SECRET.encode() * 99)[:-9])
    (folder / "notes.json").write_bytes(b'{"traceEvents": "' + SECRET.encode() + b'"}')
    (folder / "data.pkl").write_bytes(b"\x80\x04" + SECRET.encode())
    return folder


def texts_of(folder: Path) -> dict[Path, str]:
    """Every file below, as text; Parquet files as their rows, for they are compressed."""
    found = {}
    for path in (p for p in folder.rglob("*") if p.is_file()):
        rows = repr(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else ""
        found[path] = rows + path.read_bytes().decode("latin-1")
    return found


def test_a_secret_appears_nowhere(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    run = tmp_path / "run"
    commands: list[list[object]] = [
        ["sources", job],
        ["sources", job, "--json"],
        ["ingest", job, "--run", run],
        ["-v", "diagnose", job, "--all"],
        ["diagnose", run, "--format", "json", "-o", outputs / "report.json"],
        ["diagnose", run, "--format", "markdown", "-o", outputs / "report.md"],
        ["show", run, "F1"],
        ["job", run],
        ["query", run, "input_issues"],
        ["query", run, "kernel_summary"],
        ["query", run, "no_such_query"],
        ["sql", run, "SELECT * FROM ingest_stat", "--format", "json"],
        ["sql", run, "SELECT * FROM source", "--format", "json"],
        ["sql", run, "SELECT CAST(name AS INTEGER) FROM annotation"],
        ["sql", run, "SELECT CAST(shape AS INTEGER) FROM ingest_stat"],
        ["cache"],
    ]
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main([str(c) for c in command])
        out, err = capsys.readouterr()
        assert SECRET not in out + err, command
        assert ended.value.code in (0, 2), (command, err)
    kept = texts_of(run) | texts_of(tmp_path / "cache") | texts_of(outputs)
    assert len(kept) > 20
    assert [str(path) for path, text in kept.items() if SECRET in text] == []


def test_what_was_damaged_is_counted_by_its_shape_only(job: Path) -> None:
    with api.open(job) as run:
        found = run.sql("SELECT status, path FROM source WHERE kind = 'kineto' ORDER BY path")
        stats = run.sql("SELECT counter, shape FROM ingest_stat").to_dicts()
    assert (
        dict(zip(found["path"], found["status"], strict=True)).get(str(job / "rank1.json"))
        == "partial"
    )
    shapes = [row["shape"] for row in stats if row["shape"]]
    assert shapes
    letters = set("".join(shapes)) - set("aA9")
    assert not {c for c in letters if c.isalnum()}, shapes


@pytest.mark.parametrize(
    "text",
    [
        f'api_key = "{SECRET}"\n',
        f'[model]\nlayers = "{SECRET}"\n',
        f'[parallelism]\ntp = 2\nsecret = "{SECRET}"\n',
        f'[schedule]\nkind = "{SECRET}"\n',
        f'[[rank]]\nrank = "{SECRET}"\n',
        f'name = "x"\nname = "{SECRET}"\n',
        f'name = "{SECRET}\n',
        f"name = {SECRET}\n",
    ],
)
def test_a_secret_in_a_wrong_job_description_is_not_quoted(
    text: str, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    description = tmp_path / "job.toml"
    description.write_text(text)
    with pytest.raises(TracekitError) as caught:
        api.open(job, job=[description])
    assert SECRET not in str(caught.value) + (caught.value.hint or "")
    with pytest.raises(SystemExit):
        main(["diagnose", str(job), "--job", str(description)])
    out, err = capsys.readouterr()
    assert SECRET not in out + err


def test_a_bug_of_ours_quotes_nothing_of_the_file(job: Path) -> None:
    """A real process, so that what an interpreter prints on its way out counts too."""
    script = (
        "import sys; from tracekit.cli import main; from tracekit import catalog\n"
        f"def fail(*_, **__): raise ValueError('cannot read {SECRET}')\n"
        "catalog.run = catalog.rows = fail; main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "diagnose", str(job)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 70
    assert SECRET not in done.stdout + done.stderr

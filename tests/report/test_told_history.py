"""What a report says of the job's history: a log alone, and a log beside traces."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import samples

from soaks import soak
from tracekit import api
from tracekit.report.history import _is_within

HEALTHY = Path(__file__).parents[2] / "fixtures" / "recorded" / "ddp-healthy"


def log_of(path: Path, durs_s: list[float], begin: datetime, zone: str = "") -> Path:
    lines = []
    moment = begin
    for step, dur_s in enumerate(durs_s, 1):
        moment += timedelta(seconds=dur_s)
        lines.append(
            f"{moment:%Y-%m-%dT%H:%M:%S.%f}{zone} completed step: {step}, seconds: {dur_s:.6f}, "
            "TFLOP/s/device: 100.0"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


BEGIN = datetime(2025, 1, 1, tzinfo=UTC)


def test_a_steady_log_alone_is_no_fault(tmp_path: Path) -> None:
    log = log_of(tmp_path / "train.log", [1.0, 1.02] * 500, BEGIN)
    document = api.open(log).diagnose().document
    assert document.verdict.kind == "not_enough_data"
    assert document.verdict.sentence.startswith(
        "Nothing stands out in the training log: 1,000 steps over 16.8 min, median 1.01 s"
    )


@pytest.mark.parametrize(
    ("durs_s", "is_uneven"),
    [
        ([0.15, 0.15, 67.6, 0.15, 3.0, 0.15, 15.2, 0.15, 0.15], True),
        ([60.0, *[1.0] * 20], False),  # the first step compiles
        ([1.0, 1.0, 60.0, *[1.0] * 18], False),
        ([*[1.0] * 6, 5.0, 9.0], False),  # of eight lines nothing is said
        ([*[1.0] * 16, *[9.0] * 4], True),
        ([*[1.0] * 16, *[5.0] * 4], False),
    ],
)
def test_time_that_few_steps_take_is_told(
    tmp_path: Path, durs_s: list[float], is_uneven: bool
) -> None:
    log = log_of(tmp_path / "train.log", durs_s, BEGIN)
    said = api.open(log).diagnose().document.verdict.sentence
    assert said.startswith("More than half of the time") == is_uneven
    assert ", mean " in said


@pytest.mark.parametrize("name", ["huggingface-trainer", "lightning"])
def test_a_bar_of_whole_seconds_tells_no_median_of_shorter_steps(name: str) -> None:
    log = HEALTHY.parents[1] / "logs" / f"{name}.log"
    said = api.open(log).diagnose().document.verdict.sentence
    assert ", most shorter than its clock can tell, mean " in said
    # Lightning's total is an epoch's, and no job's.
    assert (" steps of 150" in said) == (name == "huggingface-trainer")


@pytest.mark.parametrize(("step_s", "is_coarse"), [(1.5, True), (5.5, False)])
def test_a_median_of_steps_that_a_clock_of_whole_seconds_hardly_tells_is_not_said(
    tmp_path: Path, step_s: float, is_coarse: bool
) -> None:
    def drawn(step: int) -> str:
        past, left = int(step * step_s), int((200 - step) * step_s)
        times = f"{past // 60:02}:{past % 60:02}<{left // 60:02}:{left % 60:02}"
        return f"{step / 2:3.0f}%|##        | {step}/200 [{times},  {step_s:.2f}s/it]"

    log = tmp_path / "train.log"
    log.write_text("\r".join(map(drawn, range(1, 201))))
    said = api.open(log).diagnose().document.verdict.sentence
    assert (f"mean {step_s:.2f} s, by a clock of whole seconds" in said) == is_coarse
    assert ("median" in said) != is_coarse


def test_an_exception_behind_which_the_steps_go_on_is_no_failure(tmp_path: Path) -> None:
    log = log_of(tmp_path / "train.log", [1.0, 1.02] * 50, BEGIN)
    lines = log.read_text().splitlines()
    caught = """Traceback (most recent call last):
  File "/opt/train/metrics.py", line 88, in push
    post(url)
requests.exceptions.ConnectionError: no answer""".splitlines()
    for at, is_failure in ((0, False), (50, False), (99, True), (100, True)):
        log.write_text("\n".join([*lines[:at], *caught, *lines[at:], ""]))
        findings = api.open(log).diagnose().document.findings
        assert [f.rule for f in findings] == ["first-failure"] * is_failure, at


def test_a_stall_is_the_verdict_of_a_log_alone(tmp_path: Path) -> None:
    durs = [1.0, 1.02] * 500
    durs[599] = 2400.0
    log = log_of(tmp_path / "train.log", durs, BEGIN, "Z")
    report = api.open(log).diagnose()
    document = report.document
    assert document.verdict.kind == "unexplained"
    assert document.verdict.sentence.startswith(
        "The job stalled for 40 min at step 600 (2025-01-01 00:10:04 UTC)."
    )
    told = report.notes.next_step or ""
    assert " slow_episode;" in told
    assert "RUN" not in told  # the command is about this file


def test_where_a_failure_is_the_verdict_the_head_tells_what_stands_out_in_the_job(
    tmp_path: Path,
) -> None:
    durs = [1.0, 1.02] * 500
    durs[599] = 2400.0
    log = log_of(tmp_path / "train.log", durs, BEGIN)
    with log.open("a") as file:
        file.write("Traceback (most recent call last):\n" '  File "/t.py", line 8, in step\n'
                   "ValueError: no\n")  # fmt: skip
    report = api.open(log).diagnose()
    assert report.document.findings[0].id == report.document.verdict.finding
    assert report.document.findings[0].rule == "first-failure"
    steps, episodes, *_ = report.notes.data_lines
    assert steps.startswith("training log: 1,000 steps over")
    assert episodes == "in the job: the job stalled for 40 min at step 600 (2025-01-01 00:10:04)"


def test_a_job_that_is_slower_for_most_of_its_time_says_since_when(tmp_path: Path) -> None:
    durs = [1.0, 1.02] * 250 + [1.3, 1.32] * 1000
    log = log_of(tmp_path / "train.log", durs, BEGIN, "Z")
    assert (
        api.open(log)
        .diagnose()
        .document.verdict.sentence.startswith(
            "From step 501 on (2025-01-01 00:08:25 UTC) steps take 30 % longer than before "
            "(1.31 s against 1.01 s)."
        )
    )


def test_a_job_that_became_faster_for_the_rest_is_told_what_was_slow(tmp_path: Path) -> None:
    log = log_of(tmp_path / "train.log", [1.3, 1.32] * 250 + [1.0, 1.02] * 1000, BEGIN)
    told = api.open(log).diagnose().document.verdict.sentence
    assert told.startswith("Steps 3 to 500 ") and "on steps take" not in told


@pytest.mark.parametrize(("share", "kind"), [(0.009, "not_enough_data"), (0.02, "unexplained")])
def test_what_returns_must_cost_a_share_of_the_job(tmp_path: Path, share: float, kind: str) -> None:
    durs = [1.0, 1.02] * 1000
    for index in range(99, 2000, 100):
        durs[index] += 100 * share
    log = log_of(tmp_path / "train.log", durs, BEGIN)
    assert api.open(log).diagnose().document.verdict.kind == kind


@pytest.mark.parametrize(("epoch_steps", "is_said"), [(250, True), (230, False)])
def test_stalls_at_the_end_of_each_epoch_are_called_so(
    tmp_path: Path, epoch_steps: int, is_said: bool
) -> None:
    """Of steps that are counted on over the job."""
    lines = []
    moment = BEGIN
    for step in range(3000):
        moment += timedelta(seconds=40 if step % 250 == 0 and step else 1)
        lines.append(f"{moment:%F %T} [INFO] epoch={step // epoch_steps} step={step} loss=2.5")
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    document = api.open(tmp_path).diagnose().document
    said = document.verdict.sentence
    assert said.startswith("Every 250 steps")
    assert ("at the end of each epoch" in said) == is_said
    assert ("at the end of each epoch" in document.findings[0].summary) == is_said


def test_beside_traces_the_log_says_where_in_the_job_they_lie(tmp_path: Path) -> None:
    ((start_ns, end_ns),) = samples.opened(HEALTHY).sql("SELECT start_ns, end_ns FROM run").rows()
    before = 400
    begin = datetime.fromtimestamp(start_ns / 1e9, UTC) - timedelta(seconds=before * 1.1)
    inside = int((end_ns - start_ns) / 1e9) + 1
    durs = [1.1] * before + [1.0] * inside + [1.1] * 500
    log = log_of(tmp_path / "train.log", durs, begin, "Z")
    report = api.open([HEALTHY, log]).diagnose()
    told = "   ".join(report.notes.data_lines)
    assert f"training log: {len(durs):,} steps over" in told
    assert "of that log, 9.1 % faster than the job's median: the slow part was not" in told
    first = int(told.partition("profiled: steps ")[2].partition("-")[0])
    assert first == pytest.approx(before + 1, abs=1)
    with samples.opened(HEALTHY) as run:
        alone = run.diagnose()
    # One more rule could look, at what ended the job: the count in the sentence is another.
    assert alone.document.verdict.kind == report.document.verdict.kind == "inherent"
    assert not report.document.findings
    assert "training log" not in "   ".join(alone.notes.data_lines)


@pytest.mark.parametrize(("first_slow", "says"), [(100, "so the traces cannot say why"), (395, "")])
def test_beside_traces_what_stands_out_in_the_job_is_told_and_whether_it_was_profiled(
    tmp_path: Path, first_slow: int, says: str
) -> None:
    ((start_ns, end_ns),) = samples.opened(HEALTHY).sql("SELECT start_ns, end_ns FROM run").rows()
    inside = int((end_ns - start_ns) / 1e9) + 1
    durs = [1.0] * (900 + inside)
    durs[first_slow : first_slow + 150 + inside] = [1.3] * (150 + inside)
    begin = datetime.fromtimestamp(start_ns / 1e9, UTC) - timedelta(seconds=sum(durs[:400]))
    log = log_of(tmp_path / "train.log", durs, begin, "Z")
    told = "   ".join(api.open([HEALTHY, log]).diagnose().notes.data_lines)
    assert f"in the job: steps {first_slow + 1:,} to " in told
    assert "30 % longer than usual" in told
    assert ("cannot say why" in told) == bool(says)


@pytest.mark.parametrize(
    ("row", "is_within"),
    [
        ({"kind": "stall", "first_step": 55, "last_step": 55}, True),
        ({"kind": "stall", "first_step": 61, "last_step": 61}, False),
        ({"kind": "slow", "first_step": 1, "last_step": 50}, True),
        ({"kind": "restart", "first_step": 50, "last_step": 60}, False),
        ({"kind": "periodic", "first_step": 5, "last_step": 905, "period_count": 50}, True),
        ({"kind": "periodic", "first_step": 45, "last_step": 945, "period_count": 50}, False),
        ({"kind": "periodic", "first_step": 105, "last_step": 905, "period_count": 50}, False),
    ],
)
def test_which_episodes_have_profiled_steps(row: dict[str, Any], is_within: bool) -> None:
    assert _is_within({"first_step": 50, "last_step": 60}, row) == is_within


def test_a_log_whose_steps_nobody_knows_says_how_to_name_them(tmp_path: Path) -> None:
    """Alone only: beside what was read, a file named .log is no complaint."""
    log = tmp_path / "train.log"
    log.write_text("".join(f"iter: [{k}/500], time: 1.5 (1.5)\n" for k in range(50)))
    hint = "no line of train.log is known as a step's: how its steps read, job.toml may say"
    report = api.open(log).diagnose()
    assert report.document.verdict.kind == "not_enough_data"
    assert hint in "   ".join(report.notes.data_lines)
    other = log_of(tmp_path / "rank0.log", [1.0] * 50, BEGIN)
    assert hint not in "   ".join(api.open([other, log]).diagnose().notes.data_lines)


def test_metrics_without_a_bar_say_that_they_name_no_step(tmp_path: Path) -> None:
    """As Hugging Face's Trainer prints them with disable_tqdm."""
    log = tmp_path / "train.log"
    log.write_text(
        "".join(
            f"{{'loss': {5 - n / 10}, 'grad_norm': 1.3, 'learning_rate': 4e-05, 'epoch': 1}}\n"
            for n in range(30)
        )
    )
    told = "   ".join(api.open(log).diagnose().notes.data_lines)
    assert "its dictionaries of metrics name neither a step nor a time" in told
    assert "step_pattern" not in told


def _vmstat(path: Path, until: datetime, waiting: range) -> None:
    """Of every half minute; tasks wait for storage in the ``waiting`` ones."""
    rows = [
        "procs ---memory--- ---swap-- -----io---- -system-- ------cpu----- -----timestamp-----",
        " r  b swpd free buff cache si so bi bo in cs us sy id wa st                 UTC",
    ]
    for minute in range(1, int((until - BEGIN).total_seconds()) // 30):
        moment, wait = BEGIN + timedelta(seconds=30 * minute), 40 if minute in waiting else 1
        rows.append(
            f" 9 {wait // 2} 0 90 12 98 0 0 450 12 340 510 20 3 {77 - wait} {wait} 0 "
            f"{moment:%Y-%m-%d %H:%M:%S}"
        )
    path.write_text("\n".join(rows) + "\n")


def _nfsiostat(path: Path, until: datetime, waiting: range) -> None:
    text = ""
    for minute in range(1, int((until - BEGIN).total_seconds()) // 30):
        moment = BEGIN + timedelta(seconds=30 * minute)
        rate, ms = (6.5, 1500.0) if minute in waiting else (60.0, 2.5)
        text += (
            f"{moment:%a %b %d %H:%M:%S UTC %Y}\n\nfiler:/data mounted on /data:\n\n"
            f"           ops/s       rpc bklog\n       {rate + 1:.3f}           0.000\n\n"
            "read:              ops/s            kB/s           kB/op         retrans    "
            "avg RTT (ms)    avg exe (ms)  avg queue (ms)          errors\n"
            f"         {rate:.3f}        {rate * 1024:.3f}        1024.000        0 (0.0%)       "
            f"{ms:.3f}       {ms:.3f}       0.000        0 (0.0%)\n\n"
        )
    path.write_text(text)


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (_vmstat, "waited for storage for 40 % of all CPUs' time, at other times 1"),
        (_nfsiostat, "reads of /data (nfs) on the machine of"),
    ],
)
@pytest.mark.parametrize("is_hit", [True, False])
def test_a_slow_stretch_beside_storage_that_is_slow_then_and_at_no_other_time(
    tmp_path: Path, write: Any, says: str, *, is_hit: bool
) -> None:
    durs_s = [2.0, 2.02] * 450 + [3.0, 3.2] * 150 + [2.0, 2.02] * 450
    log_of(tmp_path / "train.log", durs_s, BEGIN, "Z")
    slow = range(60, 92)  # 900 steps of 2 s take half an hour
    write(
        tmp_path / "host.txt", BEGIN + timedelta(seconds=sum(durs_s)), slow if is_hit else slow[:2]
    )
    document = api.open(tmp_path).diagnose().document
    found = [f.rule for f in document.findings if f.rule == "slow-storage"]
    assert found == (["slow-storage"] if is_hit else [])
    if is_hit:
        assert "In steps 901 to 1,200 of the log the job loses" in document.verdict.sentence
        assert says in document.verdict.sentence


@pytest.mark.parametrize(
    ("hours", "is_found"), soak([(0, True), (-0.3, False), (0.2, True), (9, False)], fast=1)
)
def test_a_log_without_a_zone_is_taken_as_utc_where_it_falls_among_the_counters(
    tmp_path: Path, hours: float, *, is_found: bool
) -> None:
    """Of 76 minutes, four fifths must be common to both."""
    durs_s = [2.0, 2.02] * 450 + [3.0, 3.2] * 150 + [2.0, 2.02] * 450
    log_of(tmp_path / "train.log", durs_s, BEGIN + timedelta(hours=hours))
    _nfsiostat(tmp_path / "host.txt", BEGIN + timedelta(seconds=sum(durs_s)), range(60, 92))
    report = api.open(tmp_path).diagnose()
    shown = " ".join(report.to_text().split())
    assert ("taken as UTC" in shown) is is_found
    assert ("nothing of it is set beside the job" in shown) is not is_found
    found = {f.rule for f in report.document.findings}
    assert ("slow-storage" in found) is (hours == 0)
    (tmp_path / "job.toml").write_text('[[source]]\npath = "train.log"\ntimezone = "UTC"\n')
    assert "without a zone" not in api.open(tmp_path).diagnose().to_text()


@pytest.mark.parametrize("minutes", [0, 40])
def test_a_process_that_the_kernel_killed_at_the_last_step_is_why_others_wait(
    tmp_path: Path, minutes: int
) -> None:
    log = log_of(tmp_path / "rank0.log", [3.0, 3.02] * 400, BEGIN, "Z")
    last = BEGIN + timedelta(seconds=2408)
    with log.open("a") as file:
        file.write("[rank0]:[E] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL("
                   "SeqNum=88, OpType=ALLREDUCE, NumelIn=100, NumelOut=100, Timeout(ms)=600000) "
                   "ran for 600012 milliseconds before timing out.\n")  # fmt: skip
    at = f"{last - timedelta(minutes=minutes):%Y-%m-%dT%H:%M:%SZ}"
    killed = {
        "kind": "Event", "reason": "OOMKilling", "firstTimestamp": at, "lastTimestamp": at,
        "message": "Memory cgroup out of memory: Killed process 4121 (python)",
        "involvedObject": {"kind": "Node", "name": "gpu-7"},
    }  # fmt: skip
    events = {"apiVersion": "v1", "kind": "List", "items": [killed]}
    (tmp_path / "events.json").write_text(json.dumps(events))
    document = api.open(tmp_path).diagnose().document
    by_rule = {f.rule: f for f in document.findings}
    is_why = minutes == 0
    assert bool(by_rule["collective-hang"].explained_by) is is_why
    assert document.verdict.sentence.startswith("The kernel of gpu-7 reports") is is_why


def test_a_job_that_was_ended_after_an_hour_without_a_line_stood_still(tmp_path: Path) -> None:
    log = log_of(tmp_path / "slurm-7.out", [1.0, 1.02] * 500, BEGIN)
    at = BEGIN + timedelta(seconds=1010 + 3600)
    with log.open("a") as file:
        file.write(f"slurmstepd: error: *** JOB 7 ON h1 CANCELLED AT {at:%Y-%m-%dT%H:%M:%S} DUE TO "
                   "TIME LIMIT ***\n")  # fmt: skip
    document = api.open(log).diagnose().document
    assert document.verdict.sentence == (
        "The job's scheduler says that its time limit was reached. Behind step 1,000 no line was "
        "printed for 60 min (a step usually takes 1.01 s): it stood still."
    )
    assert document.findings[0].severity == "major"

"""What counters can say of steps on whole jobs: coarse readings, and real ones with a known clock.

The lab's jobs and their switch were recorded by one machine, so their clocks agree: an offset that
was named would be wrong.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest

import tracekit
from soaks import soak
from tracekit.simulate import Request, write

LAB = Path(__file__).resolve().parents[2] / "shared/data/lab"
NANOGPT = LAB.parent / "counters/nvidia_smi/nanogpt_pr643_gpu_metrics.csv"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.slow
def test_readings_too_far_apart_are_judged_by_stretches_of_steps(tmp_path: Path) -> None:
    """Steps of 0.32 s read every 0.4 s: no step is judged, stretches of three are."""
    request = Request("packet-loss", 2, 0, "ddp", 120, nccl="none", counters="net", interval_s=0.4)
    write(request, tmp_path / "job")
    (tmp_path / "job/truth.json").unlink()
    for path in (tmp_path / "job").rglob("spine*"):
        path.unlink()  # nothing is lost there, and there are more of them than leaves
    with tracekit.open([tmp_path / "job"]) as run:
        rows = run.query("network_correlation").to_dicts()
        (summary,) = [r for r in run.query("step_time_summary").to_dicts() if r["rank"] is None]
    assert rows
    for row in rows:
        least = math.ceil(2 * row["interval_ns"] / summary["p50_ns"])
        assert abs(row["steps_together"] - least) <= 1  # the median of other steps
        assert row["steps_together"] >= 3
        assert row["windows_count"] <= row["steps_count"] // row["steps_together"]
    lost = [r for r in rows if r["counter"] == "tx_dropped_packets"]
    assert [r["port"] for r in lost if r["verdict"] == "cause"] == ["Ethernet0"]
    for row in lost:
        # Ports that lead to nobody of the job drop too, and are no cause.
        assert row["is_on_path"] is (row["port"] == "Ethernet0")
        assert row["is_on_path"] or row["verdict"] in ("none", "not_testable")


@pytest.mark.parametrize(
    "name",
    soak(
        ["ddp-badlink-host1", "ddp-healthy", "fsdp-healthy", "moe-healthy", "moe-hot-expert-rank1"],
        fast=["ddp-badlink-host1", "fsdp-healthy"],
    ),
)
def test_no_recorded_job_is_given_a_wrong_clock(tmp_path: Path, name: str) -> None:
    """As recorded the clocks agree; with the switch's moved by 20 s they differ by 20 s."""
    if not (LAB / name).exists():
        pytest.skip("the lab's jobs are not here (../shared/data/lab)")
    for file in (LAB / name).iterdir():
        if file.name != "switch.jsonl.gz":
            (tmp_path / file.name).symlink_to(file)
    with gzip.open(LAB / name / "switch.jsonl.gz", "rt") as lines:
        moved = [json.loads(line) for line in lines]
    text = "".join(json.dumps({**one, "ts": one["ts"] + 20}) + "\n" for one in moved)
    (tmp_path / "switch.jsonl").write_text(text)
    with tracekit.open([tmp_path]) as run:
        (row,) = run.query("counter_clocks").to_dicts()
    if row["offset_ns"] is not None:
        assert abs(row["offset_ns"] - 20e9) <= row["error_ns"]
    else:
        assert row["verdict"] == "unknown"


def test_the_recorded_training_run_shows_no_step_that_it_may_not_have() -> None:
    """Nobody marked its steps; read every 0.24 s, it shows no period."""
    if not NANOGPT.exists():
        pytest.skip("the recorded CSV is not here (../shared/data/counters)")
    with tracekit.open([NANOGPT]) as run:
        (row,) = run.query("activity_steps").to_dicts()
    assert row["verdict"] == "none"
    assert "0.238 s" in row["reason"]

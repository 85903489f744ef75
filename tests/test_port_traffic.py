"""What hosts' NICs carry beside what the layout needs: described, and of simulated jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import telemetry

from soaks import soak
from tracekit import api
from tracekit.job import JobDescription, parse_job
from tracekit.port_traffic import NO_LAYOUT, NO_PLACES, across_ports
from tracekit.report.port_lines import port_lines
from tracekit.rules.base import Facts
from tracekit.simulate import Request, write

HEADERS_RATIO = 1.02
"""What the simulator's wire has over the messages' bytes."""
READ_OFF_RATIO = 0.03
"""What readings a step or two apart miss of a few steps."""
JOB = """
world_size = 16
[parallelism]
dp = 16
zero_stage = 0
[model]
parameters = 1000000
dtype = "bfloat16"
[hardware]
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))


def description(hardware: str = "", text: str = JOB) -> JobDescription:
    return parse_job((text + hardware).encode(), "/data/job.toml")


def row(**more: Any) -> dict[str, Any]:
    return {"host": "h0", "family": "mlx", "direction": "sent", "ports_count": 2, "ranks": None,
            "host_bytes_per_step": 7.5e6, "observed_ratio": None, **more}  # fmt: skip


def test_the_ports_of_a_host_share_what_crosses_it() -> None:
    (told,) = across_ports([row(ranks=[0, 1, 2, 3])], description())
    assert told["expected_host_bytes"] == 3.75e6  # 2 x 15/16 of 2e6 bytes
    assert told["expected_bytes"] == 3.75e6 / 2
    assert told["observed_ratio"] == 2
    assert told["basis"] == "dp all_reduce across hosts; its ranks are known"


def test_hosts_of_unknown_ranks_are_blocks_of_neighbours() -> None:
    (told,) = across_ports([row()], description("gpus_per_node = 8"))
    assert told["expected_host_bytes"] == 3.75e6
    assert "the mean of 2 hosts of 8 neighbouring ranks" in told["basis"]


def test_a_part_of_the_nics_is_not_the_host() -> None:
    (told,) = across_ports([row(ranks=[0])], description("nics_per_node = 8"))
    assert told["expected_bytes"] == 3.75e6 / 8
    assert told["observed_ratio"] is None
    assert told["basis"].endswith("2 of 8 NICs were read")


@pytest.mark.parametrize(
    ("job", "lacks"),
    [
        (None, NO_LAYOUT),
        (description(text="world_size = 16\n"), NO_LAYOUT),
        (description(), NO_PLACES),
        (
            description("gpus_per_node = 8", JOB.replace("parameters = 1000000", "")),
            "bytes of dp all_reduce are not known: job.toml lacks ",
        ),
    ],
)
def test_what_an_expectation_lacks_is_said(job: JobDescription | None, lacks: str) -> None:
    (told,) = across_ports([row()], job)
    assert told["basis"].startswith(lacks)
    assert "expected_host_bytes" not in told


def line(*rows: dict[str, Any]) -> list[str]:
    return port_lines(Facts(rows={"port_traffic": list(rows)}))


def test_the_report_tells_hosts_by_their_largest_ports_and_silence_without_them() -> None:
    known = {"observed_ratio": 1.0, "expected_least_bytes": 2e9, "expected_host_bytes": 4e9,
             "basis": "dp all_reduce across hosts"}  # fmt: skip
    (told,) = line(
        row(host_bytes_per_step=4.1e9, **known),
        row(host_bytes_per_step=3.9e9, direction="received", **known),
        row(host_bytes_per_step=3e9, host="h1", **known),
        row(host_bytes_per_step=9e9, host="h1", family="switch", basis="1 of 8 NICs were read"),
    )
    assert told == (
        "NICs of 2 hosts carry 3 to 4.1 GB a step, the way that has more; the layout needs 2 to 4 "
        "GB: dp all_reduce across hosts"
    )
    (told,) = line(row(host_bytes_per_step=3e9, basis=NO_PLACES))
    assert told.endswith(f"3 GB a step, the way that has more; what the layout needs is not known: "
                         f"{NO_PLACES}")  # fmt: skip
    assert line() == line(row(host_bytes_per_step=None)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "is_exact"),
    soak(
        [("pp2-tp4", True), ("tp8", True), ("pp4-vpp2-m8", True), ("fsdp", False),
         ("ep16", False), ("cp16", False)],
        fast=[("pp2-tp4", True)],
    ),
)  # fmt: skip
def test_the_simulator_sends_what_the_layout_needs(
    layout: str, is_exact: bool, tmp_path: Path
) -> None:
    """Judged by a program that shares no formula: exactly where rings and trees are the same."""
    folder = tmp_path / "job"
    write(
        Request(ranks=16, seed=9241, layout=layout, steps_count=6, decoys=(), nccl="none",
                counters="net", interval_s=10.0), folder)  # fmt: skip
    with api.open(folder, workers=1) as run:
        rows = run.query("port_traffic").to_dicts()
    assert {r["family"] for r in rows} == {"eth", "mlx", "switch"}
    assert {r["host"] for r in rows} == {"gpu-00", "gpu-01"}
    for told in rows:
        messages = told["host_bytes_per_step"] / HEADERS_RATIO
        expected, least = told["expected_host_bytes"], told["expected_least_bytes"]
        if is_exact:
            assert messages == pytest.approx(expected, rel=READ_OFF_RATIO)
        assert least * (1 - READ_OFF_RATIO) < messages < expected * (1 + READ_OFF_RATIO)


def test_counters_alone_and_a_layout_are_enough(tmp_path: Path) -> None:
    """Steps are those of the counters, hosts what has GPUs, ranks blocks of neighbours."""
    folder = tmp_path / "job"
    folder.mkdir()
    truth = telemetry.make("dp", folder, 9251, gpus=2, ports=2, span_s=90, step_s=1.5)
    (folder / "job.toml").write_text(
        "world_size = 4\n[parallelism]\ndp = 4\nzero_stage = 0\n[model]\nparameters = 4000000000\n"
        'dtype = "bfloat16"\n[hardware]\ngpus_per_node = 2\nnics_per_node = 2\n'
    )
    with api.open(folder, workers=1) as run:
        rows = run.query("port_traffic").to_dicts()
        said = [n for n in run.diagnose(select=["nic-error"]).notes.data_lines if "NICs of" in n]
    assert len(said) == 1 and "the layout needs 8 to 12 GB" in said[0]
    assert {(r["host"], r["family"], r["ports_count"]) for r in rows} == {
        ("node0", "ib", 2), ("node1", "ib", 2)
    }  # fmt: skip
    # A port is busy with 0.6 of its rate for 0.34 of a step; so long is its mean.
    sent = 2 * 0.34 * 0.6 * telemetry.PORT * truth.periods_s[0]
    for told in rows:
        assert told["step_ns"] == pytest.approx(1e9 * truth.periods_s[0], rel=0.02)
        assert told["host_bytes_per_step"] == pytest.approx(sent, rel=0.05)
        assert told["observed_ratio"] == pytest.approx(sent / (1.5 * 8e9), rel=0.05)

"""Traces and counters of one job, from files to report: one cause, one finding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracekit
from tracekit.cli import main
from tracekit.report import Report

START_NS = 1_784_601_666 * 10**9
"""The simulated job begins at 2026-07-21 02:41:06 UTC."""


@pytest.fixture(scope="module")
def slow_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of 8 ranks on 8 hosts in which rank 1 computes slowly."""
    folder = tmp_path_factory.mktemp("sim") / "job"
    with pytest.raises(SystemExit) as done:
        main(["simulate", "slow-gpu", "--steps", "5", "--counters", "none", "-o", str(folder)])
    assert done.value.code == 0
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))


def scrapes(
    hot: str | None = "trainer-1", reason: int = 0x40, lead_s: int = 0, index: int = 0
) -> str:
    """Timestamped scrapes, one a second for half a minute, of one GPU a host."""
    lines = []
    for second in range(-15, 16):
        time_ms = (START_NS // 10**9 + second + lead_s) * 1000
        for rank in range(8):
            host = f"trainer-{rank}"
            is_hot = host == hot
            for name, value in (
                ("DEV_SM_CLOCK", 1300 if is_hot else 1980),
                ("DEV_GPU_TEMP", 90 if is_hot else 60),
                ("DEV_CLOCK_THROTTLE_REASONS", reason if is_hot else 4),
                ("DEV_GPU_UTIL", 99),
            ):
                lines.append(
                    f'DCGM_FI_{name}{{gpu="{index}",UUID="GPU-{rank}",Hostname="{host}.cluster",'
                    f'modelName="NVIDIA H100"}} {value} {time_ms}'
                )
    return "\n".join(lines) + "\n"


def diagnosed(job: Path, tmp_path: Path, text: str) -> Report:
    counters = tmp_path / "dcgm.prom"
    counters.write_text(text)
    traces = sorted(job.glob("*.json.gz"))
    with tracekit.open([*traces, counters]) as run:
        return run.diagnose()


def test_a_slow_rank_whose_gpu_is_hot_is_a_thermal_problem(slow_gpu: Path, tmp_path: Path) -> None:
    report = diagnosed(slow_gpu, tmp_path, scrapes())
    rules = {f.rule: f for f in report.findings}
    assert "slow-gpu" not in rules
    hot = rules["thermal-throttle"]
    assert report.verdict.finding == hot.id == "thermal-throttle/1"
    assert hot.scope.ranks == (1,)
    assert hot.scope.devices == ("GPU-1",)
    assert hot.scope.identity_source == "behaviour"  # no file says that this GPU is rank 1's
    assert hot.confidence.level == "likely"
    assert hot.severity.value == "critical"  # 30 of 135 ms, as the twin says
    assert "1300 MHz against 1980" in hot.summary
    assert rules["late-rank"].explained_by == (hot.id,)


@pytest.mark.slow  # rows of it: tests/rules/test_power_cap.py
def test_a_power_cap_on_a_gpu_as_fast_as_the_others_is_no_reason(
    slow_gpu: Path, tmp_path: Path
) -> None:
    report = diagnosed(slow_gpu, tmp_path, scrapes(hot=None))
    assert report.verdict.finding == "slow-gpu/1"
    assert not [f for f in report.findings if f.rule in ("thermal-throttle", "power-brake")]


@pytest.mark.slow  # rows of it: tests/rules
def test_counters_of_another_day_say_nothing_of_this_job(slow_gpu: Path, tmp_path: Path) -> None:
    report = diagnosed(slow_gpu, tmp_path, scrapes(lead_s=86_400))
    assert report.verdict.finding == "slow-gpu/1"
    assert not [f for f in report.findings if f.rule == "thermal-throttle"]


@pytest.mark.slow  # rows of it: tests/rules
def test_a_hot_gpu_elsewhere_is_not_the_slow_rank_s(slow_gpu: Path, tmp_path: Path) -> None:
    report = diagnosed(slow_gpu, tmp_path, scrapes(hot="trainer-5"))
    rules = {f.rule: f for f in report.findings}
    assert report.verdict.finding == "slow-gpu/1"
    assert rules["thermal-throttle"].scope.hosts == ("trainer-5",)
    assert rules["thermal-throttle"].impact.s_per_step is None


def test_the_job_description_says_whose_gpu_it_is(slow_gpu: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('[[rank]]\nrank = 1\ndevice = "GPU-1"\n')
    counters = tmp_path / "dcgm.prom"
    counters.write_text(scrapes())
    with tracekit.open([*sorted(slow_gpu.glob("*.json.gz")), counters], job=[job]) as run:
        (finding,) = run.diagnose(select=["thermal-throttle"]).findings
    assert finding.scope.ranks == (1,)
    assert finding.scope.identity_source == "job_toml"


def nccl_log() -> str:
    return "".join(
        f"trainer-{r}:{900 + r}:{950 + r} [0] NCCL INFO ncclCommInitRankConfig comm 0x55b6aa640{r} "
        f"rank {r} nranks 8 cudaDev 0 nvmlDev 0 busId 1a000 commId 0x54fe282d32a87d85 - Init "
        "COMPLETE\n"
        for r in range(8)
    )


def test_without_traces_the_hot_gpu_has_the_rank_that_nccl_logged(tmp_path: Path) -> None:
    (tmp_path / "nccl.log").write_text(nccl_log())
    addressed = scrapes().replace("UUID=", 'pci_bus_id="00000000:1A:00.0",UUID=')
    (tmp_path / "dcgm.prom").write_text(addressed)
    with tracekit.open([tmp_path / "nccl.log", tmp_path / "dcgm.prom"]) as run:
        report = run.diagnose()
        (row,) = run.sql("SELECT rank, rank_source FROM gpu WHERE uuid = 'GPU-1'").rows()
    assert row == (1, "log")
    assert report.verdict.finding == "thermal-throttle/1"
    finding = next(f for f in report.findings if f.rule == "thermal-throttle")
    assert (finding.scope.ranks, finding.scope.hosts) == ((1,), ("trainer-1",))


def test_healthy_counters_alone_say_what_they_cannot_show(tmp_path: Path) -> None:
    (tmp_path / "dcgm.prom").write_text(scrapes(hot=None))
    with tracekit.open([tmp_path / "dcgm.prom"]) as run:
        report = run.diagnose()
    assert (report.findings, report.verdict.kind) == ((), "not_enough_data")
    assert "there are only counters, which show no steps" in report.verdict.sentence


LINK = {
    "ifname": "swp1", "operstate": "UP",
    "stats64": {"rx": {"bytes": 5, "packets": 1}, "tx": {"bytes": 9, "packets": 2, "dropped": 7}},
}  # fmt: skip


SONIC = Path(__file__).resolve().parents[2] / "shared" / "data" / "counters" / "sonic"


@pytest.mark.skipif(not SONIC.is_dir(), reason="the shared samples are not here")
def test_levels_read_often_do_not_hide_that_counters_were_read_once() -> None:
    """One dump has levels of many moments, while the rules say that counters hold one reading."""
    with tracekit.open([SONIC]) as run:
        report = run.diagnose()
    assert "there are only counters, each read once" in report.verdict.sentence
    needs = [n["needs"] for n in json.loads(report.to_json())["not_checked"]]
    assert any("those given hold one reading" in need for need in needs)


def test_counters_read_once_are_not_called_healthy(tmp_path: Path) -> None:
    """A dump of a switch that has dropped packets: since when, and for whom, it does not say."""
    (tmp_path / "links.json").write_text(json.dumps([LINK]))
    with tracekit.open([tmp_path / "links.json"]) as run:
        report = run.diagnose()
    assert (report.findings, report.verdict.kind) == ((), "not_enough_data")
    assert "there are only counters, each read once" in report.verdict.sentence
    assert "no fault" not in report.verdict.sentence
    listed = json.loads(report.to_json())["not_checked"]
    needs = {n["rule"]: n["needs"] for n in listed}
    assert "those given hold one reading" in needs["packet-loss"]
    assert "those given hold one reading" in needs["link-degraded"]


def test_an_answer_without_numbers_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "pfc.txt").write_text(
        "admin@leaf01:~$ show pfcwd config\nPFC is not enabled on port\n"
    )
    with tracekit.open([tmp_path / "pfc.txt"]) as run:
        report = run.diagnose()
    assert any("without numbers" in n and "not enabled" in n for n in report.notes.data_lines)


UFM = """\
timestamp,node_guid,port_num,node_description,PortXmitDataExtended,PortXmitDiscardsExtended
1795227155000000,0xb0,1,MF0;leaf01:MQM9700/U1,1000000000,0
1795227185000000,0xb0,1,MF0;leaf01:MQM9700/U1,2000000000,5000
"""


def test_what_rests_on_documentation_is_a_note_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "ufm.csv").write_text(UFM)
    port = '[[port]]\nnode = "leaf01"\nport = "1"\nhost = "gpu-11"\nrank = 0\n'
    (tmp_path / "job.toml").write_text(port)
    with tracekit.open([tmp_path]) as run:
        report = run.diagnose()
    (finding,) = report.findings
    assert (finding.rule, finding.severity.value) == ("packet-loss", "note")
    assert finding.counter_evidence
    assert "found nothing above a note" in report.verdict.sentence


def sends_over(devices: tuple[int, ...], host: str, size: int) -> str:
    """Ranks of one host, a GPU each, that send to another host over these NICs."""
    lines = []
    nics = " ".join(f"[{n}]mlx5_{n}:1/IB" for n in range(4))
    for rank, device in enumerate(devices):
        head = f"{host}:{100 + rank}:{100 + rank} [{rank}] NCCL INFO"
        comm = (
            f"comm 0x7f{rank}0 rank {rank} nranks {size} cudaDev {rank} nvmlDev {rank} "
            f"busId {0x17 + rank:x}000 commId 0xaa"
        )
        lines += [
            f"{head} NCCL version 2.27.5+cuda12.4",
            f"{head} NET/IB : Using {nics} [RO]; OOB eth0:10.0.0.1<0>",
            f"{head} {comm} - Init START",
            f"{head} comm 0x7f{rank}0 rank {rank} nRanks {size} nNodes 2 localRanks 4 "
            f"localRank {rank} MNNVL 0",
            f"{head} Channel 00/0 : {rank}[{rank}] -> {rank + 4}[{rank}] [send] via NET/IB/"
            f"{device}/GDRDMA",
            f"{head} {comm} - Init COMPLETE",
        ]
    return "\n".join(lines) + "\n"


def matrix() -> str:
    """Four GPUs, each with a NIC of its own behind one switch."""
    names = [*(f"GPU{n}" for n in range(4)), *(f"NIC{n}" for n in range(4))]
    rows = [
        "\t".join(
            [f"GPU{g}", *("X" if g == n else "NV18" for n in range(4))]
            + ["PIX" if g == n else "SYS" for n in range(4)]
        )
        for g in range(4)
    ]
    legend = [f"  NIC{n}: mlx5_{n}" for n in range(4)]
    return "\n".join(["\t" + "\t".join([*names, "CPU Affinity"]), *rows, "", *legend]) + "\n"


@pytest.mark.parametrize(("devices", "count"), [((1, 0, 3, 2), 1), ((0, 1, 2, 3), 0)])
def test_a_topology_beside_the_logs_shows_who_passes_his_nic_by(
    tmp_path: Path, devices: tuple[int, ...], count: int
) -> None:
    (tmp_path / "gpu-11").mkdir()
    (tmp_path / "gpu-11/topo.txt").write_text(matrix())
    (tmp_path / "nccl.gpu-11.log").write_text(sends_over(devices, "gpu-11", 8))
    with tracekit.open([tmp_path]) as run:
        report = run.diagnose()
    found = [f for f in report.findings if f.rule == "wrong-nic"]
    assert len(found) == count
    for finding in found:
        assert finding.scope.hosts == ("gpu-11",)
        assert "4 of 4 GPUs" in finding.summary
        assert any(r.source.endswith("topo.txt") for e in finding.evidence for r in e.rows)

"""numa-misplacement: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.findings import Severity
from tracekit.rules import rule
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.numa_misplacement import cpus_of

Row = dict[str, Any]
RULE = rule("numa-misplacement")
GIB = 1 << 30
TOPOLOGY: list[Row] = [
    {"host": "h0", "gpu": f"GPU{g}", "nvml_index": g, "cpu_affinity": cpus, "numa_node": node,
     "peer": "GPU0", "source_id": 0, "place": g}
    for g, cpus, node in ((0, "0-31", 0), (1, "32-63", 1))
]  # fmt: skip


def on_gpu(pid: int, gpu: int, rank: int | None = None, host: str | None = "h0") -> Row:
    return {"host": host, "gpu_index": gpu, "rank": rank, "pid": pid, "source_id": 1, "place": pid}


def place(pid: int, host: str | None = "h0", **told: Any) -> Row:
    return {"host": host, "pid": pid, "cpus": None, "memory_nodes": None, "numa_node": None,
            "memory_bytes": None, "source_id": 2, "place": pid} | told  # fmt: skip


def memory(pid: int, *gib: float) -> list[Row]:
    return [place(pid, numa_node=n, memory_bytes=round(g * GIB)) for n, g in enumerate(gib)]


def asked(
    processes: list[Row], places: list[Row], topology: list[Row] = TOPOLOGY,
    sources: dict[int, str] | None = None,
) -> RuleOutcome:  # fmt: skip
    rows = {"gpu_processes": processes, "process_place": places, "host_topology": topology}
    return RULE.run(Facts(rows=rows, sources=sources or {}))


def test_a_process_that_may_only_run_away_from_its_gpu() -> None:
    (found,) = asked([on_gpu(7, 1, rank=3)], [place(7, cpus="0-15")]).findings
    assert found.summary == (
        "Process 7 of h0 (rank 3) may only run away from its GPU, on CPUs 0-15 (GPU 1 has 32-63 "
        "beside it)."
    )
    assert (found.scope.ranks, found.scope.hosts) == ((3,), ("h0",))
    assert found.severity is Severity.NOTE


@pytest.mark.parametrize(
    ("cpus", "is_told"),
    [("0-31", True), ("0-32", False), ("32-63", False), ("40", False), ("0-63", False)],
)
def test_one_cpu_beside_its_gpu_is_enough(cpus: str, is_told: bool) -> None:
    assert bool(asked([on_gpu(7, 1)], [place(7, cpus=cpus)]).findings) == is_told


def test_a_process_on_several_gpus_may_run_beside_any() -> None:
    assert asked([on_gpu(7, 0), on_gpu(7, 1)], [place(7, cpus="0-15")]) == RuleOutcome()
    (found,) = asked([on_gpu(7, 0), on_gpu(7, 1)], [place(7, cpus="64-95")]).findings
    assert "GPUs 0-1 have 0-63 beside them" in found.summary


def test_several_processes_of_a_host_are_one_finding() -> None:
    listed = [on_gpu(7, 0, rank=0), on_gpu(8, 1, rank=1)]
    (found,) = asked(listed, [place(7, cpus="32-63"), place(8, cpus="0-31")]).findings
    assert found.summary.startswith("2 processes of h0 (ranks 0-1) may only run away from their")
    assert found.scope.ranks == (0, 1)


@pytest.mark.parametrize(
    ("near", "far", "is_told"),
    [(1.0, 1.0, True), (1.01, 1.0, False), (0.2, 0.8, True), (0.2, 0.79, False)],
)
def test_half_of_its_memory_must_be_elsewhere_and_a_gibibyte_told(
    near: float, far: float, is_told: bool
) -> None:
    outcome = asked([on_gpu(7, 1)], memory(7, far, near))
    assert bool(outcome.findings) == is_told
    assert not outcome.not_checked


def test_memory_is_told_with_its_share() -> None:
    (found,) = asked([on_gpu(7, 1)], [place(7, cpus="0-63"), *memory(7, 3, 1)]).findings
    assert "up to 75 % lies on other NUMA nodes" in found.summary


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(([on_gpu(7, 1)], [place(8, cpus="0-15")]), id="of another process"),
        pytest.param(([on_gpu(7, 1)], [place(7, "h1", cpus="0-15")]), id="of another host"),
        pytest.param(([on_gpu(7, 2)], [place(7, cpus="0-15")]), id="on a GPU that is not listed"),
        pytest.param(([on_gpu(7, 1), on_gpu(7, 2)], [place(7, cpus="0-15")]), id="one of which"),
        pytest.param(([], [place(7, cpus="0-15")]), id="no process on GPUs"),
        pytest.param(([on_gpu(7, 1)], []), id="no places"),
        pytest.param(([on_gpu(7, 1)], [place(7, cpus="0-15")], []), id="no topology"),
    ],
)
def test_what_it_lacks(given: tuple[list[Row], ...]) -> None:
    processes, places, *topology = given
    outcome = asked(processes, places, topology[0] if topology else TOPOLOGY)
    assert not outcome.findings
    assert "taskset" in outcome.not_checked[0].needs


def test_a_capture_s_folder_says_whose_a_file_is() -> None:
    sources = {1: "/c/tracekit-capture/h0/gpu-processes.csv"}
    off = [place(7, cpus="0-15")]
    assert asked([on_gpu(7, 1, host=None)], off, sources=sources).findings
    assert asked([on_gpu(7, 1, host=None)], off).not_checked


def test_of_several_hosts_without_names_nothing_is_said() -> None:
    nameless = [row | {"host": None} for row in TOPOLOGY]
    other = [row | {"source_id": 9} for row in nameless]
    given = [on_gpu(7, 1, host=None)], [place(7, None, cpus="0-15")]
    assert asked(*given, nameless).findings
    assert asked(*given, [*nameless, *other]).not_checked


def test_a_list_of_cpus() -> None:
    assert cpus_of("0-2,8") == {0, 1, 2, 8}
    for wrong in ("", "a", "1-b", "0-99999999999", "-1"):
        assert cpus_of(wrong) == frozenset()

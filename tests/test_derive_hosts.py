"""Hosts by one name, and their clocks."""

from __future__ import annotations

import pytest
from source_tables import database

from derived_runs import job, placed, run, trace
from tracekit.derive.placement.hosts import canonical
from tracekit.derive.run import derive


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Gpu-11.Cluster.local", "gpu-11"),
        ("gpu-11", "gpu-11"),
        ("10.0.0.7", "10.0.0.7"),
        ("fe80::1", "fe80::1"),
        (" h. ", "h"),
    ],
)
def test_canonical_host(name: str, short: str) -> None:
    assert canonical(name) == short


def test_hosts_are_short_names_and_the_rest_are_aliases() -> None:
    result = run(
        [
            trace(0, "a", file_rank=0, host_name="GPU-1.cluster"),
            trace(1, "b", file_rank=1, host_name="gpu-1"),
            trace(2, "c", file_rank=2, host_name="10.0.0.7"),
            trace(3, "d", file_rank=3, host_name="localhost"),
            trace(4, "e", file_rank=4),
        ]
    )
    assert placed(result, "host", "host_source") == [
        ("gpu-1", "file"),
        ("gpu-1", "file"),
        ("10.0.0.7", "file"),
        (None, None),
        (None, None),
    ]
    assert result["host"].to_pylist() == [
        {"host": "10.0.0.7", "host_source": "file", "ranks_count": 1},
        {"host": "gpu-1", "host_source": "file", "ranks_count": 2},
    ]
    assert result["host_alias"].to_pylist() == [
        {"host": "gpu-1", "alias": "GPU-1.cluster", "kind": "fqdn", "alias_source": "file"}
    ]
    # One clock a host, and one for each file whose host is unknown.
    assert [c[0] for c in placed(result, "clock_id")] == [1, 1, 0, 2, 3]


def test_full_names_that_share_their_short_form_stay_whole() -> None:
    rows = [
        trace(0, "a", file_rank=0, host_name="gpu-1.rack-a"),
        trace(1, "b", file_rank=1, host_name="gpu-1.rack-b"),
    ]
    assert placed(run(rows), "host") == [("gpu-1.rack-a",), ("gpu-1.rack-b",)]


def test_the_jobs_host_replaces_the_traces() -> None:
    """As in the lab: four network namespaces of one machine, one clock."""
    description = job(
        "[clocks]\nshared = true\n[[rank]]\nrank = 0\nhost = 'host0'\n"
        "[[rank]]\nrank = 1\nhost = 'host1'\n"
    )
    notes: list[str] = []
    rows = [
        trace(0, "a", file_rank=0, host_name="vm", time_resolution_ns=1),
        trace(1, "b", file_rank=1, host_name="vm", time_resolution_ns=1000),
        trace(2, "s", kind="switch", time_basis="epoch"),
    ]
    result = derive(database({"source": rows}), description, notes=notes)
    assert placed(result, "host", "host_source", "clock_id") == [
        ("host0", "job_toml", 0),
        ("host1", "job_toml", 0),
        (None, None, 0),
    ]
    assert [(a["host"], a["alias"]) for a in result["host_alias"].to_pylist()] == [
        ("host0", "vm"),
        ("host1", "vm"),
    ]
    assert result["clock"].to_pylist() == [
        {
            "clock_id": 0,
            "kind": "realtime",
            "host": None,
            "resolution_ns": 1000,
            "basis": "epoch",
            "is_shared": True,
        }
    ]
    assert notes == ["hosts of the job description replace the traces' own (vm)"]


def test_an_assigned_rank_gets_its_host_from_the_job() -> None:
    result = run([trace(0, "a")], job("[[rank]]\nrank = 0\nhost = 'host0'"))
    assert placed(result, "host") == [("host0",)]


def test_no_offset_is_applied() -> None:
    result = run([trace(0, "a", file_rank=0)])
    assert placed(result, "offset_ns", "drift_ratio") == [(0, 0.0)]
    assert result["clock_offset"].num_rows == 0

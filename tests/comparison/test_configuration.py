"""Choices of two sides: what differs is named, what both say alike or neither says is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tracekit import api
from tracekit.comparison.configuration import configuration
from tracekit.comparison.sides import RunRows
from traces import write_job


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRows:
    folder = tmp_path_factory.mktemp("job")
    write_job(folder / "job")
    with api.ingest(folder / "job", run=Path(folder / "run")) as opened:
        return opened.compared()


def choosing(run: RunRows, algorithm: str, **comm: Any) -> RunRows:
    choice = {"op": "AllReduce", "message_bytes": 1024, "algorithm": algorithm, "protocol": "LL"}
    known = {"nccl_version": "2.27.3", "channels_count": 24, "group_size": 8, **comm}
    return replace(run, rows={**run.rows, "nccl_choices": [choice], "nccl_comms": [known]})


def test_a_choice_that_differs_is_named_and_no_other(run: RunRows) -> None:
    found = configuration([choosing(run, "Ring")], [choosing(run, "Tree", channels_count=2)])
    assert [(c.name, c.baseline, c.candidate) for c in found] == [
        ("NCCL channels, 8 ranks", "24", "2"),
        ("NCCL's choice for AllReduce of 1024 bytes", "Ring LL", "Tree LL"),
    ]


def test_what_one_side_alone_says_is_shown_as_such(run: RunRows) -> None:
    found = configuration([run], [choosing(run, "Ring")])
    assert {c.baseline for c in found} == {None}
    assert "NCCL" in [c.name for c in found]


def test_of_groups_without_a_name_only_what_both_say_is_told(run: RunRows) -> None:
    def with_group(kind: str | None, size: int | None, dtype: str | None) -> RunRows:
        row = {"group_kind": kind, "group_size": size, "op": "all_reduce", "dtype": dtype}
        return replace(run, rows={**run.rows, "traffic": [row]})

    def told(before: RunRows, after: RunRows) -> list[tuple[str, str | None, str | None]]:
        return [(c.name, c.baseline, c.candidate) for c in configuration([before], [after])]

    assert told(with_group(None, None, None), with_group(None, 2, "float")) == []
    assert told(with_group(None, 2, "float"), with_group(None, 4, "bfloat16")) == [
        ("ranks of an unknown group", "2", "4"),
        ("elements of all_reduce in an unknown group", "float", "bfloat16"),
    ]
    assert told(with_group("dp", None, None), with_group("dp", 2, None)) == [
        ("ranks of a dp group", None, "2")
    ]


def test_the_same_job_has_no_difference(run: RunRows) -> None:
    assert configuration([run], [run]) == ()


def test_versions_variables_and_devices_that_differ_are_named(run: RunRows) -> None:
    def with_said(*said: tuple[str, str, str]) -> RunRows:
        rows = [dict(zip(("kind", "name", "value"), r, strict=True)) for r in said]
        return replace(run, rows={**run.rows, "environment": rows})

    same = ("version", "torch", "2.4.0")
    before = with_said(same, ("version", "cuda_driver_version", "12020"), ("device", "model", "A"))
    after = with_said(same, ("version", "cuda_driver_version", "12040"), ("device", "model", "B"),
                      ("variable", "NCCL_ALGO", "Ring"))  # fmt: skip
    assert [(c.name, c.baseline, c.candidate) for c in configuration([before], [after])] == [
        ("version of cuda_driver_version", "12020", "12040"),
        ("model of GPU", "A", "B"),
        ("NCCL_ALGO", None, "Ring"),
    ]


def test_what_each_rank_has_for_itself_is_no_choice(run: RunRows) -> None:
    assert len(run.ranks) > 1
    own = [{"kind": "variable", "name": "RANK", "value": str(r)} for r in run.ranks]
    bare = replace(run, rows={**run.rows, "environment": []})
    numbered = replace(run, rows={**run.rows, "environment": own})
    assert configuration([bare], [numbered]) == ()
    fewer = replace(run, rows={**run.rows, "environment": own[1:]})
    assert [c.name for c in configuration([bare], [fewer])] == ["RANK"]


def talking(run: RunRows, *ways: tuple[str, str, str, bool | None, int]) -> RunRows:
    """A run whose NCCL log has these connections: transport, detail, where to, GPUDirect, channels;
    those between hosts use the device mlx5_0."""
    rows = [
        {"transport": transport, "detail": detail, "from_node": "a", "to_node": node}
        | {"is_gpudirect": direct, "channels_count": count}
        | {"nics": "mlx5_0" if transport == "NET" else None}
        for transport, detail, node, direct, count in ways
    ]
    return replace(run, rows={**run.rows, "nccl_topology": rows})


def test_transports_channels_and_devices_that_differ_are_named(run: RunRows) -> None:
    before = talking(run, ("P2P", "IPC/read", "a", None, 24), ("NET", "IB/0/GDRDMA", "b", True, 4))
    after = talking(run, ("SHM", "direct/direct", "a", None, 2), ("NET", "IB/0", "b", False, 4))
    assert [(c.name, c.baseline, c.candidate) for c in configuration([before], [after])] == [
        ("NCCL transport in a host", "P2P/IPC", "SHM/direct"),
        ("NCCL channels of two ranks in a host", "24", "2"),
        ("NCCL transport between hosts", "NET/IB with GPUDirect", "NET/IB without GPUDirect"),
    ]
    bare = replace(run, rows={**run.rows, "nccl_topology": []})
    found = {c.name: c.candidate for c in configuration([bare], [before])}
    assert found["network devices of NCCL"] == "mlx5_0"


def test_two_numbers_of_one_device_are_one_way(run: RunRows) -> None:
    one = talking(run, ("NET", "IB/0/GDRDMA", "b", True, 4))
    two = talking(run, ("NET", "IB/0/GDRDMA", "b", True, 4), ("NET", "IB/1/GDRDMA", "b", True, 4))
    assert configuration([one], [two]) == ()

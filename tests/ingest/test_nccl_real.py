"""Real NCCL logs, where the shared data are at hand: what each must show."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from nccl_logs import KeptSink, read_file

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "nccl"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the shared NCCL logs are not here")
FILES = sorted(DATA.glob("*")) if DATA.exists() else []


def one(pattern: str) -> KeptSink:
    return read_file(next(iter(sorted(DATA.glob(pattern)))))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name[:24])
def test_every_file_parses_and_nearly_every_line_is_known(path: Path) -> None:
    sink = read_file(path)
    assert sink.facts.get("status") == "ok"
    assert sink.tables
    messages = sink.counts.get("nccl_line", 0)
    assert sink.counts.get("unknown_nccl_line", 0) <= 0.001 * messages


def test_sixteen_ranks_on_two_hosts_over_libfabric() -> None:
    sink = one("03*")
    comms = sink.rows("nccl_comm", "group_rank", "world_rank", "group_size")
    assert sorted(comms) == [(r, r, 16) for r in range(16)]
    assert len(set(sink.rows("nccl_comm", "node"))) == 2
    net = [e for e in sink.rows("nccl_edge") if e["transport"] == "NET"]
    assert len(net) == 64
    assert all(e["is_gpudirect"] and e["detail"].startswith("AWS Libfabric/") for e in net)
    assert all(e["comm_pointer"] for e in sink.rows("nccl_edge"))


@pytest.mark.parametrize(
    ("pattern", "algorithm", "ranks", "average"),
    [("*g6_auto*", "NVLS", 6, "425.562"), ("*g6_Ring*", "Ring", 6, "358.054")],
)
def test_nvls_and_ring_are_told_apart(
    pattern: str, algorithm: str, ranks: int, average: str
) -> None:
    sink = one(pattern)
    assert set(sink.rows("nccl_choice", "algorithm")) == {algorithm}
    assert sink.events("bench")[0]["average_bus_gb_per_s"] == average
    assert len(sink.rows("nccl_comm")) == ranks
    assert len(set(sink.rows("nccl_comm", "pid"))) == 1
    nodes = {n for t in ("nccl_event", "nccl_comm", "nccl_choice") for n in sink.rows(t, "node")}
    assert nodes - {None} == {"38dcf168f605"}
    assert set(sink.rows("nccl_comm", "nodes_count")) == {1}


@pytest.mark.parametrize(("pattern", "channels", "rows"), [("18*", 24, 22), ("19*", 2, 22)])
def test_rows_that_were_torn_apart_are_whole(pattern: str, channels: int, rows: int) -> None:
    sink = one(pattern)
    assert set(sink.rows("nccl_comm", "channels_count")) == {channels}
    assert len(sink.rows("bench_result")) == rows
    assert sink.counts["odd_bench_row"] == 0
    assert Counter(sink.rows("nccl_op", "op_count")) == {0: 990}
    both = [set(sink.rows(t, "comm_pointer")) for t in ("nccl_op", "nccl_comm")]
    assert both[0] == both[1]


def test_a_header_without_rows_is_incomplete() -> None:
    whole, cut = one("27*ncclfail*").events("bench")
    assert (whole["benchmark"], whole["complete"]) == ("alltoall_perf", "yes")
    assert (cut["benchmark"], cut["rows"], cut["complete"]) == ("sendrecv_perf", "0", "no")


def test_a_table_without_a_root_column() -> None:
    sink = one("28*")
    assert len(sink.rows("bench_result")) == 68
    last = cast("dict[str, object]", sink.rows("bench_result")[-2])
    assert last["message_bytes"] == 8589934592
    assert last["dur_ns"] == 63_896_000
    assert last["bus_bytes_per_s"] == pytest.approx(235.26e9)

"""The simulator's NCCL logs: read back whole, saying what is true and, of a fault, its cause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nccl_logs import KeptSink, read_file
from tracekit.errors import UsageError
from tracekit.simulate import Request, write

Simulate = Callable[..., Path]


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    def simulated(scenario: str, layout: str = "", ranks: int = 8, **more: object) -> Path:
        folder = tmp_path / scenario
        request = Request(scenario, ranks, 3, layout, 2, decoys=(), **more)  # type: ignore[arg-type]
        write(request, folder)
        return folder

    return simulated


def logs(folder: Path) -> dict[int, KeptSink]:
    """By rank."""
    return {
        int(path.name.split(".")[-2]) - 20_000: read_file(path)
        for path in sorted(folder.glob("nccl.*.log"))
    }


@pytest.mark.parametrize("scenario", ["none", "nccl-socket-fallback", "no-gpudirect", "wrong-nic"])
def test_every_line_is_known_and_every_connection_has_two_ends(
    scenario: str, simulate: Simulate
) -> None:
    found = logs(simulate(scenario, ranks=16))
    assert sorted(found) == list(range(16))
    ends: dict[tuple[object, ...], set[str]] = {}
    for sink in found.values():
        assert sink.counts.get("unknown_nccl_line", 0) == 0
        hashes = {c["comm_pointer"]: c["comm_hash"] for c in sink.rows("nccl_comm")}
        for e in sink.rows("nccl_edge"):
            key = (hashes.get(e["comm_pointer"]), e["channel"], e["from_group_rank"],
                   e["to_group_rank"])  # fmt: skip
            ends.setdefault(key, set()).add(e["direction"] or "both")
    assert ends
    assert set(map(frozenset, ends.values())) <= {
        frozenset({"both"}), frozenset({"send", "receive"})
    }  # fmt: skip


def test_machines_and_members_are_those_of_the_layout(simulate: Simulate) -> None:
    found = logs(simulate("tensor-group-spans-hosts", "tp8-sp", ranks=8))
    wide = {c["nodes_count"] for s in found.values() for c in s.rows("nccl_comm")}
    assert wide == {2}


def events(found: dict[int, KeptSink], code: str) -> dict[int, list[dict[str, str]]]:
    return {rank: sink.events(code) for rank, sink in found.items()}


def test_sockets_and_their_reason(simulate: Simulate) -> None:
    found = logs(simulate("nccl-socket-fallback", ranks=16))
    edges = [e for s in found.values() for e in s.rows("nccl_edge") if e["transport"] == "NET"]
    assert {e["detail"] for e in edges} == {"Socket/0"}
    why = [
        sum(map(len, events(found, code).values())) for code in ("no_ib_device", "no_ibverbs")
    ] + [sum(e["name"] == "NCCL_IB_DISABLE" for v in events(found, "env").values() for e in v)]
    assert sorted(why) == [0, 0, 16]


def test_without_gpudirect_and_its_healthy_twin(simulate: Simulate) -> None:
    for scenario, is_direct in (("no-gpudirect", False), ("none", True)):
        found = logs(simulate(scenario, ranks=16))
        said = [e["is_gpudirect"] for s in found.values() for e in s.rows("nccl_edge")
                if e["transport"] == "NET"]  # fmt: skip
        assert said
        assert set(said) == {is_direct}


def test_shared_memory_on_one_host_only(simulate: Simulate) -> None:
    found = logs(simulate("shm-instead-of-p2p", "tp4-sp-m2", ranks=16))
    ways: dict[str, set[str]] = {}
    for sink in found.values():
        for e in sink.rows("nccl_edge"):
            ways.setdefault(e["node"], set()).add(e["transport"])
    assert sum("SHM" in w for w in ways.values()) == 1


def test_one_nic_for_a_host(simulate: Simulate) -> None:
    found = logs(simulate("wrong-nic", ranks=16))
    used: dict[str, set[int]] = {}
    for sink in found.values():
        for e in sink.rows("nccl_edge"):
            if e["transport"] == "NET":
                used.setdefault(e["node"], set()).add(e["net_device"])
    assert sorted(map(len, used.values())) == [1, 4, 4, 4]


def test_few_channels_and_another_setting(simulate: Simulate) -> None:
    found = logs(simulate("channel-collapse", ranks=16))
    assert {c["channels_count"] for s in found.values() for c in s.rows("nccl_comm")} == {2}
    found = logs(simulate("config-mismatch", ranks=16))
    values = [e["value"] for v in events(found, "env").values() for e in v
              if e["name"] == "NCCL_IB_QPS_PER_CONNECTION"]  # fmt: skip
    assert sorted(values) == ["1"] + ["4"] * 15


def test_the_late_rank_waits_for_nobody(simulate: Simulate) -> None:
    found = logs(simulate("init-straggler:60", ranks=8))
    waits = {
        rank: max(float(e["bootstrap"]) for e in said)
        for rank, said in events(found, "init_timings").items()
    }
    assert sorted(w > 50 for w in waits.values()) == [False] + [True] * 7


def test_a_hang_is_in_the_words_of_all_that_wait(simulate: Simulate) -> None:
    folder = simulate("collective-hang")
    job = read_file(folder / "train.log")
    said = [e for e in job.rows("log_event") if e["code"] == "watchdog-timeout"]
    ranks = {f for e in said for f in e["fields"] if f.startswith("world_rank=")}
    assert len(said) == len(ranks) == 7
    assert not (simulate("none") / "train.log").exists()


def test_calls_are_logged_on_demand(simulate: Simulate) -> None:
    assert not logs(simulate("none"))[0].rows("nccl_op")
    found = logs(simulate("slow-gpu", nccl="coll"))
    assert {op["op"] for op in found[0].rows("nccl_op")} == {"all_reduce"}
    assert not logs(simulate("gc-pause", nccl="none"))
    with pytest.raises(UsageError, match="there is no NCCL log"):
        simulate("recompile", nccl="much")

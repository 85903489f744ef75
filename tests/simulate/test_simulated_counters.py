"""Counters of simulated jobs: consistent with each other, and read back whole."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tracekit import api
from tracekit.api import OpenRun
from tracekit.errors import UsageError
from tracekit.simulate import Request, prepare, write
from tracekit.simulate.activity import Activity
from tracekit.simulate.gpu_counters import uuid_of


def digests(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


@pytest.mark.slow  # another job through the same lines
def test_same_seed_same_bytes(tmp_path: Path) -> None:
    request = Request("packet-loss", 8, 4, "ddp", steps_count=2, counters="all")
    write(request, tmp_path / "one")
    write(request, tmp_path / "two")
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert len(digests(tmp_path / "one")) > 30


def activity_of(request: Request) -> tuple[Activity, Any]:
    scenario = prepare(request)
    job = scenario.job()
    found = Activity(job.engine.network, request.ranks)
    for records in job.run():
        found.add(records)
    found.finish()
    return found, scenario


@pytest.mark.parametrize("layout", ["ddp", "fsdp", "ep8", "pp4-m4", "tp2-sp-m2"])
def test_what_is_sent_is_received(layout: str) -> None:
    request = Request("packet-loss:0.0001", 16, 2, layout, steps_count=2, decoys=())
    found, _ = activity_of(request)
    end = found.ticks(1.0, 0.0)[-1:]
    sent = sum(float(found.grown("tx", r, end)[0]) for r in range(16))
    received = sum(float(found.grown("rx", r, end)[0]) for r in range(16))
    assert sent > 0
    assert received == pytest.approx(sent, rel=1e-9)


def test_a_ring_s_bytes_are_those_of_its_formula() -> None:
    # 2 hosts of 4: each NIC sends 2 (D - 1) / D of a quarter of what is reduced, D = 2.
    request = Request("packet-loss:0.0001", 8, 2, "ddp", steps_count=1, decoys=())
    found, scenario = activity_of(request)
    (records,) = scenario.job().run()
    reduced = sum(o.size_bytes for o in records[0].operations if o.transfer is not None)
    window = found.ticks(1.0, 0.0)[:2].copy()
    window[:] = found.starts_ns[0], found.ends_ns[-1]
    grown = found.grown("tx", 0, window)
    assert grown[1] - grown[0] == pytest.approx(reduced / 4)


def test_the_job_goes_on_around_the_captured_steps() -> None:
    found, _ = activity_of(Request("thermal-throttle", 8, 2, "ddp", steps_count=4, decoys=()))
    at = found.step_at(found.ticks(0.1, 0.0))
    first, last = found.starts_ns[0], found.ends_ns[-1]
    ticks = found.ticks(0.1, 0.0)
    assert set(at[ticks < found.start_ns]) == {-1}
    assert set(at[(ticks > found.start_ns) & (ticks < first)]) == {0, 1}
    assert set(at[(ticks > last) & (ticks < found.end_ns)]) == {2, 3}
    assert set(at[ticks > found.end_ns]) == {-1}


def test_nothing_follows_a_hang(tmp_path: Path) -> None:
    write(Request("collective-hang", 8, 2, "ddp", 3, counters="all"), tmp_path / "job")
    scrapes = (tmp_path / "job" / "dcgm.gpu-00.prom").read_text()
    assert scrapes.count("DCGM_FI_DEV_SM_CLOCK{") > 100


@pytest.fixture(scope="module")
def read_back(tmp_path_factory: pytest.TempPathFactory) -> OpenRun:
    """A healthy job of 16 ranks on 4 hosts with all counters, read by the ordinary ingestors."""
    folder = tmp_path_factory.mktemp("sim")
    request = Request(
        "packet-loss:0.0001", 16, 3, "ddp", 2, counters="all", interval_s=4.0,
        decoys=("software-power-cap", "latched-xid", "usual-pause-frames", "counter-reset"),
    )  # fmt: skip
    write(request, folder / "job")
    paths = [p for p in sorted((folder / "job").rglob("*")) if p.is_file()]
    given = [p for p in paths if p.name not in ("truth.json", "job.toml") and p.name[0] != "."]
    return api.ingest(given, run=folder / "run", job=[folder / "job" / "job.toml"], workers=1)


def rows(run: OpenRun, text: str) -> list[dict[str, Any]]:
    return run.sql(text).to_dicts()


def test_every_file_is_read_whole(read_back: OpenRun) -> None:
    bad = rows(read_back, "SELECT path, status FROM source WHERE status <> 'ok'")
    assert bad == []
    kinds = {r["kind"] for r in rows(read_back, "SELECT DISTINCT kind FROM source")}
    assert {"kineto", "nccl", "dcgm", "nvidia_smi", "sonic_db", "nic", "xid"} <= kinds


def test_every_gpu_has_its_rank_and_every_nic_and_its_port(read_back: OpenRun) -> None:
    gpus = rows(read_back, "SELECT DISTINCT gpu_id, rank, rank_source FROM gpu ORDER BY rank")
    named = {(g["gpu_id"], g["rank"]) for g in gpus if g["rank"] is not None}
    assert named == {(uuid_of(3, r), r) for r in range(16)}
    ports = rows(
        read_back,
        "SELECT rank, count(*) FILTER (NOT is_on_host) AS switch, "
        "count(*) FILTER (is_on_host) AS own FROM port WHERE rank IS NOT NULL GROUP BY rank",
    )
    assert {p["rank"] for p in ports} == set(range(16))
    assert {(p["switch"], p["own"]) for p in ports} == {(1, 2)}


def test_switch_and_nic_count_the_same_bytes(read_back: OpenRun) -> None:
    """What a NIC sends its switch receives, from before the job to after it."""
    found = read_back.query("port_counters").to_dicts()
    grown = {
        (r["rank"], r["is_on_host"], r["counter"]): r["total_growth"]
        for r in found
        if r["counter"] in ("tx_bytes", "rx_bytes")
        and r["rank"] is not None
        and not r["port"].startswith("eth")
    }
    (reset,) = {r["rank"] for r in found if r["resets_count"]}
    for rank in set(range(16)) - {reset}:
        for own, far in (("tx_bytes", "rx_bytes"), ("rx_bytes", "tx_bytes")):
            assert grown[rank, True, own] > 1e11
            assert grown[rank, False, far] == pytest.approx(grown[rank, True, own], rel=1e-3)
    # An interval with a reset is a hole: neither a zero nor a spike.
    assert 0.9 < grown[reset, True, "tx_bytes"] / grown[reset, False, "rx_bytes"] < 1.0


def test_decoys_are_there(read_back: OpenRun) -> None:
    (xid,) = rows(read_back, "SELECT DISTINCT value FROM gpu_sample WHERE counter = 'xid' "
                             "AND value > 0")  # fmt: skip
    assert xid["value"] == 31
    capped = rows(
        read_back,
        "SELECT count(DISTINCT device_id) AS gpus FROM gpu_sample "
        "WHERE counter = 'clock_event_reasons' AND value = 4",
    )
    assert capped[0]["gpus"] == 16
    resets = read_back.query("port_counters").filter(resets_count=1)
    assert set(resets["is_on_host"]) == {True} and resets["node"].n_unique() == 1
    paused = rows(
        read_back,
        "SELECT count(DISTINCT port) AS ports FROM net_sample "
        "WHERE counter = 'rx_pfc_duration' AND NOT starts_with(port, 'eth') AND counted > 0",
    )
    assert paused[0]["ports"] >= 4


def test_what_a_user_knows_says_nothing_of_the_fault(tmp_path: Path) -> None:
    write(Request("packet-loss", 8, 4, "ddp", 2, counters="all"), tmp_path / "job")
    text = (tmp_path / "job" / "job.toml").read_text()
    described = tomllib.loads(text)
    assert {p["node"][:4] for p in described["port"]} <= {"leaf", "gpu-", "trai"}
    assert "loss" not in text.replace('name = "packet-loss-4"', "")


@pytest.mark.parametrize(
    ("scenario", "counters", "expected"),
    [
        ("thermal-throttle", "auto", {"gpu"}),
        ("packet-loss", "auto", {"net"}),
        ("slow-gpu", "auto", set()),
        ("none", "all", {"gpu", "net"}),
        ("thermal-throttle", "none", set()),
    ],
)
def test_which_counters_are_written(scenario: str, counters: str, expected: set[str]) -> None:
    assert prepare(Request(scenario, 16, 1, counters=counters)).counted == expected


@pytest.mark.parametrize("more", [{"counters": "some"}, {"interval_s": 0.01}])
def test_what_cannot_be_meant(more: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        prepare(Request("none", 8, **more))

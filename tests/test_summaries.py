"""Summaries of operators, modules and memory beside an independent count over the raw files."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import samples

from tracekit import api

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "fixtures" / "recorded"
KINETO = ROOT.parent / "shared" / "data" / "kineto"
MI300 = KINETO / "tracelens" / "mi300_ddp_resnet18_no_pool_train_resnet18.json.gz"
BERT = KINETO / "tracelens" / "h100_gaunernst_bert-small-uncased__1016001.json.gz"
ROUNDING = 0.002
"""Traces count microseconds, of which a duration may be off by one."""


def events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def operators(path: Path) -> dict[Any, list[dict[str, Any]]]:
    """Operators by thread, in the order in which they begin, outer ones first."""
    threads: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events(path):
        if event.get("cat") == "cpu_op":
            threads[event["tid"]].append(event)
    for found in threads.values():
        found.sort(key=lambda e: (e["ts"], -e["dur"]))
    return threads


def with_depths(found: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Each operator with those that it lies in, by a stack."""
    stack: list[dict[str, Any]] = []
    for event in found:
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
            stack.pop()
        yield event, list(stack)
        stack.append(event)


@pytest.mark.parametrize("path", [MI300, BERT], ids=["mi300", "bert"])
def test_operators_have_the_time_of_kernels_that_name_them(path: Path) -> None:
    """Kernels name their operator by an id, which the query does not read: it goes by the moment
    of the launch. Sums are over that operator, and over all that it lies in."""
    if not path.exists():
        pytest.skip(f"{path.name} is not here: the folder shared/data is absent")
    device: dict[int, float] = defaultdict(float)
    total = 0.0
    for event in events(path):
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            device[event["args"].get("External id", -1)] += event["dur"]
            total += event["dur"]
    calls: dict[str, int] = defaultdict(int)
    own_us: dict[str, float] = defaultdict(float)
    whole_us: dict[str, float] = defaultdict(float)
    host_us: dict[str, float] = defaultdict(float)
    for found in operators(path).values():
        for event, around in with_depths(found):
            name, launched = event["name"], device.get(event["args"].get("External id"), 0.0)
            calls[name] += 1
            own_us[name] += launched
            host_us[name] += event["dur"]
            if around:
                host_us[around[-1]["name"]] -= event["dur"]
            for outer in [*around, event]:
                whole_us[outer["name"]] += launched

    with samples.opened(path) as run:
        rows = {r["name"]: r for r in run.query("operator_summary").to_dicts()}
    named = {name: row for name, row in rows.items() if name is not None}
    assert {name: row["calls_count"] for name, row in named.items()} == calls
    near = ROUNDING * total * 1e3
    for name, row in named.items():
        assert row["device_self_ns"] == pytest.approx(own_us[name] * 1e3, abs=near), name
        assert row["device_ns"] == pytest.approx(whole_us[name] * 1e3, abs=near), name
        assert row["host_self_ns"] == pytest.approx(host_us[name] * 1e3, abs=1e6), name
    assert sum(r["device_self_ns"] for r in rows.values()) == pytest.approx(total * 1e3, abs=near)
    assert sum(r["device_self_ratio"] for r in rows.values()) == pytest.approx(1)


def test_self_times_of_operators_add_up_to_the_time_in_them() -> None:
    """The union of a thread's operators is what their self times sum to."""
    for path in sorted((RECORDED / "ddp-healthy").glob("rank0*.json.gz")):
        inside_us = 0.0
        for found in operators(path).values():
            until = 0.0
            for event in found:
                inside_us += max(0.0, event["ts"] + event["dur"] - max(until, event["ts"]))
                until = max(until, event["ts"] + event["dur"])
        with samples.opened(path) as run:
            own_ns = run.query("operator_summary")["host_self_ns"].sum()
        assert own_ns == pytest.approx(inside_us * 1e3, rel=1e-6)


def test_modules_are_those_of_the_recorded_stacks(tmp_path: Path) -> None:
    (path,) = (RECORDED / "ddp-gc-pause-stacks").glob("rank0*.json.gz")
    recorded: dict[str, list[float]] = defaultdict(list)
    for event in events(path):
        if event.get("cat") == "python_function" and event["name"].startswith("nn.Module: "):
            recorded[event["name"].removeprefix("nn.Module: ")].append(event["dur"])
    assert recorded
    with api.ingest([path], run=tmp_path / "run", stacks=True) as run:
        rows = run.query("module_summary").to_dicts()
    modules = [r for r in rows if r["kind"] == "module"]
    assert {r["name"]: r["calls_count"] for r in modules} == {
        name: len(found) for name, found in recorded.items()
    }
    for row in modules:
        assert row["host_ns"] == pytest.approx(sum(recorded[row["name"]]) * 1e3, rel=1e-3)
        assert row["path"].endswith(f"/{row['name']}") or row["path"] == row["name"]


def test_the_peak_of_memory_is_that_of_the_recorded_allocations() -> None:
    if not BERT.exists():
        pytest.skip("the folder shared/data is absent")
    found = [e["args"] for e in events(BERT) if e.get("name") == "[memory]"]
    on_gpu = [e for e in found if e["Device Type"] == 1]
    with samples.opened(BERT) as run:
        rows = run.query("memory_timeline", points=7).to_dicts()
    gpu = [r for r in rows if r["device_type"] == "gpu"]
    assert 0 < len(gpu) <= 7
    assert gpu[-1]["peak_bytes"] == max(e["Total Allocated"] for e in on_gpu)
    assert max(r["allocated_bytes"] for r in gpu) == gpu[-1]["peak_bytes"]
    assert max(r["reserved_bytes"] for r in gpu) == max(e["Total Reserved"] for e in on_gpu)
    assert sum(r["allocations_count"] for r in gpu) == sum(e["Bytes"] > 0 for e in on_gpu)

"""How a job is made, from traces to the report: each rule on a simulated job and its healthy twin.

The simulator has no such faults, so its traces are rewritten: as a job would have left them that
is the same but for this.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from soaks import soak
from tracekit import api
from tracekit.findings import Finding
from tracekit.simulate import Request, write

Document = dict[str, Any]
ROLL_UPS = ("latency-bound-communication", "offload-bound", "traffic-mismatch")


Healthy = Callable[..., Path]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    """A healthy job of a layout, simulated and diagnosed once: none of these rules speaks."""
    known: dict[tuple[str, int], Path] = {}

    def of(layout: str, ranks: int = 8) -> Path:
        if (layout, ranks) not in known:
            folder = known[layout, ranks] = tmp_path_factory.mktemp("healthy") / layout
            request = Request(
                ranks=ranks, seed=3, layout=layout, steps_count=3, decoys=(), nccl="none",
                counters="none",
            )  # fmt: skip
            write(request, folder)
            assert not {*ROLL_UPS} & {*findings(folder)}
        return known[layout, ranks]

    return of


def rewritten(job: Path, folder: Path, change: Callable[[Document], None]) -> Path:
    """A copy of the job whose traces are changed."""
    shutil.copytree(job, folder)
    for path in folder.glob("*.pt.trace.json.gz"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        change(document)
        path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    return folder


def findings(folder: Path) -> dict[str, Finding]:
    """What these rules say, asked alone."""
    with api.open(folder, workers=1) as run:
        return {f.rule: f for f in run.diagnose(select=ROLL_UPS).document.findings}


# --- latency-bound-communication ------------------------------------------------------------------


def small_messages(share: int) -> Callable[[Document], None]:
    """All but the first of so many tensor-parallel messages carry a hundredth in the same time."""

    def change(document: Document) -> None:
        for event in document["traceEvents"]:
            args = event.get("args") or {}
            if args.get("Process Group Description") != "TENSOR_MODEL_PARALLEL_GROUP":
                continue
            if args["Seq"] % share:
                for name in ("In msg nelems", "Out msg nelems"):
                    args[name] //= 100

    return change


@pytest.mark.slow
def test_messages_that_cost_their_latency(tmp_path: Path, healthy: Healthy) -> None:
    folder = rewritten(healthy("tp8"), tmp_path / "job", small_messages(8))
    with api.open(folder) as run:
        document = run.diagnose(select=ROLL_UPS).document
    found = next(f for f in document.findings if f.rule == "latency-bound-communication")
    # It blames nobody, yet larger messages would mend it: not "nothing to fix".
    assert (document.verdict.kind, document.verdict.finding) == ("configuration", found.id)
    assert "tp all-reduce of 336 kB" in found.summary
    assert (found.impact.step_ratio or 0) > 0.05
    assert found.scope.ranks == ()


# --- offload-bound --------------------------------------------------------------------------------


def host_copies(gap_us: float, copied: int) -> Callable[[Document], None]:
    """Each step is longer by ``gap_us`` at its end, in which so many bytes go to the host."""

    def change(document: Document) -> None:
        events = document["traceEvents"]
        steps = sorted(
            (e for e in events if str(e.get("name")).startswith("ProfilerStep#")),
            key=lambda e: float(e["ts"]),
        )
        begins = [float(e["ts"]) for e in steps]
        for event in events:
            if "ts" in event:
                at = float(event["ts"])
                event["ts"] = at + gap_us * sum(1 for b in begins[1:] if at >= b)
        example = next(e for e in events if e.get("cat") == "gpu_memcpy")
        runtime = next(e for e in events if e.get("name") == "cudaMemcpyAsync")
        for number, step in enumerate(steps, start=10_000_000):
            step["dur"] = float(step["dur"]) + gap_us
            start = float(step["ts"]) + float(step["dur"]) - gap_us
            args = {**example["args"], "correlation": number, "bytes": copied}
            # Its own stream, as DeepSpeed and FSDP offload on one.
            events.append(
                {**example, "name": "Memcpy DtoH (Device -> Pinned)", "tid": 33, "ts": start + 9.0,
                 "dur": gap_us - 20.0, "args": {**args, "stream": 33}}
            )  # fmt: skip
            own = {**runtime["args"], "correlation": number}
            events.append({**runtime, "ts": start + 2.0, "dur": 5.0, "args": own})

    return change


@pytest.mark.parametrize(
    ("gap_us", "copied", "is_said"),
    soak(
        [
            (12_000.0, 250_000_000, True),
            (1_000.0, 120_000_000, False),
            (12_000.0, 1_000_000, False),
        ],
        fast=1,  # where each condition lies, the rule's own tests say
    ),
)
@pytest.mark.slow  # another job through the same lines
def test_copies_to_the_host(
    tmp_path: Path, healthy: Healthy, gap_us: float, copied: int, is_said: bool
) -> None:
    """Not where they are short, nor where they carry no more than an input."""
    found = findings(rewritten(healthy("fsdp"), tmp_path / "job", host_copies(gap_us, copied)))
    assert ("offload-bound" in found) == is_said
    if is_said:
        finding = found["offload-bound"]
        assert "0.25 GB a rank and step at 20.9 GB/s" in finding.summary
        assert finding.impact.s_per_step == pytest.approx(0.012, rel=0.05)
        assert finding.scope.ranks == tuple(range(8))


# --- traffic-mismatch, misplaced ------------------------------------------------------------------


def on_other_hosts(truth: dict[str, Any]) -> Callable[[Document], None]:
    """Odd ranks on one host, even ones on the other: every tensor group crosses both."""
    offsets = truth["measured"]["host_clock_offset_s"]

    def change(document: Document) -> None:
        rank = document["distributedInfo"]["rank"]
        was, now = document["host_name"], f"gpu-0{rank % 2}"
        document["host_name"] = now
        for event in document["traceEvents"]:
            if "ts" in event:
                event["ts"] = float(event["ts"]) + 1e6 * (offsets[now] - offsets[was])

    return change


@pytest.mark.slow
def test_tensor_groups_across_hosts(tmp_path: Path, healthy: Healthy) -> None:
    job = healthy("tp8", 16)
    truth = json.loads((job / "truth.json").read_text())
    found = findings(rewritten(job, tmp_path / "job", on_other_hosts(truth)))["traffic-mismatch"]
    assert "crosses 2 hosts a group: its groups of 8 would fit one" in found.summary
    assert found.scope.groups == ("tp",)
    assert (found.impact.s_per_step or 0) > 0

"""``tracekit compare`` on traces of a simulated job of which one side was edited: what was added,
removed, renamed and fused is told exactly, and nothing else."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from soaks import soak
from tracekit.cli import app as cli
from traces import write_trace

Document = dict[str, Any]
NORM = "aten::_fused_rms_norm"
NORM_KERNEL = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16>"
NORMS = 16
"""In a step: two a layer, of eight layers."""
RANKS = 2


def run(*words: object) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    assert ended.value.code == 0


def operators(trace: Document) -> list[Document]:
    """In the order of their threads and times."""
    found = [e for e in trace["traceEvents"] if e.get("cat") == "cpu_op"]
    return sorted(found, key=lambda e: (e["tid"], e["ts"]))


def as_it_is(trace: Document) -> None:
    assert operators(trace)


def without_norms(trace: Document) -> None:
    """As if the model had none: the operators, what they call, and what that launches."""
    events = trace["traceEvents"]
    norms = [e for e in operators(trace) if e["name"] == NORM]
    stretches = [(e["tid"], e["ts"], e["ts"] + e["dur"]) for e in norms]
    within = [
        any(e.get("tid") == tid and begin <= e["ts"] and e["ts"] + e["dur"] <= end
            for tid, begin, end in stretches) if e["ph"] == "X" else False
        for e in events
    ]  # fmt: skip
    launched = {
        e["args"]["correlation"]
        for e, is_within in zip(events, within, strict=True)
        if is_within and "correlation" in e.get("args", {})
    }
    trace["traceEvents"] = [
        e
        for e, is_within in zip(events, within, strict=True)
        if not is_within
        and e.get("args", {}).get("correlation") not in launched
        and not (e.get("cat") == "ac2g" and e.get("id") in launched)
    ]


def renamed_norms(trace: Document) -> None:
    """As if a library's own operator launched the same kernels."""
    for event in operators(trace):
        if event["name"] == NORM:
            event["name"] = "mylib::norm"


def fused_gates(trace: Document) -> None:
    """As if one operator did a product and the activation behind it."""
    gone = []
    for product, gate in pairwise(operators(trace)):
        if (product["name"], gate["name"]) == ("aten::mm", "triton_poi_fused_mul_silu"):
            product["name"] = "mylib::gated"
            product["dur"] = gate["ts"] + gate["dur"] - product["ts"]
            gone.append(id(gate))
    trace["traceEvents"] = [e for e in trace["traceEvents"] if id(e) not in gone]


EDITS: dict[str, Callable[[Document], None]] = {
    "plain": as_it_is,
    "without": without_norms,
    "renamed": renamed_norms,
    "fused": fused_gates,
}
TWO = ("aten::mm", "triton_poi_fused_mul_silu")
CASES = [
    ("plain", "without", {("removed", "operator", (NORM,), (), NORMS),
                          ("removed", "kernel", (NORM_KERNEL,), (), NORMS)}),
    ("without", "plain", {("added", "operator", (), (NORM,), NORMS),
                          ("added", "kernel", (), (NORM_KERNEL,), NORMS)}),
    ("plain", "renamed", {("renamed", "operator", (NORM,), ("mylib::norm",), NORMS)}),
    ("plain", "fused", {("fused", "operator", TWO, ("mylib::gated",), NORMS // 2)}),
    ("fused", "plain", {("split", "operator", ("mylib::gated",), TWO, NORMS // 2)}),
    ("plain", "plain", set()),
]  # fmt: skip


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the job's traces, one an edit."""
    folder = tmp_path_factory.mktemp("edited")
    words = ("--ranks", RANKS, "--layout", "ddp", "--steps", 6, "--nccl", "none")
    run("simulate", "none", "-o", folder / "job", *words)
    made = {}
    for name, edit in EDITS.items():
        for rank in range(RANKS):
            file = f"rank{rank}.pt.trace.json.gz"
            trace = json.loads(gzip.decompress((folder / "job" / file).read_bytes()))
            edit(trace)
            write_trace(folder / name / file, trace)
        made[name] = folder / name
    return made


# What was fused: of a recorded pair in test_compiled_pair.
@pytest.mark.parametrize(("baseline", "candidate", "expected"), soak(CASES, fast=1))
@pytest.mark.slow  # another job through the same lines
def test_the_command_tells_what_was_edited_and_nothing_else(
    sides: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    baseline: str,
    candidate: str,
    expected: set[tuple[object, ...]],
) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(sides["plain"].parent / "cache"))
    answer = tmp_path / "change.json"
    words = ("--baseline", sides[baseline], "--candidate", sides[candidate])
    run("compare", *words, "--format", "json", "-o", answer)
    change = json.loads(answer.read_text(encoding="utf-8"))
    found = {
        (e["edit"], e["kind"], tuple(e["baseline"]), tuple(e["candidate"]), e["count"])
        for e in change["calls"]
    }
    assert found == expected
    assert {e["path"] for e in change["calls"]} <= {"forward"}
    assert change["verdict"]["change"] == "no significant change"

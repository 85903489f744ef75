"""Recorded pairs, healthy and faulty: their files fit together, and nobody innocent is accused.

What a fault costs by diagnose beside what was measured is the bench's work: accuracy/twins.py.
"""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import re
import statistics
import tomllib

import pytest
import samples
from failed_queries import says_how_its_cost_was_got

from accuracy.twins import TWINS, Judged, Truths, judge
from soaks import soak

FIXTURES = TWINS.parent
TRUTHS = Truths().by_name
FAULTY = [n for n, t in TRUTHS.items() if t["faults"]]
DECOYED = [n for n, t in TRUTHS.items() if t["decoys"]]
HEALTHY = [n for n, t in TRUTHS.items() if not t["faults"] and not t["decoys"]]
FIRST = ("ddp-starved-link",)
"""Pairs that every run of the tests diagnoses; recorded_jobs has a hot expert."""
LIMIT_BYTES = 14_000_000

ACCUSED: dict[str, str] = {}
"""Jobs in which an innocent rank or a decoy is accused now, and why. Take out what is mended."""
UNNAMED: dict[str, str] = {}
"""Jobs of whose faults one is named at its place by nothing now."""


@functools.cache
def trace_steps_ms(name: str) -> list[float]:
    """The job's steps by the traces: from each start to the next on the rank that ends last."""
    ranks: list[list[tuple[float, float]]] = []
    for path in sorted((TWINS / name).glob("rank*.gz")):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        steps = [e for e in events if e["ph"] == "X" and e["name"].startswith("ProfilerStep#")]
        ranks.append(sorted((e["ts"] / 1000, (e["ts"] + e["dur"]) / 1000) for e in steps))
    last = max(ranks, key=lambda steps: steps[-1][1])
    marks = [*(start for start, _ in last), last[-1][1]]
    return [after - before for before, after in itertools.pairwise(marks)]


def test_the_pairs_are_small_and_listed() -> None:
    assert sum(p.stat().st_size for p in TWINS.rglob("*") if p.is_file()) < LIMIT_BYTES
    section = (FIXTURES / "README.md").read_text().partition("## Pairs")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE)
    assert sorted(listed) == sorted(FAULTY + DECOYED)
    assert {p.name for p in TWINS.iterdir()} == TRUTHS.keys()


@pytest.mark.parametrize(
    "name", soak(TRUTHS, fast=[n for n in TRUTHS if n.removesuffix("-healthy") in FIRST])
)
def test_truth_has_the_schema_and_its_files(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((FIXTURES / "truth.schema.json").read_text())
    truth = TRUTHS[name]
    jsonschema.Draft202012Validator(schema).validate(truth)
    folder = TWINS / name
    assert truth["name"] == name
    traces = sorted(p.name for p in folder.glob("rank*.gz"))
    assert traces == [f"rank{r}.pt.trace.json.gz" for r in range(truth["world_size"])]
    job = tomllib.loads((folder / "job.toml").read_text())
    assert [r["rank"] for r in job["rank"]] == list(range(truth["world_size"]))
    assert truth["layout"].items() <= job["parallelism"].items()
    hosts = {r["host"] for r in job["rank"]}
    for path in sorted(folder.glob("rank*.gz")):
        text = gzip.decompress(path.read_bytes())
        assert path.read_bytes()[4:8] == b"\0\0\0\0", "the gzip header carries a time stamp"
        assert json.loads(text)["host_name"] in hosts
        assert not any(word in text for word in (b'"/work', b'"/tmp', b'"/root', b'"/home'))
    # Ports of their own, and their counters, where the job had a network.
    assert (folder / "ports.jsonl.gz").exists() == ("port" in job) == (len(hosts) > 1)
    assert f"--pair {name.removesuffix('-healthy')} " in (folder / "README.md").read_text()


@pytest.mark.parametrize("name", FAULTY)
def test_a_pair_fits_together(name: str) -> None:
    truth = TRUTHS[name]
    healthy = TRUTHS[truth["twin"]["healthy"]]
    assert healthy["name"] == f"{name}-healthy"
    assert not healthy["faults"]
    for key in ("world_size", "layout", "steps", "seed", "producer"):
        assert truth[key] == healthy[key], key
    with_ms = statistics.fmean(truth["measured"]["job_steps_ms"])
    without_ms = statistics.fmean(healthy["measured"]["job_steps_ms"])
    twin = truth["twin"]
    assert twin["step_ms"] == pytest.approx(with_ms, abs=0.01)
    assert twin["healthy_step_ms"] == pytest.approx(without_ms, abs=0.01)
    assert twin["measured_cost_ms"] == pytest.approx(with_ms - without_ms, abs=0.01)
    if len(truth["faults"]) == 1:
        assert truth["faults"][0]["measured_cost_ms"] == twin["measured_cost_ms"]
    for fault in truth["faults"]:
        # A fault that costs less than this is no measure of a cost.
        assert fault["measured_cost_ms"] > 0.1 * twin["healthy_step_ms"]
        assert set(fault["steps"]) <= set(
            range(truth["steps"]["first"], truth["steps"]["last"] + 1)
        )


@pytest.mark.parametrize(
    "name", soak(TRUTHS, fast=[n for n in TRUTHS if n.removesuffix("-healthy") in FIRST])
)
def test_the_measured_steps_are_those_of_the_traces(name: str) -> None:
    measured = TRUTHS[name]["measured"]["job_steps_ms"]
    assert trace_steps_ms(name) == pytest.approx(measured, rel=0.01, abs=1.0)


@pytest.mark.parametrize("name", HEALTHY)
def test_the_healthy_twin_is_steady(name: str) -> None:
    steps = TRUTHS[name]["measured"]["job_steps_ms"]
    assert statistics.pstdev(steps) / statistics.fmean(steps) < 0.05


@functools.cache
def judged(name: str) -> Judged:
    return judge(samples.diagnosis(TWINS / name), TRUTHS[name], {})


@pytest.mark.parametrize(
    "name", soak(TRUTHS, fast=[n for n in TRUTHS if n.removesuffix("-healthy") in FIRST])
)
def test_nobody_innocent_and_no_decoy_is_accused(name: str, request: pytest.FixtureRequest) -> None:
    if name in ACCUSED:
        request.applymarker(pytest.mark.xfail(reason=ACCUSED[name], strict=True))
    found = judged(name)
    assert (found.innocents, found.decoys) == ((), ())


@pytest.mark.parametrize("name", soak(FAULTY, fast=[n for n in FAULTY if n in FIRST]))
def test_every_cost_says_how_it_was_got(name: str) -> None:
    for finding in samples.diagnosis(TWINS / name).findings:
        says_how_its_cost_was_got(finding)


def test_two_faults_cost_what_a_step_takes_less_without_each() -> None:
    """The stall hides the slow rank in the steps that both are in: without both a step takes 132 ms
    less, without the one or the other 32 and 89."""
    truth = TRUTHS["ddp-two-faults"]
    assert truth["twin"]["measured_cost_ms"] == pytest.approx(132, rel=0.01)
    measured = {f["fault"]: f["measured_cost_ms"] for f in truth["faults"]}
    said = {f.fault: f.printed_ms for f in judged("ddp-two-faults").faults}
    assert said == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("name", soak(FAULTY, fast=[n for n in FAULTY if n in (*FIRST, *UNNAMED)]))
def test_each_fault_is_named_where_it_is(name: str, request: pytest.FixtureRequest) -> None:
    if name in UNNAMED:
        request.applymarker(pytest.mark.xfail(reason=UNNAMED[name], strict=True))
    assert [f.fault for f in judged(name).faults if f.named_by is None] == []

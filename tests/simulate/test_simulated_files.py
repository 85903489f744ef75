"""What is written: the same bytes for the same seed, and what the ordinary ingestor reads of it."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from soaks import soak
from tracekit import api
from tracekit.errors import UsageError
from tracekit.simulate import Request, prepare, write
from tracekit.simulate.kineto import HostClock
from tracekit.simulate.network import LinkState

SCHEMA = Path(__file__).parents[2] / "fixtures" / "truth.schema.json"


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    request = Request("slow-gpu+gc-pause", 4, 9, "ddp", steps_count=3)
    write(request, tmp_path / "one")
    write(request, tmp_path / "two")
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    write(Request("slow-gpu+gc-pause", 4, 10, "ddp", steps_count=3), tmp_path / "other")
    assert digests(tmp_path / "one") != digests(tmp_path / "other")


def test_what_is_written(tmp_path: Path) -> None:
    truth = write(Request("slow-gpu", 4, 1, "ddp", steps_count=3, decoys=()), tmp_path / "job")
    names = {p.name for p in (tmp_path / "job").iterdir()}
    traces = {f"rank{r}.pt.trace.json.gz" for r in range(4)}
    logs = {f"nccl.gpu-00.{20_000 + r}.log" for r in range(4)}
    assert names == {"job.toml", "truth.json", ".tracekit-simulated.json"} | traces | logs
    assert json.loads((tmp_path / "job" / "truth.json").read_text()) == truth
    job = tomllib.loads((tmp_path / "job" / "job.toml").read_text())
    assert job["parallelism"]["dp"] == 4
    text = (tmp_path / "job" / "job.toml").read_text()
    assert "seed" not in text and "rank =" not in text


@pytest.mark.parametrize(
    "scenario",
    soak(
        ["none", "slow-gpu", "stage-imbalance", "hot-expert", "collective-hang", "link-degraded"],
        fast=["none", "collective-hang"],
    ),
)
def test_truth_has_the_schema(tmp_path: Path, scenario: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    layout = "" if scenario != "none" else "tp2-pp2-m2"
    truth = write(Request(scenario, 16, 3, layout, steps_count=3), tmp_path / "job")
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(truth)


def counts(request: Request) -> dict[str, int]:
    """What was simulated, from the event list itself."""
    kernels = collectives = steps = 0
    for records in prepare(request).job().run():
        for record in records:
            steps += 1
            collectives += sum(o.transfer is not None for o in record.operations)
            kernels += len(record.operations)
    return {"operations": kernels, "collectives": collectives, "steps": steps}


def read(folder: Path, run: Path) -> dict[str, Any]:
    paths = sorted(folder.glob("*.gz"))
    with api.ingest(list(paths), run=run, job=[folder / "job.toml"], workers=1) as opened:
        frame = opened.sql(
            "SELECT (SELECT count(*) FROM gpu_op) AS operations, "
            "(SELECT count(*) FROM collective) AS collectives, "
            "(SELECT count(*) FROM collective WHERE group_id IS NULL) AS groupless, "
            "(SELECT count(*) FROM collective WHERE step IS NULL) AS stepless, "
            "(SELECT count(*) FROM step) AS steps, "
            "(SELECT count(DISTINCT rank) FROM step) AS ranks, "
            "(SELECT count(*) FROM source WHERE status <> 'ok') AS bad"
        )
    row: dict[str, Any] = frame.row(0, named=True)
    return row


@pytest.mark.parametrize(
    "layout",
    soak(
        ["ddp", "fsdp", "tp2-sp-pp2-m2", "ep4", "cp2", "pp4-vpp2-m4", "tp2-pp2-m2-titan"],
        fast=["tp2-sp-pp2-m2"],
    ),
)
def test_the_ordinary_ingestor_reads_it_back(tmp_path: Path, layout: str) -> None:
    request = Request("none", 8, 2, layout, steps_count=2, decoys=())
    write(request, tmp_path / "job")
    simulated, found = counts(request), read(tmp_path / "job", tmp_path / "run")
    assert {k: found[k] for k in simulated} == simulated
    assert (found["ranks"], found["bad"], found["groupless"], found["stepless"]) == (8, 0, 0, 0)


def test_old_schema_has_no_metadata_but_all_operations(tmp_path: Path) -> None:
    request = Request("none", 4, 2, "ddp", steps_count=2, style="kineto-old", decoys=())
    write(request, tmp_path / "job")
    simulated, found = counts(request), read(tmp_path / "job", tmp_path / "run")
    assert found["operations"] == simulated["operations"]
    assert found["collectives"] == simulated["collectives"]
    document = json.loads(gzip.decompress((tmp_path / "job/rank0.pt.trace.json.gz").read_bytes()))
    assert "baseTimeNanoseconds" not in document
    assert all(isinstance(e["ts"], int) for e in document["traceEvents"])
    assert not any("Collective name" in e["args"] for e in document["traceEvents"])


def test_gloo_runs_on_the_host(tmp_path: Path) -> None:
    request = Request("none", 4, 2, "ddp", steps_count=2, style="gloo", decoys=())
    write(request, tmp_path / "job")
    simulated, found = counts(request), read(tmp_path / "job", tmp_path / "run")
    assert found["operations"] == 0
    assert found["collectives"] == simulated["collectives"] > 0
    document = json.loads(gzip.decompress((tmp_path / "job/rank0.pt.trace.json.gz").read_bytes()))
    assert document["deviceProperties"] == []
    categories = {e["cat"] for e in document["traceEvents"]}
    assert categories == {"cpu_op", "user_annotation", "Trace"}


def test_kernels_link_to_launches_and_operators(tmp_path: Path) -> None:
    write(Request("none", 2, 2, "ddp", steps_count=2, decoys=()), tmp_path / "job")
    raw = gzip.decompress((tmp_path / "job/rank1.pt.trace.json.gz").read_bytes())
    events = json.loads(raw)["traceEvents"]
    launches = {e["args"]["correlation"]: e for e in events if e["cat"] == "cuda_runtime"}
    operators = {e["args"]["External id"]: e for e in events if "External id" in e["args"]
                 and e["cat"] in ("cpu_op", "user_annotation")}  # fmt: skip
    kernels = [e for e in events if e["cat"] == "kernel"]
    assert kernels
    for kernel in kernels:
        launch = launches[kernel["args"]["correlation"]]
        assert launch["ts"] <= kernel["ts"]
        operator = operators[kernel["args"]["External id"]]
        assert operator["ts"] <= launch["ts"] <= operator["ts"] + operator["dur"]


def test_clocks_of_hosts_differ_only_in_the_files(tmp_path: Path) -> None:
    scenario = prepare(Request("none", 16, 5, "ddp", steps_count=2))
    offsets = {c.offset_ns for c in scenario.clocks.values()}
    assert len(scenario.clocks) == len(offsets) == 2
    clock = HostClock(offset_ns=250_000, drift_ppb=20_000)
    assert clock.read(0) == 250_000
    assert clock.read(10**9) - clock.read(0) == 10**9 + 20_000


def test_a_missing_rank_is_not_written(tmp_path: Path) -> None:
    request = Request("none", 4, 1, "ddp", steps_count=2, decoys=("missing-rank",))
    truth = write(request, tmp_path / "job")
    (missing,) = truth["decoys"][0]["where"]["ranks"]
    assert not (tmp_path / "job" / f"rank{missing}.pt.trace.json.gz").exists()
    assert len(list((tmp_path / "job").glob("*.gz"))) == 3


def test_the_missing_rank_is_not_the_culprit() -> None:
    missing = [
        (job.unwritten, set(job.faults[0][1].ranks))
        for seed in range(60)
        if (job := prepare(Request("slow-gpu", 4, seed, "ddp"))).unwritten
    ]
    assert len(missing) > 1
    assert not any(unwritten & culprits for unwritten, culprits in missing)


def test_pods_name_hosts_of_their_own(tmp_path: Path) -> None:
    request = Request("none", 4, 1, "ddp", steps_count=2, decoys=("one-gpu-pods",))
    write(request, tmp_path / "job")
    names = {
        json.loads(gzip.decompress(p.read_bytes()))["host_name"]
        for p in (tmp_path / "job").glob("*.gz")
    }
    assert len(names) == 4


def test_nothing_of_others_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("keep")
    with pytest.raises(UsageError):
        write(Request("none", 2, steps_count=1), folder)
    with pytest.raises(UsageError):
        write(Request("none", 2, steps_count=1), folder, force=True)
    assert (folder / "thesis.txt").read_text() == "keep"
    write(Request("none", 2, steps_count=1), tmp_path / "job")
    with pytest.raises(UsageError):
        write(Request("none", 2, steps_count=1), tmp_path / "job")
    write(Request("none", 2, steps_count=1), tmp_path / "job", force=True)
    for name, text in (("thesis.txt", "keep"), ("job.toml", "corrected by hand")):
        (tmp_path / "job" / name).write_text(text)
        with pytest.raises(UsageError, match="not as simulate wrote it"):
            write(Request("none", 2, steps_count=1), tmp_path / "job", force=True)
        assert (tmp_path / "job" / name).read_text() == text
        (tmp_path / "job" / name).unlink()
    (folder / "truth.json").write_text("{}")
    with pytest.raises(UsageError, match="no simulated job"):
        write(Request("none", 2, steps_count=1), folder, force=True)
    assert (folder / "thesis.txt").read_text() == "keep"


@pytest.mark.parametrize(
    "scenario", ["slow-gpus", "slow-gpu:x", "slow-gpu:-1", "stage-imbalance:nan"]
)
def test_scenarios_that_do_not_exist(scenario: str) -> None:
    with pytest.raises(UsageError):
        prepare(Request(scenario, 8, 0, "ddp"))


def test_a_fault_needs_its_layout() -> None:
    with pytest.raises(UsageError):
        prepare(Request("hot-expert", 8, 0, "ddp"))


def test_the_truth_names_hosts_as_the_files_do(tmp_path: Path) -> None:
    for decoys, hosts in (
        ((), ["gpu-00", "gpu-01"]),
        (("one-gpu-pods",), [f"trainer-{r}" for r in range(8)]),
    ):
        request = Request("power-brake", 8, 1, "ddp", steps_count=2, decoys=decoys, layers=2)
        truth = write(request, tmp_path / "-".join(("job", *decoys)))
        where = truth["faults"][0]["where"]
        assert where["hosts"] and set(where["hosts"]) < set(hosts)
        if decoys:
            assert where["hosts"] == [f"trainer-{r}" for r in where["ranks"]]


@pytest.mark.parametrize("fault", ["wrong-nic", "shm-instead-of-p2p"])
def test_what_shows_by_a_shared_machine_is_not_hidden_in_pods(fault: str) -> None:
    jobs = [prepare(Request(fault, 8, seed)) for seed in range(40)]
    assert not any(job.is_pods for job in jobs)
    assert any(job.is_pods for job in (prepare(Request("slow-gpu", 8, s)) for s in range(40)))


def test_links_are_clean_without_faults() -> None:
    assert prepare(Request("none", 8)).links(10) == LinkState()


_DIGEST = """
import hashlib, sys
from pathlib import Path
from tracekit.simulate import Request, write

root = Path(sys.argv[1])
for style, layout in (("mixed", "tp2-pp2-m2"), ("kineto-old", "ep4")):
    out = root / style
    write(
        Request("slow-gpu", 8, 4, layout, 2, style, nccl="coll", counters="all", layers=4), out
    )
digest = hashlib.sha256()
for path in sorted(p for p in root.rglob("*") if p.is_file()):
    digest.update(f"{path.relative_to(root)} ".encode() + path.read_bytes())
print(digest.hexdigest())
"""


@pytest.mark.slow  # each writer has such a test in one process
def test_the_same_seed_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    """All writers: profiler traces, nsys exports, NCCL logs with calls, all counters."""
    found = []
    for salt in ("0", "4242"):
        command = [sys.executable, "-c", _DIGEST, str(tmp_path / salt)]
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.append(done.stdout)
    names = {p.suffix for p in tmp_path.rglob("*") if p.is_file()}
    assert names >= {".gz", ".sqlite", ".log", ".prom", ".json", ".txt"}
    assert len(set(found)) == 1

"""Pipelines whose traces name no microbatch, and do not say with whom a rank exchanged what.

Recorded jobs from whose files names and peers are cut are held against the whole files.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import tracekit
from soaks import soak
from tracekit.derive.unnamed import _by_work, _extent, _Kernels, _Messages, _taken_apart
from tracekit.simulate import Request, write

RECORDED = Path(__file__).parents[1] / "fixtures" / "recorded"
NAMED = re.compile(r"PP:\d.*|(?:Forward|Backward) \d+")
OPERATIONS = """
SELECT operation, pp_rank, dp_rank, count(*) AS n, avg(end_ns - start_ns) AS mean_ns
FROM pipeline_op GROUP BY ALL ORDER BY ALL
"""


def cut(case: str, folder: Path, *, peers: bool = True, ranks: int = 4, first: int = 0) -> Path:
    """A recorded pipeline of four ranks without names, and without peers: as every so many-th rank
    of a job of so many, from the first on."""
    folder.mkdir(exist_ok=True)
    for path in sorted((RECORDED / case).glob("*.json.gz")):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        info = trace["distributedInfo"]
        info["rank"] = first + info["rank"] * (ranks // 4)
        info["world_size"] = ranks
        trace["traceEvents"] = [
            e for e in trace["traceEvents"] if not NAMED.fullmatch(e.get("name", ""))
        ]
        for event in trace["traceEvents"]:
            if peers and event.get("name") in ("c10d::send", "c10d::recv_"):
                event["args"].pop("Concrete Inputs", None)
        (folder / f"rank{info['rank']}.json").write_text(json.dumps(trace))
    return folder


def operations(path: Path) -> pl.DataFrame:
    return tracekit.open(path).sql(OPERATIONS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "peers"),
    soak(
        [
            ("pp-healthy", True),
            ("pp-1f1b-healthy", True),
            ("pp-1f1b-healthy", False),
            ("pp-uneven-stages", True),
        ],
        fast=[("pp-1f1b-healthy", False), ("pp-uneven-stages", True)],
    ),
)
def test_operations_are_those_of_the_whole_files(case: str, peers: bool, tmp_path: Path) -> None:
    whole, found = operations(RECORDED / case), operations(cut(case, tmp_path / "job", peers=peers))
    keys = ["operation", "pp_rank", "dp_rank", "n"]
    assert found.select(keys).rows() == whole.select(keys).rows()
    # A forward holds what lies before its range, too: a tenth of four milliseconds.
    for one, other in zip(found["mean_ns"], whole["mean_ns"], strict=True):
        assert one == pytest.approx(other, rel=0.1, abs=200_000)


def test_the_uneven_stage_is_named_at_its_price(tmp_path: Path) -> None:
    run = tracekit.open(cut("pp-uneven-stages", tmp_path / "job"))
    report = run.diagnose(select=["stage-imbalance"])
    assert report.document.verdict.finding == "stage-imbalance/3"
    assert report.findings[0].impact.s_per_step == pytest.approx(0.0960, rel=0.05)  # whole files
    assert any("microbatches found from messages" in n for n in report.notes.data_lines)


def test_an_even_pipeline_has_its_bubble_and_no_finding(tmp_path: Path) -> None:
    report = tracekit.open(cut("pp-1f1b-healthy", tmp_path / "job")).diagnose()
    assert report.document.verdict.kind == "inherent"
    assert "the bubble that 4 stages with 8 microbatches make" in report.document.verdict.sentence
    assert {f.rule for f in report.findings} <= {"exposed-communication"}


def test_chunks_in_a_ring_are_no_pattern_of_one_pipeline(tmp_path: Path) -> None:
    run = tracekit.open(cut("pp-interleaved-healthy", tmp_path / "job"))
    assert run.sql("FROM pipeline_op").is_empty()
    report = run.diagnose(select=["stage-imbalance"])
    assert any("their pattern is not that of one" in n for n in report.notes.data_lines)


@pytest.mark.slow
def test_of_two_pipelines_job_toml_says_who_is_in_which(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    for first in (0, 1):
        cut("pp-1f1b-healthy", folder, ranks=8, first=first)
    assert operations(folder).is_empty()
    (folder / "job.toml").write_text(
        "[parallelism]\npp = 4\ntp = 1\ndp = 2\n[clocks]\nshared = true\n"
    )
    found = operations(folder).filter(pl.col("operation") == "forward-compute")
    assert found.select("pp_rank", "dp_rank", "n").rows() == [
        (stage, replica, 48) for stage in range(4) for replica in range(2)
    ]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A GPU job of four stages with every name, and the stage that has most to do."""
    folder = tmp_path_factory.mktemp("simulated") / "job"
    request = Request(
        "stage-imbalance", 4, 5, "pp4-m8", 2, layers=12, decoys=(), nccl="none", counters="none"
    )
    truth: dict[str, Any] = write(request, folder)
    (stage,) = truth["faults"][0]["where"]["stages"]
    return folder, int(stage)


def without_words(whole: Path, folder: Path, *, together: bool) -> Path:
    """The same traces with no microbatch, no word of what a send-receive is and with whom; where
    ``together``, a send and a receive between two operations are one kernel."""
    folder.mkdir()
    for path in sorted(whole.glob("*.json.gz")):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        events = [
            e
            for e in trace["traceEvents"]
            if not re.fullmatch(r"forward|backward|(?:nccl:|c10d::|record_param).*", e["name"])
        ]
        launched = {
            e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") == "cuda_runtime"
        }
        kernels = [e for e in events if e.get("cat") == "kernel"]
        before: dict[str, Any] = {}
        gone = set()
        for kernel in sorted(kernels, key=lambda e: launched[e["args"]["correlation"]]):
            is_message, args = "SendRecv" in kernel["name"], kernel["args"]
            word = args.get("Collective name")
            if is_message and together and word == "recv" and before.get("word") == "send":
                first = before["kernel"]
                first["dur"] = max(first["dur"], kernel["ts"] + kernel["dur"] - first["ts"])
                gone.add(args["correlation"])
            if is_message:
                known = ("External id", "device", "context", "stream", "correlation")
                kernel["args"] = {k: args[k] for k in known}
                before = {"kernel": kernel, "word": word}
            elif "nccl" not in kernel["name"]:
                before = {}
        trace["traceEvents"] = [
            e for e in events if e.get("args", {}).get("correlation") not in gone
        ]
        (folder / path.stem).write_text(json.dumps(trace))
    return folder


@pytest.mark.parametrize("together", soak([True, False], fast=[True]))
@pytest.mark.slow  # another job through the same lines
def test_send_receives_alone_show_the_stages_and_their_operations(
    together: bool, simulated: tuple[Path, int], tmp_path: Path
) -> None:
    folder, stage = simulated
    whole = operations(folder)
    run = tracekit.open(without_words(folder, tmp_path / "job", together=together))
    assert set(run.sql("SELECT op FROM collective WHERE is_p2p")["op"]) == {"send_recv"}
    found = run.sql(OPERATIONS)
    keys = ["operation", "pp_rank", "dp_rank", "n"]
    is_compute = pl.col("operation").str.ends_with("compute")
    assert found.select(keys).rows() == whole.select(keys).rows()
    for one, other in zip(
        found.filter(is_compute)["mean_ns"], whole.filter(is_compute)["mean_ns"], strict=True
    ):
        assert one == pytest.approx(other, rel=0.02)
    report = run.diagnose(select=["stage-imbalance"])
    assert report.document.verdict.finding == f"stage-imbalance/{stage}"


# --- by eye: three ranks, two microbatches, a forward takes 10 and a backward 20 ------------------

FORWARD, BACKWARD = 1, -2
SCHEDULE = {
    0: "F send F send recv B recv B",
    1: "recv F send recv F send recv B send recv B send",
    2: "recv F recv F B send B send",
}


def schedule(order: tuple[int, ...] = (0, 1, 2)) -> dict[int, tuple[_Messages, _Kernels]]:
    """What the ranks of a pipeline did, each on the rank's place in ``order``."""
    jobs: dict[int, tuple[_Messages, _Kernels]] = {}
    for place, rank in enumerate(order):
        now = 100 * place
        messages = _Messages([], [], [], [], [], [], [])
        work: list[tuple[int, int, int]] = []
        for word in SCHEDULE[place].split():
            if word in ("F", "B"):
                took = 10 if word == "F" else 20
                work.append((now, FORWARD if word == "F" else BACKWARD, now + took))
                now += took
            else:
                for times in (messages.launch, messages.start, messages.job_start):
                    times.append(now)
                for times in (messages.end, messages.job_end):
                    times.append(now + 500)
                messages.op.append(word)
                messages.peer.append(-1)
                now += 1
        launch, thread, end = (np.array(column, np.int64) for column in zip(*work, strict=True))
        jobs[rank] = messages, _Kernels(launch, thread, launch, end)
    return jobs


def stages(
    jobs: dict[int, tuple[_Messages, _Kernels]], stated: tuple[tuple[int, ...], ...] = ()
) -> tuple[dict[int, int], str]:
    return _by_work(
        {(0, 7, rank): messages for rank, (messages, _) in jobs.items()},
        {(0, 7, rank): kernels for rank, (_, kernels) in jobs.items()},
        stated,
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_the_ends_lack_a_kind_of_message_and_the_rest_lies_between(order: tuple[int, ...]) -> None:
    jobs = schedule(order)
    assert stages(jobs) == ({rank: place for place, rank in enumerate(order)}, "")
    assert jobs[order[1]][0].peer == [
        *(order[k] for k in (0, 2, 0, 2)), *(order[k] for k in (2, 0, 2, 0))
    ]  # fmt: skip


def _silent(jobs: dict[int, tuple[_Messages, _Kernels]]) -> Iterator[str]:
    """The ways in which a pipeline can be none, each done to the jobs."""
    jobs[5] = schedule()[0]
    yield "two first stages"
    del jobs[5]
    jobs[1][0].op.pop()
    jobs[1][0].launch.pop()
    yield "a message that is missing"


def test_what_is_no_chain_is_not_forced_into_one() -> None:
    for why in _silent(jobs := schedule()):
        found, reason = stages(jobs)
        assert found == {}, why
        assert "their pattern is not that of one pipeline" in reason


def test_a_message_that_ends_before_it_begins_is_not_believed() -> None:
    jobs = schedule()
    jobs[1][0].job_end[0] = -60_000  # the first activation is there before it is sent
    found, reason = stages(jobs)
    assert found == {}
    assert "end before they begin" in reason


def test_a_layout_that_does_not_hold_the_ranks_is_none() -> None:
    assert stages(schedule(), ((0, 1, 2),))[0] == {0: 0, 1: 1, 2: 2}
    assert stages(schedule(), ((0, 1, 2, 3),))[0] == {}
    assert stages(schedule(), ((1, 0, 2),))[0] == {}


# --- send-receives: what is sent after one operation and what is received before the next ---------

COALESCED = {
    0: "F send F both B recv B",
    1: "recv F both F both B both B send",
    2: "recv F B both F B send",
}
"""One forward, one backward: what follows an operation and what the next one needs are one call
where the other stage waits for both."""
FILLED = {
    0: "F send F send F send recv B recv B recv B",
    1: "recv F send recv F send recv F send recv B send recv B send recv B send",
    2: "recv F recv F recv F B send B send B send",
}
"""All forwards first, and each half a call of its own."""


def together(words: dict[int, str], rank: int) -> tuple[_Messages, _Kernels]:
    """A rank whose messages are all send-receives, and its work; an optimizer ends the step."""
    now, launches, work = 0, [], []
    for word in words[rank].split():
        if word in ("F", "B"):
            work += [(now + k, FORWARD if word == "F" else BACKWARD, now + k + 10) for k in (0, 10)]
            now += 20
        else:
            launches.append(now)
            now += 1
    work.append((now, FORWARD, now + 10))
    ends = [ns + 500 for ns in launches]
    launch, thread, end = (np.array(column, np.int64) for column in zip(*work, strict=True))
    count = len(launches)
    return (
        _Messages(["send_recv"] * count, launches, launches, ends, [-1] * count, launches, ends),
        _Kernels(launch, thread, launch, end),
    )


@pytest.mark.parametrize("words", [COALESCED, FILLED])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_send_receive_is_what_the_gaps_between_operations_leave(
    words: dict[int, str], rank: int
) -> None:
    said = [w.replace("both", "send recv") for w in words[rank].split() if w not in ("F", "B")]
    found = _taken_apart(*together(words, rank))
    assert found.op == " ".join(said).split()
    assert set(found.peer) == {-1}


@pytest.mark.parametrize(
    "words",
    [
        "recv F send send recv B send",  # three in a gap
        "recv F B send B",  # a backward after the last message
        "send",
    ],
)
def test_send_receives_of_no_stage_are_not_taken_apart(words: str) -> None:
    assert _taken_apart(*together({0: words}, 0)).op == []
    assert _taken_apart(together({0: words}, 0)[0], None).op == []


def test_experts_exchange_in_every_operation_and_are_no_stages() -> None:
    """Each rank does what a first stage does; none is last, whatever a layout says."""
    jobs = {}
    for rank in range(3):
        messages, kernels = together({rank: "F both F both F both B both B both B"}, rank)
        jobs[rank] = _taken_apart(messages, kernels), kernels
        assert set(jobs[rank][0].op) == {"send", "recv"}
    assert stages(jobs)[0] == stages(jobs, ((0, 1, 2),))[0] == {}


def test_every_schedule_of_the_tests_is_even() -> None:
    for one, following in pairwise(SCHEDULE.values()):
        assert one.count("F") == one.count("B") == following.count("F")


@pytest.mark.parametrize(
    ("starts", "ends", "waited", "extent"),
    [
        # The last, empty operator comes when an earlier send has ended: a wait, no computation.
        ([0, 100, 900], [90, 200, 905], [890], (0, 200)),
        # As before the first one.
        ([0, 700, 800], [5, 790, 900], [650], (700, 900)),
        # Nothing ended meanwhile, or long before it went on: it stood still by itself.
        ([0, 100, 900], [90, 200, 905], [], (0, 905)),
        ([0, 100, 900], [90, 200, 905], [300], (0, 905)),
        # Behind the wait it computes as before.
        ([0, 100, 900], [90, 200, 1000], [890], (0, 1000)),
        ([0, 100], [90, 200], [95], (0, 200)),
    ],
)
def test_an_operation_ends_where_it_only_waits_on(
    starts: list[int], ends: list[int], waited: list[int], extent: tuple[int, int]
) -> None:
    assert _extent(np.array(starts), np.array(ends), waited) == extent

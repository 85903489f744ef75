"""The timeline: what a trace viewer demands of the file, and that nothing is lost on the way."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st

from soaks import soak
from tracekit import api
from tracekit.errors import UsageError
from tracekit.store import Selection
from tracekit.timeline import (
    MAX_LANES,
    SLACK_NS,
    Lanes,
    Mark,
    RankLine,
    Slice,
    plan,
    write,
)
from traces import BASE_NS, make_trace, write_job, write_trace

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
Event = dict[str, Any]


def read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    document: dict[str, Any] = json.loads(
        gzip.decompress(data) if path.suffix == ".gz" else data, parse_float=_exact
    )
    return document


def _exact(text: str) -> float:
    _, _, digits = text.partition(".")
    assert len(digits) <= 3, f"finer than a nanosecond: {text}"
    return float(text)


def ns(us: float) -> int:
    return round(us * 1000)


def check(document: dict[str, Any]) -> dict[str, Any]:
    """What the viewer demands; returns counts. It reads events in order of time, and those of one
    time in the order of the file; a slice that overlaps another without lying inside is dropped,
    and an arrow's point belongs to the innermost slice that is open then."""
    events: list[Event] = document["traceEvents"]
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert len(threads) == sum(e["name"] == "thread_name" for e in events)
    assert len({tid for _, tid in threads}) == len(threads)
    processes = [e["pid"] for e in events if e["name"] == "process_name"]
    assert len(set(processes)) == len(processes)
    assert {pid for pid, _ in threads} <= set(processes)
    assert min(processes) > 0
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        assert event["ph"] in "MXstf"
        assert event["ts"] >= 0
        if event["ph"] != "M":
            assert (event["pid"], event["tid"]) in threads
            tracks[event["pid"], event["tid"]].append(event)
    flows: dict[int, list[tuple[int, str, Event]]] = defaultdict(list)
    slices = 0
    for track in tracks.values():
        open_slices: list[tuple[int, int, Event]] = []
        for event in sorted(track, key=lambda e: ns(e["ts"])):
            now = ns(event["ts"])
            while open_slices and open_slices[-1][1] <= now and open_slices[-1][0] < now:
                open_slices.pop()
            if event["ph"] != "X":
                assert open_slices, "an arrow that touches nothing"
                flows[event["id"]].append((now, event["ph"], open_slices[-1][2]))
                continue
            end = now + ns(event["dur"])
            while open_slices and open_slices[-1][1] <= now:
                open_slices.pop()
            assert not open_slices or end <= open_slices[-1][1], "overlaps without nesting"
            open_slices.append((now, end, event))
            slices += event["cat"] != "finding"
    for points in flows.values():
        points.sort(key=lambda p: (p[0], "stf".index(p[1])))
        phases = "".join(p[1] for p in points)
        assert phases == "s" + "t" * (len(points) - 2) + "f", phases
        # Each point lies in a slice of the same call, and each on a rank of its own.
        assert len({p[2]["pid"] for p in points}) == len(points) > 1
        assert len({(p[2]["args"]["group_id"], p[2]["args"]["sequence"]) for p in points}) == 1
        assert len({p[2]["args"]["op"] for p in points} - {"send", "recv"}) <= 1
    return {"slices": slices, "arrows": len(flows), "flows": flows}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four ranks, of which the last waits for input in steps 5 to 10, as a run."""
    folder = tmp_path_factory.mktemp("job")
    write_job(folder / "files", world_size=4, stall_ms=30)
    api.ingest(folder / "files", run=folder / "run").close()
    return folder / "run"


def drawn(run: Path, path: Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    selection = options.pop("selection", None)
    with api.open(run, selection=selection) as opened:
        written = opened.timeline(path, **options)
    return written, read(path)


# ---------------------------------------------------------------- a job


def test_every_row_is_drawn_once_and_collectives_are_joined(job: Path, tmp_path: Path) -> None:
    written, document = drawn(job, tmp_path / "t.json.gz")
    found = check(document)
    with api.open(job) as run:
        counts = run.sql(
            "SELECT (SELECT count(*) FROM gpu_op) + (SELECT count(*) FROM host_op)"
            " + (SELECT count(*) FROM step)"
            " + (SELECT count(*) FROM annotation WHERE domain <> 'profiler_step') AS n"
        )["n"][0]
    assert found["slices"] == written.slices_count == counts
    assert found["arrows"] == written.arrows_count == 6
    assert written.left_out == {}
    # Each arrow ends at the rank that the others waited for.
    for points in found["flows"].values():
        assert len(points) == 4
        assert points[-1][2]["pid"] - 1 == 3
        assert points[0][2]["args"]["waits_for_rank"] == 3
        assert points[0][2]["args"]["wait_us"] == pytest.approx(30_000, abs=500)


def test_tracks_are_named_and_in_order(job: Path, tmp_path: Path) -> None:
    _, document = drawn(job, tmp_path / "t.json")
    events = document["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [names[pid] for pid in sorted(names)] == [
        *(f"rank {rank} on node0" for rank in range(4)),
        "findings",
    ]
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert sorted(names, key=lambda pid: order[pid])[0] == max(names)
    of_rank = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 1]
    assert of_rank == ["steps", "thread 1000", "GPU 0 stream 7", "GPU 0 stream 20"]


def test_times_are_the_runs_own(job: Path, tmp_path: Path) -> None:
    _, document = drawn(job, tmp_path / "t.json")
    assert document["otherData"]["zero_utc"].startswith("2026-07-21T03:01:07")
    origin = int(document["otherData"]["origin_ns"])
    kernels = [e for e in document["traceEvents"] if e["ph"] == "X" and e["name"] == "gemm"]
    with api.open(job) as run:
        expected = run.sql("SELECT start_ns, dur_ns FROM gpu_op WHERE name = 'gemm' ORDER BY ALL")
    assert sorted((ns(e["ts"]) + origin, ns(e["dur"])) for e in kernels) == expected.rows()


def test_findings_are_marked_in_their_steps_and_on_their_rank(job: Path, tmp_path: Path) -> None:
    written, document = drawn(job, tmp_path / "t.json")
    marks = [e for e in document["traceEvents"] if e.get("cat") == "finding"]
    own = [e for e in marks if "dataloader-stall/3" in e["args"]["finding"]]
    assert {e["pid"] for e in own} == {4, 1_000_000_000}
    assert written.findings_count >= 1
    assert all("waits 30.0 ms for input" in e["name"] for e in own)
    steps = [e for e in document["traceEvents"] if e.get("cat") == "step"]
    assert min(e["ts"] for e in own) >= min(e["ts"] for e in steps)
    assert max(e["ts"] + e["dur"] for e in own) <= max(e["ts"] + e["dur"] for e in steps)
    assert drawn(job, tmp_path / "bare.json", findings=False)[0].findings_count == 0


@pytest.mark.slow  # whole commands, of which others take the same way
def test_the_same_run_gives_the_same_bytes(job: Path, tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        drawn(job, tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_selections_hold(job: Path, tmp_path: Path) -> None:
    chosen = Selection(ranks=((1, 2),), steps=((6, 7),))
    written, document = drawn(job, tmp_path / "t.json", selection=chosen)
    assert written.ranks == (1, 2)
    assert check(document)["arrows"] == 2
    names = {e["name"] for e in document["traceEvents"] if e.get("cat") == "step"}
    assert names == {"step 6", "step 7"}
    with pytest.raises(UsageError, match="there are ranks"):
        drawn(job, tmp_path / "none.json", selection=Selection(ranks=((9, 9),)))
    assert not (tmp_path / "none.json").exists()


# ---------------------------------------------------------------- size


@pytest.mark.slow
def test_what_does_not_fit_is_cut_and_said(job: Path, tmp_path: Path) -> None:
    whole, _ = drawn(job, tmp_path / "whole.json", findings=False)
    written, document = drawn(job, tmp_path / "t.json", max_slices=whole.slices_count // 2)
    check(document)
    assert 0 < written.slices_count <= whole.slices_count // 2
    assert len(written.cuts) == 1
    assert "all but 3 steps" in written.cuts[0]
    assert document["otherData"]["left_out"] == list(written.cuts)
    written, document = drawn(job, tmp_path / "t.json", max_slices=12)
    check(document)
    assert written.slices_count <= 12
    assert [c.split(":")[0].split(" (")[0] for c in written.cuts] == [
        "operators and runtime calls",
        "all but 1 step",
        "all but 2 ranks",
    ]


def load(steps: int = 10, ranks: int = 4, device: int = 10, host: int = 90) -> list[dict[str, Any]]:
    return [
        {"capture_id": 0, "step": step, "rank": rank, "device_count": device, "host_count": host}
        | {"start_ns": step * 1000, "last_start_ns": step * 1000 + 900}
        for step in range(steps)
        for rank in range(ranks)
    ]


def test_the_plan_keeps_whole_steps_around_the_finding() -> None:
    assert plan(load(), 4000).cuts == ()
    chosen = plan(load(), 1300)
    assert (chosen.detail, chosen.steps, chosen.ranks) == ("all", (4, 5, 6), None)
    assert plan(load(), 1300, focus_steps=[8, 9]).steps == (7, 8, 9)
    assert plan(load(), 1300, focus_steps=[0]).steps == (0, 1, 2)
    chosen = plan(load(), 399)
    assert (chosen.detail, chosen.steps) == ("device", tuple(range(1, 10)))
    chosen = plan(load(), 25, focus_ranks=[3])
    assert (chosen.steps, chosen.ranks) == ((5,), (0, 3))
    chosen = plan(load(), 5)
    assert (chosen.ranks, chosen.until_ns) == ((0,), 5450)
    assert len(chosen.cuts) == 4


def test_the_plan_of_a_run_without_steps_cuts_ranks_and_then_time() -> None:
    rows = [{**r, "step": None} for r in load(steps=1)]
    chosen = plan(rows, 20)
    assert (chosen.detail, chosen.steps, chosen.ranks, chosen.until_ns) == (
        "device",
        None,
        (0, 1),
        None,
    )


# ---------------------------------------------------------------- lanes

TIMES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(-900, 900)), max_size=40
)


@pytest.mark.parametrize("is_nesting", [True, False])
@given(rows=TIMES)
def test_on_a_lane_slices_nest_or_lie_apart(
    is_nesting: bool, rows: list[tuple[int, int, int]]
) -> None:
    # Multiples of ten microseconds, give or take what counts as rounding.
    given = sorted(
        ((max(0, a * 10_000 + e), max(0, d * 10_000 - abs(e))) for a, d, e in rows),
        key=lambda p: (p[0], -p[1]),
    )
    laid: dict[int, list[Slice]] = defaultdict(list)
    lanes = Lanes(is_nesting, lambda index: index, lambda piece, tid: laid[tid].append(piece))
    for number, (start, dur) in enumerate(given):
        row = {"flow_id": number if dur else None, "flow_after_ns": 0, "given": (start, dur)}
        lanes.add(Slice(row, start, start + dur))
    lanes.finish()
    drawn = [piece for pieces in laid.values() for piece in pieces]
    assert len(drawn) == len(given)
    for piece in drawn:
        start, dur = piece.row["given"]
        assert 0 <= piece.start_ns - start <= SLACK_NS
        assert 0 <= start + dur - piece.end_ns <= SLACK_NS or piece.start_ns == piece.end_ns
    for pieces in laid.values():
        for i, a in enumerate(pieces):
            for b in pieces[i + 1 :]:
                assert b.start_ns >= a.start_ns
                is_inside = b.end_ns <= a.end_ns
                assert b.start_ns >= a.end_ns or (is_nesting and is_inside)


def slices(*times: tuple[int, int], **more: Any) -> list[dict[str, Any]]:
    keys = (
        *("step", "op", "group_id", "sequence", "message_bytes", "holder_rank", "wait_ns"),
        *("flow_id", "flow_index", "flow_count", "flow_after_ns"),
    )
    return [
        {
            **dict.fromkeys(keys),
            **{"rank": 0, "track_order": 3, "device": 0, "track": 7, "source_id": 0, "place": i},
            **{"start_ns": start, "dur_ns": dur, "name": f"k{i}", "category": "compute"},
            **more,
        }
        for i, (start, dur) in enumerate(times)
    ]


def test_what_runs_at_the_same_time_gets_lanes_of_its_own(tmp_path: Path) -> None:
    rows = slices((0, 50_000), (10_000, 50_000), (49_500, 10_000), (70_000, 10))
    written = write(tmp_path / "t.json", rows, [RankLine(0, 0)])
    document = read(tmp_path / "t.json")
    check(document)
    names = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"]
    assert names == ["GPU 0 stream 7", "GPU 0 stream 7, lane 2"]
    found = {e["name"]: (e["ts"], e["dur"]) for e in document["traceEvents"] if e["ph"] == "X"}
    assert found == {"k0": (0, 49.5), "k1": (10, 50), "k2": (49.5, 10), "k3": (70, 0.01)}
    many = write(tmp_path / "many.json", slices(*[(i, 10**6) for i in range(50)]), [RankLine(0, 0)])
    assert many.slices_count == MAX_LANES
    assert list(many.left_out.values()) == [50 - MAX_LANES]
    assert written.left_out == {}


# ---------------------------------------------------------------- strangers' files


def test_hostile_names_stay_names(tmp_path: Path) -> None:
    name = 'a"\\</script>\x00\x1b[31m\u202e\ud800' + "x" * 5000
    write(tmp_path / "t.json", slices((0, 5), name=name), [RankLine(0, 0, host='h"\n')])
    text = (tmp_path / "t.json").read_bytes()
    assert b"\x1b" not in text
    assert b"\x00" not in text
    event = next(e for e in read(tmp_path / "t.json")["traceEvents"] if e["ph"] == "X")
    assert event["name"].startswith('a"\\</script>\\x00\\x1b[31m\\u202e\\ud800xxx')
    assert len(event["name"]) == 300


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "t.json.gz"
    target.write_bytes(b"before")

    def rows() -> Any:
        yield from slices((0, 5))
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        write(target, rows(), [RankLine(0, 0)])
    assert target.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["t.json.gz"]
    with pytest.raises(UsageError, match="cannot be written"):
        write(tmp_path / "no" / "t.json", slices((0, 5)), [RankLine(0, 0)])


def test_a_clock_that_is_connected_with_no_other_starts_at_zero_and_says_so(
    tmp_path: Path,
) -> None:
    for rank in range(2):
        document = make_trace(rank, base_ns=BASE_NS)
        del document["baseTimeNanoseconds"]
        document["traceEvents"] = [
            {**e, "ts": e["ts"] + rank * 10**9}
            for e in document["traceEvents"]
            if "nccl" not in e["name"]
        ]
        document["host_name"] = f"node{rank}"
        write_trace(tmp_path / "in" / f"rank{rank}.json", document)
    with api.open(tmp_path / "in") as run:
        run.timeline(tmp_path / "t.json")
    document = read(tmp_path / "t.json")
    check(document)
    assert document["otherData"]["zero_utc"] is None
    labels = [e["args"]["labels"] for e in document["traceEvents"] if e["name"] == "process_labels"]
    assert any("connected with no other" in label for label in labels)
    assert max(e["ts"] for e in document["traceEvents"]) < 10**6


def test_marks_lie_apart_and_never_before_zero(tmp_path: Path) -> None:
    mark = Mark("F1 x", "it is slow", ((0, 50_000), (60_000, 70_000)), ranks=(0,))
    write(tmp_path / "t.json", slices((20_000, 5)), [RankLine(0, 10_000)], [mark], origin_ns=10_000)
    document = read(tmp_path / "t.json")
    check(document)
    marks = [e for e in document["traceEvents"] if e.get("cat") == "finding"]
    assert Counter(e["pid"] for e in marks) == {1: 2, 1_000_000_000: 2}
    assert [(e["ts"], e["dur"]) for e in marks[:2]] == [(0, 40), (50, 10)]


# ---------------------------------------------------------------- recorded jobs


@pytest.mark.parametrize(
    ("folder", "ranks", "arrows"),
    soak(
        [
            ("kineto/megatron-tp8", 8, 84),
            ("lab/pp2dp2tp2-healthy", 8, 564),
            ("lab/ddp-badlink-host1", 4, 11),
        ],
        fast=[("lab/pp2dp2tp2-healthy", 8, 564)],  # groups of three kinds, sends among them
    ),
)
def test_recorded_jobs_are_drawn_as_a_viewer_needs_them(
    folder: str, ranks: int, arrows: int, tmp_path: Path
) -> None:
    if not (DATA / folder).is_dir():
        pytest.skip("recorded data is not on this machine")
    with samples.opened(DATA / folder) as run:
        written = run.timeline(tmp_path / "t.json.gz", findings=False)
    found = check(read(tmp_path / "t.json.gz"))
    assert (len(written.ranks), written.arrows_count) == (ranks, arrows)
    assert (found["arrows"], found["slices"]) == (arrows, written.slices_count)
    assert written.left_out == {}

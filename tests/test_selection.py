"""Selections over every table of the registry: what has no rank, host, step or time stays."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import nccl_logs
from soaks import soak
from tracekit import api, schema, store
from tracekit.errors import UsageError
from tracekit.rules import RULES
from tracekit.simulate import Request, write
from tracekit.store import Selection
from tracekit.store import manifest as manifests
from tracekit.store.selection import SUMMARIES

BASE_NS = 1_800_000_000_000_000_000
RANKS, HOSTS, STEPS = (0, 1), ("a", "b"), (1, 2)
CONTEXT = {  # source_id: attempt, capture_id, rank, host
    0: (1, 0, 0, "a"),
    1: (1, 1, 1, "b"),
    2: (None, None, None, None),
    3: (None, None, None, "a"),
    4: (1, 0, 0, None),
}
"""Rank 0 on a, rank 1 on b, a counter file of nobody, one of host a, and rank 0 without a host."""


def _values(column: schema.Column) -> tuple[Any, ...]:
    """What a column may hold that a selection looks at; one value otherwise."""
    if column.is_time:
        return (BASE_NS, BASE_NS + 1000, None)
    named = {
        "rank": (*RANKS, None),
        "host": (*HOSTS, None),
        "node": (*HOSTS, None),
        "attempt": (1, None),
        "capture_id": (0, 1, None),
        "step": (*STEPS, None),
        "host_ranks": ([0], [1], None),
        "dur_ns": (10,),
    }
    if column.name in named:
        return named[column.name]
    if column.type.endswith("[]") or column.name == "clock_id":
        return (None,)
    return ("x",) if column.type == "VARCHAR" else (False,) if column.type == "BOOLEAN" else (0,)


def _rows(table: schema.Table, source_id: int | None = None) -> pa.Table:
    """Rows with every combination of what a selection looks at (of three times at most)."""
    times = [c.name for c in table.columns if c.is_time]
    columns = [c for c in table.stored_columns if c.name != "source_id" or source_id is None]
    pools = [_values(c) if c.name not in times[3:] else (None,) for c in columns]
    names = [c.name for c in columns]
    host = CONTEXT[source_id][3] if source_id in CONTEXT else None
    made = [
        row
        for row in itertools.product(*pools)
        if _is_possible(dict(zip(names, row, strict=True)), host)
    ]
    arrays = {
        c.name: pa.array([row[i] for row in made], table.arrow_schema().field(c.name).type)
        for i, c in enumerate(columns)
    }
    if "place" in arrays:
        arrays["place"] = pa.array(range(len(made)), pa.int64())
    return pa.table(arrays)


def _is_possible(row: dict[str, Any], host: str | None) -> bool:
    """Whether a rank is on its own host and in its own window, and a node of its file's host."""
    rank, node = row.get("rank"), row.get("node")
    if node is not None and host is not None and node != host:
        return False
    return rank is None or (
        row.get("host") in (None, HOSTS[rank])
        and row.get("capture_id", rank) == rank
        and row.get("attempt", 1) == 1
    )


def _context() -> pa.Table:
    attempts, captures, ranks, hosts = zip(*CONTEXT.values(), strict=True)
    count = len(CONTEXT)
    columns = {
        "source_id": list(CONTEXT),
        "attempt": attempts,
        "capture_id": captures,
        "clock_id": [0] * count,
        "rank": ranks,
        "host": hosts,
        "offset_ns": [0] * count,
        "drift_ratio": [0.0] * count,
        "drift_origin_ns": [0] * count,
    }
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def _steps() -> pa.Table:
    made = [(source, rank, capture, step) for source, rank, capture in ((0, 0, 0), (1, 1, 1))
            for step in STEPS]  # fmt: skip
    starts = [BASE_NS + (step - 1) * 1000 for *_, step in made]
    return pa.table(
        {
            "attempt": [1] * 4,
            "source_id": [m[0] for m in made],
            "rank": [m[1] for m in made],
            "capture_id": [m[2] for m in made],
            "step": [m[3] for m in made],
            "file_step": [m[3] for m in made],
            "start_ns": starts,
            "end_ns": [s + 500 for s in starts],
            "dur_ns": [500] * 4,
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with rows in every table of the registry."""
    folder = tmp_path_factory.mktemp("selection") / "run"
    shard = store.ShardWriter(folder / "data" / "s")
    for source_id in (*CONTEXT, 5):  # nobody knows whose the last one is
        sink = shard.sink(source_id)
        for table in schema.TABLES:
            if table.kind == "source" and table.name not in ("source", "ingest_stat"):
                sink.write(table.name, _rows(table, source_id))
        sink.count("remark", doc="A remark.")
        sink.close(
            path=f"{source_id}.json",
            kind="kineto",
            status="ok",
            window_start_ns=BASE_NS,
            window_end_ns=BASE_NS + 2000,
        )
    files = [
        store.ShardFile(f.table, f"data/s/{f.path}", f.rows_count, f.file_bytes)
        for f in shard.close()
    ]
    made = {"source_context": _context(), "step": _steps()}
    for table in schema.TABLES:
        if table.kind == "derived":
            rows = made.get(table.name)
            written = store.write_table(
                folder / "derived" / "d", table.name, _rows(table) if rows is None else rows
            )
            path = f"derived/d/{written.path}"
            files.append(store.ShardFile(table.name, path, written.rows_count, written.file_bytes))
    manifest = manifests.next_generation(
        None,
        key="k",
        tracekit_version="0",
        registry_version=schema.REGISTRY_VERSION,
        job_toml=None,
        files=tuple(files),
    )
    assert manifests.commit(folder, manifest)
    return folder


@functools.cache
def _tables(folder: Path, selection: Selection) -> dict[str, set[tuple[str, ...]]]:
    with store.open_run(folder, selection) as run:
        return {
            t.name: {tuple(map(repr, row)) for row in run.sql(f"SELECT * FROM {t.name}").fetchall()}
            for t in schema.TABLES
            if t.name not in SUMMARIES  # of a part of a file they say nothing
        }


EVERYTHING = {
    "ranks": Selection(ranks=((0, 1),)),
    "more ranks than there are": Selection(ranks=((0, 7),)),
    "hosts": Selection(hosts=HOSTS),
    "steps": Selection(steps=((1, 2),)),
    "since": Selection(since_ns=BASE_NS - 1),
    "until": Selection(until_ns=BASE_NS + 5000),
    "attempt": Selection(attempt=1),
    "all options": Selection(
        ranks=((0, 1),), hosts=HOSTS, steps=((0, 9),), since_ns=0, until_ns=2 * BASE_NS, attempt=1
    ),
}


# What one option leaves out, all of them leave out.
@pytest.mark.parametrize(
    "name", soak(EVERYTHING, fast=["more ranks than there are", "all options"])
)
def test_selecting_everything_is_selecting_nothing(folder: Path, name: str) -> None:
    whole = _tables(folder, Selection())
    assert all(whole.values()), "a table without rows proves nothing"
    found = _tables(folder, EVERYTHING[name])
    assert {t: len(rows) for t, rows in found.items()} == {t: len(r) for t, r in whole.items()}
    assert found == whole


def _parts() -> Iterator[tuple[str, list[Selection]]]:
    yield "ranks", [Selection(ranks=((r, r),)) for r in RANKS]
    yield "hosts", [Selection(hosts=(h,)) for h in HOSTS]
    yield "window", [Selection(window=w) for w in (0, 1)]


PARTS = dict(_parts())


@pytest.mark.parametrize("name", soak(PARTS, fast=1))
def test_each_row_is_in_the_part_that_it_belongs_to(folder: Path, name: str) -> None:
    """What is of neither part is in both; nothing is in none."""
    whole = _tables(folder, Selection())
    one, other = (_tables(folder, part) for part in PARTS[name])
    for table in whole:
        assert one[table] | other[table] == whole[table], table
    # A counter file of nobody stays with each, as do its remarks.
    for table in ("gpu_sample", "log_event", "nccl_comm"):
        source = [c.name for c in schema.table(table).columns].index("source_id")
        nobodys = {row for row in whole[table] if row[source] == "2"}
        kept = nobodys if name != "hosts" else {r for r in nobodys if _node(table, r) is None}
        assert kept, table
        assert kept <= one[table] & other[table], table
    assert one["host_op"] != whole["host_op"] != other["host_op"]
    assert one["source"] != whole["source"] != other["source"]


def _node(table: str, row: tuple[str, ...]) -> str | None:
    names = [c.name for c in schema.table(table).columns]
    if "node" not in names or "comm_pointer" in names:
        return None
    node = row[names.index("node")]
    return None if node == "None" else node


def test_a_rank_leaves_out_what_is_known_to_be_of_another(folder: Path) -> None:
    for table, rows in _tables(folder, Selection(ranks=((1, 1),))).items():
        names = [c.name for c in schema.table(table).columns]
        if "rank" in names and table != "port":
            assert {row[names.index("rank")] for row in rows} <= {"1", "None"}, table
    with store.open_run(folder, Selection(ranks=((1, 1),))) as run:
        assert run.sql("SELECT DISTINCT source_id FROM host_op ORDER BY 1").fetchall() == [
            (1,), (2,), (3,)
        ]  # fmt: skip
        assert run.sql("SELECT DISTINCT rank FROM port ORDER BY 1").fetchall() == [
            (0,), (1,), (None,)
        ], "a port serves other ranks too"  # fmt: skip


def test_a_host_keeps_its_counters_and_leaves_out_those_of_others(folder: Path) -> None:
    with store.open_run(folder, Selection(hosts=("a",))) as run:
        nodes = run.sql("SELECT DISTINCT source_id, node FROM net_sample ORDER BY ALL").fetchall()
        # NCCL's word on a communicator stays whole.
        logged = run.sql("SELECT DISTINCT node FROM nccl_comm ORDER BY ALL").fetchall()
    assert nodes == [(s, n) for s in (0, 2, 3, 4) for n in ("a", None)]
    assert logged == [("a",), ("b",), (None,)]


def test_one_step_holds_its_rows_and_those_of_no_step(folder: Path) -> None:
    with store.open_run(folder, Selection(steps=((1, 1),))) as run:
        stated = run.sql(
            "SELECT DISTINCT source_id, step FROM gpu_op WHERE step IS NOT NULL"
        ).fetchall()
        starts = run.sql("SELECT DISTINCT source_id, start_ns FROM host_op ORDER BY ALL").fetchall()
    assert {step for _, step in stated} == {1}
    # Sources 0 and 1 have steps, so the time of a row tells; the others have none.
    assert [(s, t) for s, t in starts if s < 2] == [(s, t) for s in (0, 1) for t in (BASE_NS, None)]
    assert {t for s, t in starts if s >= 2} == {BASE_NS, BASE_NS + 1000, None}


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(ranks=((9, 9),)), "--ranks 9 selects nothing: there are ranks 0-1"),
        (Selection(ranks=((5, 6), (8, 8))), "--ranks 5-6,8 selects nothing"),
        (Selection(hosts=("c", "d")), "--hosts c,d selects nothing: there are hosts a, b"),
        (Selection(steps=((900, 910),)), "--steps 900-910 selects nothing: there are steps 1-2"),
        (Selection(attempt=2), "--attempt 2 selects nothing: there is attempt 1"),
        (Selection(window=7), "--window 7 selects nothing: there are capture windows 0-1"),
        (Selection(since_ns=BASE_NS + 9000), "selects nothing: the files cover 2027-01-15T"),
        (Selection(until_ns=BASE_NS - 9000), "selects nothing: the files cover 2027-01-15T"),
        (Selection(since_ns=2, until_ns=1), "run backwards"),
        (
            Selection(ranks=((1, 1),), window=0),
            "--ranks 1 selects nothing: there is rank 0 in what else is selected",
        ),
    ],
)
def test_a_selection_of_nothing_says_what_there_is(
    folder: Path, selection: Selection, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        store.open_run(folder, selection)
    assert message in caught.value.message
    assert caught.value.hint


# --- reports of a part ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four ranks with a culprit, and GPU counters and NCCL logs that have no rank."""
    folder = tmp_path_factory.mktemp("job")
    asked = Request("thermal-throttle", 4, 1, "ddp", 5, counters="gpu", nccl="info")
    write(asked, folder / "files")
    api.ingest(folder / "files", run=folder / "run").close()
    return folder


@pytest.fixture(scope="module")
def whole(job: Path) -> dict[str, Any]:
    return _report(job, Selection())


def _report(job: Path, selection: Selection) -> dict[str, Any]:
    with api.open(job / "run", selection=selection) as run:
        found: dict[str, Any] = msgspec.json.decode(run.diagnose().to_json())
    return found


def test_a_report_of_everything_is_the_report(job: Path, whole: dict[str, Any]) -> None:
    hosts = tuple(whole["run"]["hosts"])
    assert whole["verdict"]["finding"].startswith("thermal-throttle/")
    assert hosts
    everything = Selection(
        ranks=((0, 3),), hosts=hosts, attempt=1, window=0,
        steps=((0, 1000),), since_ns=0, until_ns=2**62,
    )  # fmt: skip
    assert _report(job, everything) == whole


def test_ranks_that_nobody_selected_are_not_missing(job: Path) -> None:
    def covered(**chosen: Any) -> list[tuple[int, str]]:
        with api.open(job / "run", selection=Selection(**chosen)) as run:
            return run.query("coverage").select("rank", "status").rows()

    every = covered()
    # Rank 1 left no trace: that stays true of whoever selects it.
    assert every == [(0, "ok"), (1, "missing"), (2, "ok"), (3, "ok")]
    assert covered(ranks=((1, 2),)) == every[1:3]
    assert covered(ranks=((2, 9),)) == every[2:]


def test_a_host_goes_by_any_of_its_names(tmp_path: Path) -> None:
    for host in ("gpu-a", "gpu-b"):
        rank = int(host == "gpu-b")
        lines = "\n".join(nccl_logs.comm_lines("2.27.7", rank))
        log = tmp_path / "logs" / f"{host}.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text(lines.replace("gpu-a:", f"{host}.example.org:") + "\n", encoding="utf-8")
    for name in ("gpu-a", "GPU-A", "gpu-a.example.org"):
        with api.open(tmp_path / "logs", selection=Selection(hosts=(name,))) as run:
            told = run.diagnose().to_text(everything=True)
        assert "1 file of other hosts not selected" in " ".join(told.split())
        assert "(1 seen)" in told
    with pytest.raises(UsageError, match="there are hosts gpu-a, gpu-b"):
        api.open(tmp_path / "logs", selection=Selection(hosts=("gpu-c",)))


@pytest.mark.parametrize("ranks", [(0, 1), (2, 3)])
def test_a_part_blames_nobody_else_and_sends_nobody_to_profile_what_is_there(
    job: Path, whole: dict[str, Any], ranks: tuple[int, int]
) -> None:
    with api.open(job / "run", selection=Selection(ranks=(ranks,))) as run:
        report = run.diagnose()
    part, text = msgspec.json.decode(report.to_json()), report.to_text(everything=True)
    chosen = set(range(ranks[0], ranks[1] + 1))
    assert set(part["run"]["ranks"]) == chosen & set(whole["run"]["ranks"])
    traces = sum(i["kind"] == "kineto" for i in part["inputs"])
    assert traces == len(part["run"]["ranks"])
    assert sum(i["kind"] == "nccl" for i in part["inputs"]) == sum(
        i["kind"] == "nccl" for i in whole["inputs"]
    )
    blamed = _blamed(part)
    assert blamed <= _blamed(whole) & chosen
    left_out = set(whole["run"]["ranks"]) - chosen
    assert left_out
    assert "not selected" in text
    assert "profile rank" not in text


def _blamed(report: dict[str, Any]) -> set[int]:
    """Ranks that a finding which may name a culprit names."""
    culprits = {rule.name for rule in RULES if rule.names_culprit}
    return {r for f in report["findings"] if f["rule"] in culprits for r in f["scope"]["ranks"]}

"""Queries: cases as data, and what must hold for every query whatever its rows.

A case file ``tests/cases/<subject>.<name>.md`` holds cases like::

    ## What the case shows, as a sentence

    By eye: why a reader can see that the answer is right (one case of a query has this).

    given gpu_op
    ```csv
    class,start_ns,dur_ns
    compute,0,100
    ```
    with rounding=hta
    expect
    ```csv
    rank,compute_ns
    0,100
    ```

Columns that a row leaves out are null, but for those in ``DEFAULTS``. ``expect`` may name some of
the query's columns. Files of GPU samples are in ``source_context``, as in every run. With
TRACEKIT_UPDATE_GOLDEN=1 the expected rows are rewritten: read the diff.
"""

from __future__ import annotations

import csv
import io
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pytest
from source_tables import create_table

from soaks import examples, soak
from tracekit import catalog, query_file
from tracekit.schema import Column, Table, table
from tracekit.store import reader

CASES = Path(__file__).parent / "cases"
DEFAULTS = {"source_id": 0, "rank": 0, "attempt": 1, "capture_id": 0}
Tables = dict[str, list[dict[str, object]]]
UPDATE = os.environ.get("TRACEKIT_UPDATE_GOLDEN") == "1"


@dataclass
class Case:
    """One case: what is given, and where in its file the expected rows stand."""

    title: str
    given: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    expected: str = ""
    is_by_eye: bool = False
    """The file says how a reader sees that the answer is right."""


def read_cases(text: str) -> list[Case]:
    """The cases of a file; ValueError on a line that is neither prose nor part of one."""
    cases: list[Case] = []
    lines = iter(text.splitlines())
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "##":
            cases.append(Case(rest))
        elif word == "given" and cases:
            cases[-1].given[rest] = _rows(rest, _block(lines))
        elif word == "with" and cases:
            cases[-1].params |= dict([rest.split("=", 1)])
        elif word == "expect" and cases:
            cases[-1].expected = _block(lines)
        elif line.startswith("By eye: ") and cases:
            cases[-1].is_by_eye = True
        elif line.startswith("```"):
            raise ValueError(f"a block that belongs to nothing: {line}")
    for case in cases:
        if "gpu_sample" in case.given:
            _add_files(case.given.setdefault("source_context", []), case.given["gpu_sample"])
    return cases


def _block(lines: Iterator[str]) -> str:
    """The text of a fenced block that starts with the next line."""
    if not next(lines).startswith("```"):
        raise ValueError("expected a ```csv block")
    rows = []
    for line in lines:
        if line == "```":
            break
        rows.append(line)
    return "".join(f"{row}\n" for row in rows)


def _rows(name: str, text: str) -> list[dict[str, object]]:
    columns = {c.name for c in table(name).columns}
    rows: list[dict[str, object]] = []
    for number, row in enumerate(csv.DictReader(io.StringIO(text))):
        defaults = {**DEFAULTS, "place": number}
        given = {key: value or None for key, value in row.items()}
        rows.append({k: v for k, v in defaults.items() if k in columns} | given)
    return rows


def _add_files(context: list[dict[str, object]], samples: Sequence[Mapping[str, object]]) -> None:
    known = {row["source_id"] for row in context}
    for row in samples:
        if row["source_id"] not in known:
            known.add(row["source_id"])
            context.append({name: row.get(name) for name in ("source_id", "clock_id", "host")})


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, list):
        return " ".join(_shown(v) for v in value)
    return str(value)


def as_csv(query: query_file.Query, case: Case, rows: Sequence[Mapping[str, object]]) -> str:
    """Rows of the query with the columns that the case expects."""
    header = case.expected.partition("\n")[0]
    wanted = header.split(",") if header else [c.name for c in query.columns]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(wanted)
    writer.writerows([_shown(row[column]) for column in wanted] for row in rows)
    return out.getvalue()


def _all_cases() -> list[tuple[Path, int]]:
    paths = sorted(CASES.glob("*.md"))
    return [
        (path, index)
        for path in paths
        for index in range(len(read_cases(path.read_text(encoding="utf-8"))))
    ]


@pytest.mark.parametrize(
    ("path", "index"), [pytest.param(p, i, id=f"{p.stem}-{i}") for p, i in _all_cases()]
)
def test_a_query_answers_its_case(con: duckdb.DuckDBPyConnection, path: Path, index: int) -> None:
    text = path.read_text(encoding="utf-8")
    case = read_cases(text)[index]
    query = catalog.find(path.stem.replace(".", "/", 1))
    rows = _answer(con, query, case.given, **case.params)
    found = as_csv(query, case, rows)
    if UPDATE and found != case.expected:
        head, mark, tail = text.partition(f"## {case.title}\n")
        old = f"expect\n```csv\n{case.expected}```"
        path.write_text(head + mark + tail.replace(old, f"expect\n```csv\n{found}```", 1))
        return
    assert found == case.expected, case.title
    # What random rows tell, below, the cases of such a query need not tell each time.
    few, many = (1, 2) if query.name in TOLD_BY_CASES else (0, 1)
    for seed in range(examples(few, many)):
        rng = random.Random(seed)  # noqa: S311  # repeatable rows, no secret
        _assert_order_and_clocks_change_nothing(con, query, case.given, rows, rng, **case.params)


@pytest.mark.parametrize("query", catalog.queries(), ids=lambda q: q.name)
def test_every_query_has_three_cases_and_one_that_was_checked_by_eye(
    query: query_file.Query,
) -> None:
    path = CASES / f"{query.subject}.{query.name}.md"
    assert path.exists(), f"write {path.name}"
    cases = read_cases(path.read_text(encoding="utf-8"))
    assert len(cases) >= 3
    assert any(case.is_by_eye for case in cases)
    assert len({case.title for case in cases}) == len(cases)
    assert any(case.expected.count("\n") > 1 for case in cases), "one of them expects rows"


# ------------------------------------------------ what holds whatever the rows

DOMAINS: dict[str, list[object]] = {
    "rank": [0, 1],
    "attempt": [1],
    "capture_id": [0],
    "class": ["compute", "communication", "memory", "other"],
    "timeline": ["device", "host"],
    "op": ["all_reduce", "all_gather", "send"],
    "domain": ["profiler_step", "user", "python_gc"],
    "status": ["ok", "partial"],
    "copy_kind": ["HtoD", "DtoH", None],
    "world_size": [3],
    "thread": [1, 2],
    "stream": [7, 8],
    "device": [0],
    "own_source_id": [None],
}
CATEGORIES: dict[str, list[object]] = {
    "gpu_op": ["kernel", "memcpy", "memset"],
    "host_op": ["operator", "runtime"],
}
HOST_NAMES = ["aten::mm", "c10d::allreduce_", "cudaStreamSynchronize", "cudaLaunchKernel"]


def _random_rows(name: str, count: int, rng: random.Random) -> list[dict[str, object]]:
    rows: dict[tuple[str, ...], dict[str, object]] = {}
    declared = table(name)
    for place in range(count):
        row = {c.name: _random_value(declared, c, place, rng) for c in declared.columns}
        if {"start_ns", "end_ns", "dur_ns"} <= set(row):
            row["end_ns"] = int(str(row["start_ns"])) + int(str(row["dur_ns"]))
        if name == "step":
            row["start_ns"] = place // 2 * 40_000
            row["paced_start_ns"] = row["paced_end_ns"] = None
        if "gpu_op_place" in row:
            row["gpu_op_place"] = place if row["timeline"] == "device" else None
        # Ranks of host-only jobs have host rows and no device rows: rank 1 is one.
        if name == "gpu_op" and row["rank"] == 1:
            continue
        rows.setdefault(tuple(str(row[key]) for key in declared.grain), row)
    return list(rows.values())


def _random_value(declared: Table, column: Column, place: int, rng: random.Random) -> object:
    if column.name == "source_id":
        return place if declared.grain == ("source_id",) else 0
    if column.name in ("place", "step"):
        return place // 2 if column.name == "step" else place
    if column.name == "category":
        return rng.choice(CATEGORIES.get(declared.name, ["a", "b"]))
    if column.name == "name" and declared.name == "host_op":
        return rng.choice(HOST_NAMES)
    if column.name in DOMAINS:
        return rng.choice(DOMAINS[column.name])
    if column.is_time or column.name == "dur_ns":
        return rng.randrange(0, 400) * 1000 // (8 if column.name == "dur_ns" else 1)
    if column.type.endswith("[]"):
        return None
    if column.type == "VARCHAR":
        return rng.choice(["a", "b"])
    return {"BOOLEAN": rng.random() < 0.2, "DOUBLE": float(rng.randrange(5))}.get(
        column.type, rng.randrange(5)
    )


def _answer(
    con: duckdb.DuckDBPyConnection, query: query_file.Query, given: Tables, **params: object
) -> list[dict[str, object]]:
    for name in query.reads:
        create_table(con, name, given.get(name, ()))
    rows: list[dict[str, object]] = catalog.run(con, query.name, **params).to_pylist()
    return rows


def _rounded(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    # Sums of floats depend on their order in the last digits.
    return [
        {k: float(f"{v:.9g}") if isinstance(v, float) else v for k, v in row.items()}
        for row in rows
    ]


TOLD_BY_CASES = frozenset({
    "absent_waits", "allocator_stall", "bubble", "buffer_broadcasts", "checkpoint_stall",
    "collective_checks", "compile_stall",
    "counter_profile", "delay_matrix", "enqueued_calls", "expert_load", "fabric_leaves",
    "fabric_path", "fabric_uplinks", "failures",
    "gemm_efficiency", "gpu_counters", "kernel_turns", "pause_stall", "pod_restarts",
    "gil_stall", "gpu_events", "gpu_growth", "gradient_rounds", "gpu_series", "gpu_throttle",
    "hidden_kernels", "episode_clocks", "shard_gathers",
    "episode_pressure", "episode_storage", "host_pressure", "host_pressure_steps", "input_stall",
    "storage_latency", "storage_steps",
    "inspector_calls", "kernel_reports", "late_steps", "lost_kernels", "microbatch_correlation",
    "module_summary",
    "nccl_bench", "nccl_nics",
    "nccl_rails", "nvtx_gpu_proj_sum", "nvtx_pushpop_sum", "pipeline_heat_map", "port_counters",
    "port_events", "port_levels", "port_traffic", "rank_stacks", "replica_balance", "slow_steps",
    "slow_transfers",
    "straggler_reports",
    "stage_balance", "watchdog",
})  # fmt: skip
"""Queries that find nothing in random rows: only in rows that belong together, as their cases have
them. Their cases' rows are put in several orders instead."""

POINTS_IN_TIME = {
    "worst_start_ns",
    "worst_end_ns",
    "first_ns",
    "last_ns",
    "start_ns",
    "end_ns",
    "time_ns",
    "first_start_ns",
    "last_start_ns",
    "last_end_ns",
    "exposed_start_ns",
    "holder_start_ns",
    "first_grown_ns",
    "last_grown_ns",
}


SHIFT_NS = 1_790_857_026_000_000_000


def _assert_order_and_clocks_change_nothing(
    con: duckdb.DuckDBPyConnection,
    query: query_file.Query,
    given: Tables,
    rows: list[dict[str, object]],
    rng: random.Random,
    **params: object,
) -> None:
    """The same rows in another order, all clocks shifted, and planned with every optimizer, as
    those of a large run are: the same answer, its times shifted.

    All at once, since one query takes as long as all the rest of such a test.
    """
    shuffled = {name: rng.sample(given[name], len(given[name])) for name in given}
    shifted = {name: [_moved(name, row) for row in shuffled[name]] for name in shuffled}
    con.execute("RESET disabled_optimizers")
    try:
        found = _rounded(_answer(con, query, shifted, **params))
    finally:
        reader.leave_optimizers_out(con)
    expected = _rounded([_shifted(row) for row in rows])
    if found != expected:
        order = _rounded(_answer(con, query, shuffled, **params))
        assert order == _rounded(rows), "the order of the rows changes the answer"
        moved = _rounded(_answer(con, query, shifted, **params))
        assert moved == expected, "a shift of all clocks changes the answer"
        assert found == expected, "how it is planned changes the answer"


def _shifted(row: dict[str, object]) -> dict[str, object]:
    return {
        k: v + SHIFT_NS if k in POINTS_IN_TIME and isinstance(v, int) else v for k, v in row.items()
    }


@pytest.mark.parametrize(
    "query",
    [q for q in catalog.queries() if q.name not in TOLD_BY_CASES],
    ids=lambda q: q.name,
)
@pytest.mark.parametrize("seed", soak(range(3), fast=[0]))
def test_order_and_clocks_change_no_answer(
    con: duckdb.DuckDBPyConnection, query: query_file.Query, seed: int
) -> None:
    rng = random.Random(seed)  # noqa: S311  # repeatable rows, no secret
    given = {name: _random_rows(name, 60, rng) for name in query.reads}
    rows = _answer(con, query, given)
    assert rows, "it belongs among TOLD_BY_CASES if no random rows can make it answer"
    _assert_order_and_clocks_change_nothing(con, query, given, rows, rng)


def _moved(name: str, row: dict[str, object]) -> dict[str, object]:
    times = {c.name for c in table(name).columns if c.is_time}
    return {
        k: int(str(v)) + SHIFT_NS if k in times and v is not None else v for k, v in row.items()
    }


@pytest.mark.parametrize(
    ("query", "needed"),
    [pytest.param(q, n, id=f"{q.name}-{n}") for q in catalog.queries() for n in q.needs],
)
def test_without_a_table_that_it_needs_a_query_finds_nothing(
    con: duckdb.DuckDBPyConnection, query: query_file.Query, needed: str
) -> None:
    """So that it need not be planned; the rest has rows in which it would find something: those
    of the case that expects most, of a whole run those of all its cases."""
    rng = random.Random(7)  # noqa: S311  # repeatable rows, no secret
    cases = read_cases((CASES / f"{query.subject}.{query.name}.md").read_text(encoding="utf-8"))
    cases.sort(key=lambda case: -case.expected.count("\n"))
    told = [case.given for case in cases]
    drawn = {n: _random_rows(n, 60, rng) for n in query.reads}
    for given in [*told, drawn][: examples(1, len(told) + 1)]:
        name, _, domain = needed.partition(":")
        left = [row for row in given.get(name, ()) if domain and row.get("domain") != domain]
        assert _answer(con, query, {**given, name: left}) == []


@pytest.mark.parametrize("seed", soak(range(5), fast=2))
def test_the_parts_of_a_step_sum_to_the_step(con: duckdb.DuckDBPyConnection, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  # repeatable rows, no secret
    query = catalog.find("step_breakdown")
    tables = {name: _random_rows(name, 80, rng) for name in query.reads}
    rows = _answer(con, query, tables)
    assert {row["measured_on"] for row in rows} == {"gpu", "host"}
    for row in rows:
        parts = [
            int(str(row[k])) for k in ("compute_ns", "exposed_comm_ns", "memory_ns", "idle_ns")
        ]
        assert sum(parts) == row["dur_ns"]
        assert min(parts) >= 0


@pytest.mark.parametrize("seed", soak(range(5), fast=2))
def test_what_a_thread_spent_sums_to_its_steps(con: duckdb.DuckDBPyConnection, seed: int) -> None:
    """Whatever nests, overlaps or is missing: each moment is one part's."""
    rng = random.Random(seed)  # noqa: S311  # repeatable rows, no secret
    base: dict[str, object] = {"source_id": 0, "rank": 0, "attempt": 1, "capture_id": 0}
    rows = [
        {**base, "place": place, "thread": 1, "name": rng.choice(["a", "b", "c10d::x"]),
         "start_ns": rng.randrange(1000), "dur_ns": rng.randrange(200),
         "category": rng.choice(["operator", "runtime"]), "domain": "user"}
        for place in range(40)
    ]  # fmt: skip
    for name, part in (("host_op", rows[:25]), ("annotation", rows[25:])):
        columns = {c.name for c in table(name).columns}
        given = [{k: v for k, v in row.items() if k in columns} for row in part]
        create_table(con, name, given)
    steps = [(1, 0, 400), (2, 400, 900)]
    create_table(con, "step", [
        {**base, "step": n, "start_ns": a, "end_ns": b, "dur_ns": b - a} for n, a, b in steps
    ])  # fmt: skip
    found = con.execute("SELECT step, sum(spent_ns) FROM time_spent() GROUP BY step").fetchall()
    assert sorted(found) == [(n, b - a) for n, a, b in steps]


@pytest.mark.parametrize("seed", soak(range(5), fast=2))
def test_exposed_communication_by_operation_sums_to_what_overlap_states(
    con: duckdb.DuckDBPyConnection, seed: int
) -> None:
    rng = random.Random(seed)  # noqa: S311  # repeatable rows, no secret
    by_op = catalog.find("exposed_comm_by_op")
    overlap = catalog.find("overlap")
    tables = {name: _random_rows(name, 80, rng) for name in {*by_op.reads, *overlap.reads}}
    parts = _answer(con, by_op, tables)
    for whole in _answer(con, overlap, tables):
        for column in ("comm_ns", "exposed_comm_ns"):
            of_rank = [int(str(p[column])) for p in parts if p["rank"] == whole["rank"]]
            assert sum(of_rank) == whole[column]

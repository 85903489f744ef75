"""Fixtures that many tests share."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import duckdb
import hypothesis
import pytest
import samples
from failed_queries import ask_with_each_query_failed
from proofs import create_empty_tables

import soaks
from nccl_rules import build, known_facts  # noqa: F401  # fixtures of many files
from tracekit import answers, catalog
from tracekit.rules import Facts, JobFacts, Rule, RuleOutcome
from tracekit.rules.facts import UndeclaredQueryError
from tracekit.store import beside, reader

MS = 1_000_000
EPOCH_NS = 1_784_602_867_000_000_000  # 2026-07-21 03:01:07 UTC


# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    soaks.configured(config.option.markexpr)
    gc.disable()


def pytest_collection_finish() -> None:
    """What all test files hold is never garbage: no collection of cycles looks through it, neither
    while they are imported nor again. What tests make is small and soon gone: it is looked for
    less often than Python would, which took a thirtieth of their time."""
    gc.enable()
    gc.set_threshold(50_000, 20, 20)
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Else libraries that count what is left at the end call it leaked."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def samples_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where ``samples`` keeps what all workers share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "samples"
    folder.mkdir(exist_ok=True)
    os.environ[samples.FOLDER] = str(folder)


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache for the tests of a file, and never that of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def rules_read_what_they_declare() -> Iterator[None]:
    """In production such a rule is not checked; here it is an error of ours."""

    def refuse(self: Rule, error: UndeclaredQueryError) -> RuleOutcome:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rule, "undeclared", refuse)
        yield


@pytest.fixture(autouse=True)
def a_failed_query_is_never_fine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever facts a test of a rule gives it, the rule is asked again with each query failed."""
    if "rules" not in request.path.parts:
        yield
        return
    run = Rule.run

    def checked(self: Rule, facts: Facts) -> RuleOutcome:
        outcome = run(self, facts)
        ask_with_each_query_failed(run, self, facts, outcome)
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rule, "run", checked)
        yield


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """A small run's database with the queries' macros and every logical table, empty.

    Making it takes as long as a hundred small queries, so there is one for all tests: take ``con``,
    which leaves no trace in it. Queries are planned as those of a small run are: test_queries
    compares with what all optimizers make of them.
    """
    spill = tmp_path_factory.mktemp("spill")
    with reader.connect([], threads=1, memory_bytes=None, spill=spill) as connection:
        create_empty_tables(connection)
        catalog.load_macros(connection)
        reader.leave_optimizers_out(connection)
        yield connection


@pytest.fixture
def con(
    database: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> Iterator[duckdb.DuckDBPyConnection]:
    """The queries' macros and every logical table, empty, in a transaction of this test's own.

    Another connection does not see what the test does, so a diagnosis asks on this one alone.
    """
    monkeypatch.setattr(answers, "available_cpus", lambda: 1)
    with beside(database) as connection:
        connection.begin()
        try:
            yield connection
        finally:
            connection.rollback()


@dataclass
class JobRows:
    """Query rows of a made-up job, for rules and reports: times in ms, round numbers.

    Every rank's steady step takes 100 ms: 80 computing, 5 of communication that nothing hides,
    5 of copies, 10 idle. ``stall`` makes one rank late and the others wait for it.
    """

    ranks_count: int = 4
    steps_count: int = 10
    measured_on: str = "gpu"
    comm_ms: int = 5
    idle_ms: int = 10
    first_step: int = 1
    world_size: int | None = None
    parts: dict[tuple[int, int], dict[str, int]] = field(default_factory=dict)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    is_window: bool = False
    """Whether nothing marks steps: the two there are then stand for the halves of the window."""
    marks: dict[int, str] = field(default_factory=dict)
    """Steps that are not steady: ``is_warmup`` or ``is_partial``."""

    def __post_init__(self) -> None:
        compute = 95 - self.comm_ms - self.idle_ms
        for rank in range(self.ranks_count):
            for step in self.steps:
                self.parts[rank, step] = {
                    "compute": compute,
                    "exposed_comm": self.comm_ms,
                    "memory": 5,
                    "idle": self.idle_ms,
                }

    @property
    def steps(self) -> range:
        return range(self.first_step, self.first_step + self.steps_count)

    def add(self, rank: int, step: int, part: str, ms: int) -> None:
        self.parts[rank, step][part] += ms

    def stall(
        self,
        query: str,
        ranks: Sequence[int],
        steps: Iterable[int],
        ms: int,
        *,
        exposed_ms: int | None = None,
        is_waited_for: bool = True,
    ) -> JobRows:
        """Ranks stall in steps; the others wait unless they do not have to."""
        exposed = ms if exposed_ms is None else exposed_ms
        for step in steps:
            for rank in range(self.ranks_count):
                if rank in ranks:
                    self.add(rank, step, "idle", exposed)
                elif is_waited_for:
                    self.add(rank, step, "exposed_comm", exposed)
            for rank in ranks:
                self.rows.setdefault(query, []).append(
                    {
                        "rank": rank,
                        "attempt": 1,
                        "capture_id": 0,
                        "step": step,
                        "stall_ns": ms * MS,
                        "exposed_ns": exposed * MS,
                        "ranges_count": 1,
                        "longest_ns": ms * MS,
                        "source_id": rank,
                        "place": step,
                    }
                )
        return self

    def launching(
        self,
        *,
        kernel_ns: int = 8_000,
        queue_ns: int = 5_000,
        host_wait_ratio: float = 0.9,
        host_pause_ratio: float = 0.0,
    ) -> JobRows:
        """How each rank launches."""
        for rank in range(self.ranks_count):
            ns = 1_000_000
            self.rows.setdefault("launch_stats", []).append(
                {
                    "rank": rank,
                    "launched_count": 900,
                    "queue_delay_p50_ns": float(queue_ns),
                    "operators_count": 0,
                    "calls_count": 0,
                }
            )
            self.rows.setdefault("idle_breakdown", []).append(
                {
                    "rank": rank,
                    "stream": None,
                    "idle_ns": ns,
                    "host_wait_ns": int(ns * host_wait_ratio),
                    "host_pause_ns": int(ns * host_pause_ratio),
                }
            )
            self.rows.setdefault("kernel_summary", []).append(
                {
                    "rank": rank,
                    "class": "compute",
                    "name": "gemm",
                    "calls_count": 900,
                    "total_ns": 900 * kernel_ns,
                    "p50_ns": float(kernel_ns),
                }
            )
        return self

    def _overlap(self, rank: int) -> dict[str, Any]:
        """What a window went into."""
        halves = [parts for (r, _), parts in self.parts.items() if r == rank]
        total = {name: sum(h[name] for h in halves) * MS for name in halves[0]}
        return {
            "rank": rank,
            "span_ns": sum(total.values()),
            **{f"{name}_ns": ns for name, ns in total.items() if name != "memory"},
            "comm_ns": total["exposed_comm"],
            "overlap_ns": 0,
            "measured_on": self.measured_on,
        }

    def facts(self, **job: Any) -> Facts:
        """The facts that rules see."""
        breakdown: list[dict[str, Any]] = []
        times = []
        clock = dict.fromkeys(self.steps, 0)
        now = EPOCH_NS
        for step in self.steps:
            clock[step] = now
            now += max(sum(self.parts[r, step].values()) for r in range(self.ranks_count)) * MS
        for (rank, step), parts in sorted(self.parts.items()):
            key = {"rank": rank, "attempt": 1, "capture_id": 0, "step": step}
            mark = self.marks.get(step)
            dur_ns = sum(parts.values()) * MS
            breakdown.append(
                {
                    **key,
                    **{f"{name}_ns": ms * MS for name, ms in parts.items()},
                    "is_warmup": mark == "is_warmup",
                    "is_partial": mark == "is_partial",
                    "dur_ns": dur_ns,
                    "comm_ns": parts["exposed_comm"] * MS,
                    "measured_on": self.measured_on,
                }
            )
            times.append({**key, "start_ns": clock[step], "dur_ns": dur_ns})
        rows: dict[str, Sequence[Any]] = {"step_breakdown": breakdown, "step_time": times}
        rows |= self.rows
        known: dict[str, Any] = {
            "name": "job",
            "run_id": "run1",
            "world_size": self.world_size or self.ranks_count,
            "hosts": {rank: f"h{rank // 2}" for rank in range(self.ranks_count)},
            "rank_sources": dict.fromkeys(range(self.ranks_count), "file"),
            "rank_files": {rank: f"r{rank}.json" for rank in range(self.ranks_count)},
        }
        paths = {rank: f"r{rank}.json" for rank in range(self.ranks_count)}
        if self.is_window:
            own = {"step_breakdown": [{**r, "start_ns": clock[r["step"]]} for r in breakdown]}
            own |= {q: r for q, r in self.rows.items() if r and "step" in r[0]}
            rows = {q: [] if q in own else r for q, r in rows.items() if q != "step_time"}
            rows["overlap"] = [self._overlap(rank) for rank in range(self.ranks_count)]
            return Facts(job=JobFacts(**{**known, **job}), rows=rows, halves=own, sources=paths)
        return Facts(job=JobFacts(**{**known, **job}), rows=rows, sources=paths)


@pytest.fixture
def make_job() -> Callable[..., JobRows]:
    """A builder of made-up jobs."""
    return JobRows


@pytest.fixture
def make_window() -> Callable[..., JobRows]:
    """A builder of made-up jobs without steps: a window of 200 ms, whose halves are 0 and 1."""
    return partial(JobRows, steps_count=2, first_step=0, is_window=True)


@pytest.fixture(params=soaks.soak(["sqlite3", "adbc"], fast=["sqlite3"]))
def nsys_reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which library reads exports, whatever their size: a test that uses this runs with each.

    What both read of every table is asked in ingest/test_nsys_readers.py, by every run.
    """
    from tracekit.ingest.nsys import database

    reader: str = request.param
    monkeypatch.setattr(database, "LARGE_ROWS", 0 if reader == "adbc" else 1 << 63)
    return reader


@pytest.fixture(autouse=True)
def _no_bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are compared as text there, so they quote no figures of the bench, which change."""
    if request.path.parent.name == "report":
        from tracekit import reliability

        monkeypatch.setattr(reliability, "table", dict)

"""What GPU samples come to: told by the summary of a file, or asked of the samples; never both."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from source_tables import database

from tracekit import api, catalog, store
from tracekit.correction import Correction
from tracekit.derive import gpu_summary
from tracekit.store import Selection

S = 10**9
SLACK_NS = 30 * S
Rows = list[dict[str, Any]]

WINDOWS = [
    {"attempt": 1, "start_ns": 1000 * S, "end_ns": 1100 * S},
    {"attempt": 2, "start_ns": 1300 * S, "end_ns": 1400 * S},
]
CLOCKS = [{"clock_id": 1, "basis": "epoch"}, {"clock_id": 2, "basis": "relative"}]


def sample(source_id: int, place: int, time_s: int | None, reading: float, **facts: Any) -> Any:
    is_counted = facts.get("kind") == "cumulative"
    return {
        "source_id": source_id,
        "clock_id": 1,
        "host": "n0",
        "nvml_index": 0,
        "counter": "pcie_replays" if is_counted else "power",
        "kind": "gauge",
        "unit": "count" if is_counted else "W",
        "place": place,
        "time_ns": None if time_s is None else time_s * S,
        "value": None if is_counted else reading,
        "counted": int(reading) if is_counted else None,
        **facts,
    }


def summaries_of(samples: Rows) -> Rows:
    """As ``derive`` makes them of the samples as they are stored."""
    context = ("clock_id", "host", "attempt", "rank", "capture_id")
    stored = [{k: v for k, v in s.items() if k not in context} for s in samples]
    raw = database({"gpu_sample": stored}).sql(gpu_summary.TEXT).to_arrow_table()
    rows: Rows = gpu_summary.on_the_jobs_clock(raw, {}).to_pylist()
    return rows


class Asked:
    """gpu_summaries over tables by hand."""

    def __init__(self, con: duckdb.DuckDBPyConnection) -> None:
        self._con = con

    def __call__(
        self, samples: Rows, summaries: Rows, windows: Rows, looked_at: Rows | None = None
    ) -> Rows:
        """``looked_at`` are the samples that it finds (default: all)."""
        files = {s["source_id"]: s for s in samples}.values()
        tables = {
            "source_context": [{k: f[k] for k in ("source_id", "clock_id", "host")} for f in files],
            "gpu_sample": samples if looked_at is None else looked_at,
            "gpu_counter_summary": summaries,
            "run": windows,
            "clock": CLOCKS,
        }
        for name, rows in tables.items():
            self._con.execute(f"DELETE FROM {name}")
            if rows:
                keys = dict.fromkeys(key for row in rows for key in row)
                given = pa.table({key: [row.get(key) for row in rows] for key in keys})
                self._con.register("given", given)
                self._con.execute(f"INSERT INTO {name} BY NAME FROM given")
                self._con.unregister("given")
        found: Rows = (
            self._con.sql(f"FROM gpu_summaries({SLACK_NS}) ORDER BY ALL")
            .to_arrow_table()
            .to_pylist()
        )
        return found


@pytest.fixture
def answer(con: duckdb.DuckDBPyConnection) -> Asked:
    return Asked(con)


@pytest.mark.parametrize(
    ("windows", "first_s", "is_told"),
    [
        pytest.param([], 0, True, id="without traces all samples count"),
        pytest.param(WINDOWS, 1010, True, id="inside the first attempt"),
        pytest.param(WINDOWS, 970, True, id="from the first moment of what may belong to it"),
        pytest.param(WINDOWS, 969, False, id="a second earlier"),
        pytest.param(WINDOWS, 1110, True, id="to the last moment of what may belong to it"),
        pytest.param(WINDOWS, 1111, False, id="a second later"),
        pytest.param(WINDOWS, 1310, True, id="inside the second"),
    ],
)
def test_samples_are_not_looked_at_where_their_file_lies_in_the_window(
    answer: Asked, windows: Rows, first_s: int, is_told: bool
) -> None:
    samples = [sample(1, i, first_s + i, 300 + i) for i in range(21)]
    summaries = summaries_of(samples)
    found = answer(samples, summaries, windows)
    assert found == answer(samples, [], windows)
    assert found
    assert answer(samples, summaries, windows, looked_at=[]) == (found if is_told else [])


def test_what_they_come_to(answer: Asked) -> None:
    readings = [(10, 0.1), (12, 0.6), (11, 0.3), (13, 0.5)]
    samples = [sample(3, 7 + i, t, v, counter="sm_active") for i, (t, v) in enumerate(readings)] + [
        sample(4, 2 + i, 20 + i, n, kind="cumulative") for i, n in enumerate([5, 9, 9])
    ]
    counted, gauge = sorted(
        answer(samples, summaries_of(samples), []), key=lambda row: row["counter"]
    )
    assert {
        "samples_count": 4,
        "timed_count": 4,
        "first_ns": 10 * S,
        "last_ns": 13 * S,
        "first_spot": 3 * 2**40 + 7,
        "last_spot": 3 * 2**40 + 10,
        "values_count": 4,
        "min_value": 0.1,
        "max_value": 0.6,
        "timed_max_value": 0.6,
        "total_value": pytest.approx(1.5),
        "active_count": 3,
        "utilised_count": 2,
        "counted_count": 0,
        "min_counted": None,
    }.items() <= gauge.items()
    assert {
        "samples_count": 3,
        "values_count": 0,
        "max_value": None,
        "counted_count": 3,
        "min_counted": 5,
        "max_counted": 9,
    }.items() <= counted.items()


def test_of_a_file_in_which_only_some_have_a_time_the_samples_are_asked(answer: Asked) -> None:
    samples = [sample(1, 0, 1010, 300), sample(1, 1, None, 400)]
    found = answer(samples, summaries_of(samples), [])
    assert [(r["samples_count"], r["max_value"], r["timed_max_value"]) for r in found] == [
        (2, 400, 300)
    ]
    (row,) = answer(samples, summaries_of(samples), WINDOWS[:1])
    assert row["samples_count"] == 1


def test_a_file_on_a_clock_of_its_own_is_not_beside_the_job(answer: Asked) -> None:
    samples = [sample(1, i, 1010 + i, 300, clock_id=2) for i in range(3)]
    assert answer(samples, summaries_of(samples), WINDOWS) == []
    assert len(answer(samples, summaries_of(samples), [])) == 1


@pytest.mark.parametrize("seed", range(12))
def test_told_or_asked_they_are_the_same(answer: Asked, seed: int) -> None:
    chosen = random.Random(seed)  # noqa: S311 - rows for a test
    samples: Rows = []
    for source_id in range(8):
        first_s = chosen.choice([0, 960, 975, 1050, 1100, 1128, 1200, 1280, 1390])
        facts = {
            "clock_id": chosen.choice([1, 1, 1, 2]),
            "host": chosen.choice(["n0", "n1", None]),
        }
        untimed = chosen.choice([0, 0, 0.3, 1])
        for place in range(40):
            samples.append(
                sample(
                    source_id,
                    place,
                    None if chosen.random() < untimed else first_s + chosen.randrange(40),
                    chosen.randrange(8) / 8,
                    kind=chosen.choice(["gauge", "cumulative"]),
                    nvml_index=chosen.choice([0, 1, None]),
                    device_id=chosen.choice([None, "GPU-1", "GPU-1/link0"]),
                    node=chosen.choice([None, "m"]),
                    **facts,
                )
            )
    for windows in ([], WINDOWS[:1], WINDOWS):
        assert answer(samples, summaries_of(samples), windows) == answer(samples, [], windows)


def test_where_something_is_selected_the_samples_are_asked(tmp_path: Path) -> None:
    lines = [f"{1784592000 + i},0,{300 + i}" for i in range(20)]
    (tmp_path / "smi.csv").write_text("\n".join(["timestamp,index,power.draw", *lines]) + "\n")
    api.ingest(tmp_path / "smi.csv", run=tmp_path / "run")
    last_five = Selection(since_ns=(1784592000 + 15) * S)
    for selection, told, count in ((Selection(), 1, 20), (last_five, 0, 5)):
        with store.open_run(tmp_path / "run", selection) as run:
            catalog.load_macros(run.con)
            assert run.con.sql("FROM gpu_counter_summary").to_arrow_table().num_rows == told
            (row,) = catalog.rows(run.con, "gpu_counters", {})
            assert (row["samples_count"], row["max_value"]) == (count, 319)


def test_times_are_on_the_jobs_clock() -> None:
    stored = [{"source_id": s, "time_ns": 5 * S, "counter": "power"} for s in (1, 2)]
    raw = database({"gpu_sample": [*stored, {"source_id": 3, "counter": "power"}]}).sql(
        gpu_summary.TEXT
    )
    moved = gpu_summary.on_the_jobs_clock(raw.to_arrow_table(), {2: Correction(offset_ns=-S)})
    assert moved["first_ns"].to_pylist() == [5 * S, 4 * S, None]
    assert moved["last_ns"].to_pylist() == [5 * S, 4 * S, None]

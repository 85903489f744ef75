"""Timers of the parts of a step, as Megatron-LM and DeepSpeed print them, in files as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tracekit import api

Rows = list[tuple[Any, ...]]


def timed(folder: Path, text: str) -> Rows:
    path = folder / "train.log"
    path.write_text(text)
    run = api.ingest([path], run=folder / "run")
    rows: Rows = run.sql(
        "SELECT place, name, part_rank, dur_ns / 1e6, min_ns / 1e6, max_ns / 1e6 "
        "FROM job_step_part ORDER BY place, name"
    ).rows()
    return rows


PREFIXES = ("", "0: ", "[default7]:", "[1,7]<stdout>:")


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("logger", ["", "INFO:megatron.core.timers:"])
def test_shortest_and_longest(tmp_path: Path, prefix: str, logger: str) -> None:
    text = (
        f"{prefix}{logger}(min, max) time across ranks (ms):\n"
        f"{prefix}    forward-compute ................................: (100.25, 200.50)\n"
        "another rank's word: (1, 2)\n"
        f"{prefix}    train/valid/test-data-iterators-setup ..........: (1.00, 2.00)\n"
    )
    assert timed(tmp_path, text) == [
        (2, "forward-compute", None, None, 100.25, 200.5),
        (4, "train/valid/test-data-iterators-setup", None, None, 1.0, 2.0),
    ]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_longest_only(tmp_path: Path, prefix: str) -> None:
    text = (
        f"{prefix}max time across ranks (ms):\n"
        f"{prefix}    optimizer-inner-step ...........................: 12.50\n"
        f"{prefix}loss: 3.0\n"
    )
    assert timed(tmp_path, text) == [(2, "optimizer-inner-step", None, None, None, 12.5)]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_each_rank(tmp_path: Path, prefix: str) -> None:
    text = (
        f"{prefix}times across ranks (ms):\n{prefix}  forward-compute:\n"
        f"{prefix}     rank  0: 1.50\n"
        f"{prefix}     rank 11: 2.50\n{prefix}  batch-generator:\n{prefix}     rank  0: 0.25\n"
    )
    assert timed(tmp_path, text) == [
        (3, "forward-compute", 0, 1.5, None, None),
        (4, "forward-compute", 11, 2.5, None, None),
        (6, "batch-generator", 0, 0.25, None, None),
    ]


def test_one_line_of_one_rank(tmp_path: Path) -> None:
    text = (
        "time (ms) | forward: 10.50 | backward: 20.00 | batch generator: 1.25\n"
        "[2024-05-01 10:00:00,500] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: 3.00\n"
    )
    assert timed(tmp_path, text) == [
        (1, "backward", None, 20.0, None, None),
        (1, "batch-generator", None, 1.25, None, None),
        (1, "forward", None, 10.5, None, None),
        (2, "fwd", 0, 3.0, None, None),
    ]


def test_what_is_no_timer_is_counted_or_left(tmp_path: Path) -> None:
    text = (
        "     rank  0: 1.50\n"  # of no block
        "times across ranks (ms):\n     rank  0: 1.50\n"  # of no part
        "time (ms) | forward-hunter: 1.00 | forward: 99999999999.0 | x: 1e9 | loss: nan\n"
    )
    assert timed(tmp_path, text) == []
    run = api.open(tmp_path / "run")
    (count,) = run.sql(
        "SELECT occurrence_count FROM ingest_stat WHERE counter = 'odd_part_time'"
    ).row(0)
    assert count == 2
    assert not any(
        b"hunter" in path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()
    )


def test_a_block_ends_where_nothing_of_it_follows(tmp_path: Path) -> None:
    late = "  forward-compute:\n     rank  0: 1.50\n"
    head = "times across ranks (ms):\n"
    assert timed(tmp_path, head + "other\n" * 199 + late)
    other = tmp_path / "other"
    other.mkdir()
    assert not timed(other, head + "other\n" * 201 + late)


def test_a_block_goes_on_in_the_next_piece_of_a_file(tmp_path: Path) -> None:
    """Files are read in blocks of lines: the head of a list may stand at the end of one."""
    step = (
        "iteration {0}/ 9999 | elapsed time per iteration (ms): 10.0 | lm loss: 1.0 |\n"
        "times across ranks (ms):\n  forward-compute:\n     rank  0: 1.50\n     rank  1: 2.50\n"
    )
    assert len(timed(tmp_path, "".join(step.format(i) for i in range(1, 9001)))) == 18_000


@pytest.mark.parametrize("number", ["{}", "np.float64({})"])
def test_parts_in_the_line_of_a_step(tmp_path: Path, number: str) -> None:
    said = {"gen": 74.02, "old_log_prob": 3.566, "update_actor": 14.302, "step": 96.551}
    parts = " - ".join(f"timing_s/{name}:{number.format(s)}" for name, s in said.items())
    text = (
        f"(TaskRunner pid=1) step:2 - actor/pg_loss:0.001 - {parts} - "
        "timing_s/agent_loop/generate_sequences/mean:1.5 - timing_s/mysecret:3.0 - "
        "timing_per_token_ms/adv:0.001\n"
        "step:3 - val-core/acc:0.5 - timing_s/gen:1.0\n"
    )
    assert timed(tmp_path, text) == [
        (1, "gen", None, 74020.0, None, None),
        (1, "old_log_prob", None, 3566.0, None, None),
        (1, "update_actor", None, 14302.0, None, None),
    ]

"""Steps of one's own program, read by the job description's step_pattern."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracekit import api
from tracekit.errors import InputError

OWN = r"it (?P<step>\d+) of (?P<total>\d+) took (?P<dur_s>[\d.]+)s at (?P<time>[\d.]+)"


def own_log(folder: Path, pattern: str) -> Path:
    lines = [f"it {i} of 90 took 0.5s at {1_714_557_600 + i / 2}" for i in range(40)]
    (folder / "mine.txt").write_text("\n".join(["hello", *lines]) + "\n")
    (folder / "job.toml").write_text(f"[[source]]\npath = 'mine.txt'\nstep_pattern = '{pattern}'\n")
    return folder


def test_steps_of_ones_own_program_are_read_by_a_pattern(tmp_path: Path) -> None:
    with api.open(own_log(tmp_path, OWN)) as run:
        rows = run.sql("SELECT * FROM job_step ORDER BY place").rows(named=True)
    assert [(r["place"], r["step"]) for r in rows] == [(i + 2, i) for i in range(40)]
    assert {(r["format"], r["total_steps_count"], r["dur_ns"]) for r in rows} == {
        ("own", 90, 500_000_000)
    }
    assert [r["time_ns"] for r in rows[:2]] == [
        1_714_557_600_000_000_000,
        1_714_557_600_500_000_000,
    ]


def test_another_pattern_reads_the_file_again(tmp_path: Path) -> None:
    with api.open(own_log(tmp_path, OWN)):
        pass
    with api.open(own_log(tmp_path, r"it (?P<step>\d+) of")) as run:
        rows = run.sql("SELECT DISTINCT dur_ns, time_ns FROM job_step").rows()
    assert rows == [(None, None)]


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("it (?P<step>[", "no regular expression"),
        ("it (?P<stap>.)", "'stap' is no group"),
        ("it (.)", "no group named step"),
        ("(?P<step>.)(?=x)", "no regular expression"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused(pattern: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says) as caught, api.open(own_log(tmp_path, pattern)):
        pass
    assert "job.toml: line 3" in str(caught.value)

"""A number in a header is a claim: it is neither believed without limit nor allocated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracekit import api
from tracekit.errors import InputError
from tracekit.job import parse_job
from tracekit.rules.absent import AbsentThresholds, suspects
from tracekit.rules.base import Facts, JobFacts
from tracekit.rules.facts import MAX_CANDIDATES
from tracekit.values import MAX_RANKS
from traces import make_trace

CLAIMS = [MAX_RANKS + 1, 2**31 - 1, 2**31, 9 * 10**18, 10**30]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))


def job_of(folder: Path, world_size: int) -> Path:
    document = make_trace(0)
    document["distributedInfo"]["world_size"] = world_size
    path = folder / "rank0.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_world_beyond_all_clusters_is_not_believed(tmp_path: Path, claim: int) -> None:
    with api.open(job_of(tmp_path, claim)) as run:
        assert run.sql("SELECT world_size FROM run").rows() == [(None,)]


def test_a_world_that_may_be_is_told_in_ranges(tmp_path: Path) -> None:
    with api.open(job_of(tmp_path, MAX_RANKS)) as run:
        report = run.diagnose()
    assert report.document.coverage.ranks_expected == MAX_RANKS
    assert f"1-{MAX_RANKS - 1}" in report.to_text()
    assert len(report.to_json()) < 2 << 20  # of 65,536 candidates; a million are 17 MB


def test_candidates_are_listed_up_to_a_limit() -> None:
    facts = Facts(job=JobFacts(world_size=MAX_RANKS, rank_sources={0: "file"}))
    found = suspects(facts, (), (), AbsentThresholds())
    assert found.ranks == tuple(range(1, MAX_CANDIDATES + 1))
    assert f"of {MAX_RANKS - 1:,} the first" in found.why


def test_a_job_description_of_more_ranks_is_refused() -> None:
    assert parse_job(b"world_size = 1048576", "job.toml").world_size == MAX_RANKS
    with pytest.raises(InputError, match="world_size"):
        parse_job(b"world_size = 1048577", "job.toml")

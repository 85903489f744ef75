"""The native reader against its oracle, the one in Python: equal rows, issues and facts.

What calls it is asked in test_kineto_frequent.py, of a stand-in as well.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from memory_sink import source_of

from both_readers import damaged, made_file, same
from soaks import examples, soak
from tracekit import native
from tracekit.ingest import files
from tracekit.ingest.kineto import trace

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
SHARED = sorted([*DATA.glob("kineto/*/*.json*"), *DATA.glob("lab/*/rank*.json.gz")])
RECORDED = sorted((ROOT / "fixtures").glob("recorded/*/*.pt.trace.json.gz"))
FILES = [*RECORDED, *SHARED]
ONE_OF_A_KIND = [p for p in FILES if p == min(p.parent.glob("*.json*")) or "hta" in p.parent.name]

pytestmark = pytest.mark.skipif(
    not native.LIBRARY.exists(), reason="the native reader is not built here (make native)"
)


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each batch that the native reader was asked for was taken."""
    answers: list[bool] = []
    asked = trace.TraceReader._take_frequent

    def told(self: trace.TraceReader, *given: Any) -> bool:
        answers.append(asked(self, *given))
        return answers[-1]

    monkeypatch.setattr(trace.TraceReader, "_take_frequent", told)
    monkeypatch.delenv("TRACEKIT_NATIVE", raising=False)  # whichever reader the others are asked of
    return answers


@pytest.mark.parametrize("stacks", [False, True])
@pytest.mark.parametrize("path", soak(FILES, fast=ONE_OF_A_KIND), ids=str)
def test_real_files_give_equal_rows(path: Path, stacks: bool, taken: list[bool]) -> None:
    same(files.source_file(path), stacks=stacks)
    assert taken and sum(taken) >= 0.8 * len(taken)  # or this would compare Python with itself


MANY = st.integers(0, 2**32 - 1)


@settings(max_examples=examples(40, 600))
@given(MANY, st.sampled_from([0.0, 0.01, 0.1, 0.4]), st.sampled_from([300, 1000, 4000, 1 << 18]))
@example(1, 0.4, 300)  # which of several places is told first
@example(12384135, 0.1, 300)  # how often a time was no double decides how the next is read
def test_made_files_give_equal_rows(seed: int, oddness: float, chunk: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - no secret
    base_ns = rng.choice([None, 0, 1735632360000000000, 2**61, -(2**61), 2**62])
    data = made_file(rng, rng.randrange(1, 120), oddness, base_ns)
    same(source_of(data), stacks=bool(seed & 1), chunk_bytes=chunk)


@settings(max_examples=examples(40, 600))
@given(MANY, st.sampled_from([0.0, 0.02]), st.sampled_from([300, 1000, 4000, 1 << 18]))
def test_damaged_files_give_equal_rows(seed: int, oddness: float, chunk: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - no secret
    data = damaged(rng, made_file(rng, rng.randrange(1, 60), oddness, None))
    same(source_of(data), stacks=bool(seed & 1), chunk_bytes=chunk)

"""allocator-stall: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from stall_rules import MakeJob, look
from tracekit.rules.base import RuleOutcome


@pytest.mark.parametrize(("calls", "is_uncached"), [(99, False), (292, True)])
def test_hundreds_of_allocations_in_every_step_are_a_cache_that_is_off(
    make_job: MakeJob, calls: int, is_uncached: bool
) -> None:
    """As seen: 1,460 hipMalloc in five steps. Advice against fragmentation would mend nothing."""
    job = make_job().stall("allocator_stall", range(4), range(1, 11), 30)
    for row in job.rows["allocator_stall"]:
        row["ranges_count"] = calls
    (finding,) = look("allocator-stall", job).findings
    assert ("its cache seems to be off" in finding.summary) is is_uncached
    assert any("NO_CUDA_MEMORY_CACHING" in r for r in finding.remedy) is is_uncached
    assert any("expandable_segments" in r for r in finding.remedy) is not is_uncached


def test_where_launches_were_recorded_no_allocation_is_none(make_job: MakeJob) -> None:
    assert look("allocator-stall", make_job().launching()) == RuleOutcome()


@pytest.mark.parametrize(
    ("calls", "freed", "is_emptied"),
    [(102, 51, True), (110, 44, True), (110, 43, False), (1460, 62, False)],
)
def test_blocks_given_back_in_a_row_are_a_cache_that_is_emptied(
    make_job: MakeJob, calls: int, freed: int, *, is_emptied: bool
) -> None:
    """As seen: 51 cudaFree one behind the other in every step, by torch.cuda.empty_cache()."""
    job = make_job().stall("allocator_stall", range(4), range(1, 11), 30)
    for row in job.rows["allocator_stall"]:
        row["ranges_count"], row["freed_run_count"] = calls, freed
    (finding,) = look("allocator-stall", job).findings
    assert ("its cache is emptied at once" in finding.summary) is is_emptied
    assert ("take torch.cuda.empty_cache() out" in finding.remedy[0]) is is_emptied
    assert ("its cache seems to be off" in finding.summary) is not is_emptied


@pytest.mark.parametrize(("freed", "is_emptied"), [(9, False), (10, True)])
def test_a_few_blocks_in_a_row_are_no_cache(
    make_job: MakeJob, freed: int, *, is_emptied: bool
) -> None:
    job = make_job().stall("allocator_stall", range(4), range(1, 11), 30)
    for row in job.rows["allocator_stall"]:
        row["ranges_count"], row["freed_run_count"] = 2 * freed, freed
    (finding,) = look("allocator-stall", job).findings
    assert ("its cache is emptied at once" in finding.summary) is is_emptied

"""Queries beside HolisticTraceAnalysis 0.5.0 on real traces.

The figures are what that version prints for these files (overlap in percent, without and with the
last step; times in its microseconds). The traces lie beside the checkout, not in it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import samples

KINETO = Path(__file__).parents[2] / "shared" / "data" / "kineto"
pytestmark = pytest.mark.skipif(not KINETO.exists(), reason="the shared samples are not here")

NCCL = "hta/nccl_parser_config_nccl_data.json.gz"
SAMPLED_0 = "hta/timeline_analysis_sampled_rank-0.json.gz"
SAMPLED_1 = "hta/trace_filter_sampled_rank-1.json.gz"


@pytest.mark.parametrize(
    ("name", "rounding", "without_last", "with_last"),
    [
        (NCCL, "hta", 14.31, 15.14),
        (NCCL, "none", 14.76, 15.61),
        (SAMPLED_0, "hta", 11.81, 14.95),
        (SAMPLED_1, "hta", 20.05, 19.93),
    ],
)
def test_overlap_is_the_published_figure(
    name: str, rounding: str, without_last: float, with_last: float
) -> None:
    run = samples.opened(KINETO / name)
    for steps, expected in (("all_but_last", without_last), ("all", with_last)):
        (row,) = run.query("overlap", rounding=rounding, steps=steps).to_dicts()
        assert round(100 * row["overlap_ratio"], 2) == expected


@pytest.mark.parametrize(
    ("name", "rank", "idle_us", "compute_us", "noncompute_us"),
    [
        (SAMPLED_0, 0, 675_191, 210_320, 337_336),
        ("megatron-tp8", 0, 222_514, 131_390, 241_337),
        ("megatron-tp8", 6, 208_748, 133_554, 263_997),
    ],
)
def test_the_temporal_breakdown_is_the_same(
    name: str, rank: int, idle_us: int, compute_us: int, noncompute_us: int
) -> None:
    rows = samples.opened(KINETO / name).query("temporal_breakdown").to_dicts()
    (row,) = [row for row in rows if row["rank"] == rank]
    found = [row[column] for column in ("idle_ns", "compute_ns", "noncompute_ns")]
    assert found == [1000 * us for us in (idle_us, compute_us, noncompute_us)]


@pytest.mark.parametrize(
    ("name", "stream", "host_wait_us", "kernel_wait_us", "other_us"),
    [
        (SAMPLED_0, 7, 397_917, 3_765, 598_335),
        (SAMPLED_0, 25, 560_120, 35, 100_413),
        ("megatron-tp8", 7, 249_335, 925, 213_445),
    ],
)
def test_the_idle_breakdown_is_the_same(
    name: str, stream: int, host_wait_us: int, kernel_wait_us: int, other_us: int
) -> None:
    rows = samples.opened(KINETO / name).query("idle_breakdown").to_dicts()
    (row,) = [row for row in rows if (row["rank"], row["stream"]) == (0, stream)]
    found = [row[column] for column in ("host_wait_ns", "kernel_wait_ns", "other_ns")]
    assert found == [1000 * us for us in (host_wait_us, kernel_wait_us, other_us)]

"""What a job's own straggler detector prints: Megatron-LM's, NVRx', FlagScale's, and damage."""

from __future__ import annotations

from typing import Any

import pytest

import nccl_logs

MEGATRON = (
    "0: INFO:megatron.core.utils:[2024-03-14 23:07:56] | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: "
    "3468.20ms/0 | MnPwr/Rnk: 601796W/8 | MxPwr/Rnk: 683801W/18 | MnTmp/Rnk: 52C/0 | MxTmp/Rnk: "
    "65C/21 | MnUtl/Rnk: 97%/8 | MxUtl/Rnk: 100%/6 | MnClk/Rnk: 1950MHz/28 | MxClk/Rnk: 1980MHz/0 "
    "| MnDRtt/Rnk: 14.27ms/23 | MxDRtt/Rnk: 34.65ms/3 | MnEtpt/Rnk: 296.02TF/0 | MxEtpt/Rnk: "
    "297.32TF/8\n"
)
NVRX = """\
[NeMo I] GPU relative performance:
 Worst performing 2/512 ranks:
  Rank=76 Node=h100-001-253-012 Score=0.94
  Rank=13 Node=h100-001-010-003 Score=0.95
 Best performing 2/512 ranks:
  Rank=432 Node=h100-004-141-026 Score=0.99
  Rank=376 Node=h100-004-005-003 Score=0.98

GPU individual performance:
  Rank=5 Node=h Score=0.50
"""
FLAGSCALE = """\
[default0]:=== Straggler Report at Step 10 ===
[default0]:
[default0]:No stragglers detected.
[default0]:
[default0]:Section Timings (ms):
[default0]:
[default0]:  optimizer:
[default0]:    Min: 9.17ms, Max: 10.12ms, Avg: 9.55ms, Slowdown: 1.10x
[default0]:    Rank 0: 9.98ms
[default0]:    Rank 1: 10.12ms
[default0]:
[default0]:GPU Performance Scores (higher=faster):
[default0]:  Rank 0 (node-15): 2.9138
[default0]:  Rank 1 (node-15): 2.9282
"""


def reports(text: str) -> list[Any]:
    sink = nccl_logs.read(text)
    rows = sink.rows("log_event", "place", "code", "fields") if "log_event" in sink.tables else []
    return [(place, fields) for place, code, fields in rows if code == "straggler-report"]


def test_megatron_s_line_is_a_report_of_three_quantities() -> None:
    assert reports(MEGATRON) == [
        (1, ["by=megatron", "what=temperature_celsius", "rank.0=52", "rank.21=65"]),
        (1, ["by=megatron", "what=clock_mhz", "rank.28=1950", "rank.0=1980"]),
        (1, ["by=megatron", "what=throughput_tflops", "rank.0=296.02", "rank.8=297.32"]),
    ]


def test_nvrx_s_scores_are_those_beside_the_others_and_no_more() -> None:
    ((place, fields),) = reports(NVRX)
    assert place == 1
    assert fields[:6] == [
        "by=nvrx", "what=score", "rank.76=0.94", "rank.13=0.95", "rank.432=0.99", "rank.376=0.98",
    ]  # fmt: skip
    assert "node.76=h100-001-253-012" in fields


def test_flagscale_s_scores_stand_behind_its_times() -> None:
    assert reports(FLAGSCALE) == [
        (1, ["by=flagscale", "what=score", "rank.0=2.9138", "rank.1=2.9282", "node.0=node-15",
             "node.1=node-15"]),
    ]  # fmt: skip


def test_reports_behind_each_other_are_each_their_own() -> None:
    found = reports(NVRX + MEGATRON + FLAGSCALE + NVRX)
    assert [fields[0] for _, fields in found] == [
        "by=nvrx", "by=megatron", "by=megatron", "by=megatron", "by=flagscale", "by=nvrx",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "GPU relative performance:\n" + "a line\n" * 20 + "  Rank=1 Node=h Score=0.5\n",
        "=== Straggler Report at Step 10 ===\n",
        "GPU relative performance:\n  Rank=1 Node=h Score=high\n",
        "MxRtt/Rnk: 3468.20ms/0 | MxClk/Rnk: fast/3\n",
        "  Rank=1 Node=h Score=0.5\n",
    ],
)
def test_what_holds_no_value_or_stands_far_behind_is_no_report(text: str) -> None:
    step = "iter 100: loss 3.2512, time 135.22ms, mfu 12.50%\n"
    assert reports(step + text) == []


def test_a_report_that_breaks_off_with_the_log_keeps_what_it_has() -> None:
    ((_, fields),) = reports(NVRX.split("Best")[0])
    assert fields[2:4] == ["rank.76=0.94", "rank.13=0.95"]

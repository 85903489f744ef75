"""What-if replay: what a step would have taken without a cause (see ``analysis``)."""

from tracekit.whatif.analysis import (
    analyse,
    beyond_other_stages_s,
    saved_by_even_lengths_s,
    saved_by_stage_s,
    saved_evenly_s,
    saved_like_replicas_s,
)
from tracekit.whatif.calls import ClockPairs, Places
from tracekit.whatif.causes import Cause, parse_remove, parse_scale, uses_operations
from tracekit.whatif.collectives import CollectiveReplay
from tracekit.whatif.handover import idle_beyond_s, saved_by_messages_s
from tracekit.whatif.metrics import CauseResult, PipelineMetrics, StepTimes, WhatIf
from tracekit.whatif.operations import Layout, from_pipeline_rows
from tracekit.whatif.replay import prepare
from tracekit.whatif.result import to_dict, to_text
from tracekit.whatif.streams import StreamReplay

__all__ = [
    "Cause",
    "CauseResult",
    "ClockPairs",
    "CollectiveReplay",
    "Layout",
    "PipelineMetrics",
    "Places",
    "StepTimes",
    "StreamReplay",
    "WhatIf",
    "analyse",
    "beyond_other_stages_s",
    "from_pipeline_rows",
    "idle_beyond_s",
    "parse_remove",
    "parse_scale",
    "prepare",
    "saved_by_even_lengths_s",
    "saved_by_messages_s",
    "saved_by_stage_s",
    "saved_evenly_s",
    "saved_like_replicas_s",
    "to_dict",
    "to_text",
    "uses_operations",
]

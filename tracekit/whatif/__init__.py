"""What-if replay: what a step would have taken without a cause (see ``analysis``)."""

from tracekit.whatif.analysis import (
    CauseResult,
    WhatIf,
    analyse,
    saved_by_stage_s,
    saved_evenly_s,
)
from tracekit.whatif.calls import CollectivesWhatIf, Places
from tracekit.whatif.causes import Cause, parse_remove, parse_scale, uses_operations
from tracekit.whatif.collectives import CollectiveReplay
from tracekit.whatif.handover import idle_beyond_s
from tracekit.whatif.operations import (
    Layout,
    Operations,
    from_pipeline_rows,
    from_timer_table,
    is_timer_table,
    layout_from_meta,
)
from tracekit.whatif.replay import prepare
from tracekit.whatif.result import calls_to_dict, calls_to_text, to_dict, to_text
from tracekit.whatif.streams import StreamReplay

__all__ = [
    "Cause",
    "CauseResult",
    "CollectiveReplay",
    "CollectivesWhatIf",
    "Layout",
    "Operations",
    "Places",
    "StreamReplay",
    "WhatIf",
    "analyse",
    "calls_to_dict",
    "calls_to_text",
    "from_pipeline_rows",
    "from_timer_table",
    "idle_beyond_s",
    "is_timer_table",
    "layout_from_meta",
    "parse_remove",
    "parse_scale",
    "prepare",
    "saved_by_stage_s",
    "saved_evenly_s",
    "to_dict",
    "to_text",
    "uses_operations",
]

"""What tests of rules about stalls share: which query each reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tracekit.rules import rule
from tracekit.rules.base import RuleOutcome

MakeJob = Callable[..., Any]


QUERY_OF = {
    "dataloader-stall": "input_stall",
    "gc-pause": "gc_pause",
    "checkpoint-stall": "checkpoint_stall",
    "sync-stall": "sync_stall",
    "recompile": "compile_stall",
    "allocator-stall": "allocator_stall",
}


ALL = pytest.mark.parametrize("name", QUERY_OF)


def look(name: str, job: Any, **known: Any) -> RuleOutcome:
    return rule(name).run(job.facts(**known))

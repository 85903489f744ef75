"""How often a rule was right on the accuracy bench, by level of evidence: what confidence quotes.

``reliability.json`` beside this module is written by the bench and committed; it says from how many
jobs, seeds and findings. Simulated and recorded jobs are counted apart and never added up: the
simulator and the rules have one author.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from msgspec import Struct

Jobs = Literal["simulated", "recorded"]
KINDS: tuple[Jobs, ...] = ("simulated", "recorded")
MIN_COUNT = 10
"""Findings from which a share is quoted: of fewer, one more would move it by a tenth."""


class Counted(Struct, frozen=True):
    """Findings of one rule at one level on one kind of jobs, and how many were right."""

    right_count: int
    findings_count: int


@cache
def table() -> Mapping[str, Any]:
    """The committed table; empty where there is none (a bench that makes the first one)."""
    path = files("tracekit").joinpath("reliability.json")
    counts: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return counts


def counted(rule: str, level: str, jobs: Jobs) -> Counted:
    """What the bench saw of a rule at a level; zeros where it saw none."""
    entry = table().get(jobs, {}).get("rules", {}).get(rule, {}).get(level, {})
    return Counted(int(entry.get("right", 0)), int(entry.get("of", 0)))


def precision(rule: str, level: str) -> float | None:
    """Share of right ones on simulated jobs; None where there are too few to say."""
    seen = counted(rule, level, "simulated")
    if seen.findings_count < MIN_COUNT:
        return None
    return seen.right_count / seen.findings_count

"""What a range of the training loop is for, whatever a framework calls it."""

from __future__ import annotations

from typing import Literal

RangeKind = Literal[
    "input",
    "copy",
    "forward",
    "backward",
    "optimizer",
    "checkpoint",
    "evaluation",
    "logging",
    "collection",
    "compilation",
]

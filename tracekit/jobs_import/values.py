"""Reading foreign values: whole numbers, switches, and descriptions made of what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tracekit.job import JobDescription

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "bfloat16": "bfloat16", "float16": "float16"}


def whole(value: Any) -> int | None:
    """A positive whole number, from a number or text; None for anything else (auto, -1, true)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = int(value) if not isinstance(value, float) else int(value) * (value == int(value))
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 < number < 2**31 else None


def mapping(value: Any) -> dict[Any, Any]:
    """The value where it is a mapping; else an empty one: nothing is known."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """The value where it is a list; else an empty one."""
    return value if isinstance(value, list) else []


def switch(value: Any) -> bool | None:
    """A switch, from a boolean or text; None where it is neither."""
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False, "1": True, "0": False}.get(str(value).strip().lower())


def described(
    sections: Mapping[str, Mapping[str, Any]],
    notes: tuple[str, ...] = (),
    **top: Any,
) -> JobDescription:
    """A description from what is known; None counts as not given."""
    content: dict[str, Any] = {
        name: {k: v for k, v in values.items() if v is not None}
        for name, values in sections.items()
    }
    content |= {k: v for k, v in top.items() if v is not None}
    job = msgspec.convert(content, JobDescription)
    return msgspec.structs.replace(job, notes=notes)

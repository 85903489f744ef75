"""The JSON of ``diagnose``: DESIGN's contract, keys in a fixed order, no NaN."""

from __future__ import annotations

import json
import math
from enum import Enum
from typing import Any

from msgspec import Struct

from tracekit.report.model import Report


def to_json(report: Report) -> str:
    """The document, indented, with a final newline.

    ASCII only: names from foreign files may hold lone surrogates or terminal controls.
    """
    return json.dumps(plain(report.document), indent=2, allow_nan=False, ensure_ascii=True) + "\n"


def plain(value: object) -> Any:
    """Records, tuples and enums as what JSON knows; a number that is none becomes null."""
    if isinstance(value, Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value

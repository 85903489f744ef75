"""The JSON of ``compare``, and its schema."""

from __future__ import annotations

import json

from tracekit.comparison.model import SCHEMA_VERSION, Comparison
from tracekit.report.json import plain
from tracekit.report.schema import as_page, schema_of


def to_json(comparison: Comparison) -> str:
    """The document, indented, with a final newline. ASCII only, as that of diagnose."""
    return json.dumps(plain(comparison), indent=2, allow_nan=False, ensure_ascii=True) + "\n"


def schema_page() -> str:
    """The text of docs/compare.schema.json."""
    return as_page(schema_of(Comparison, "compare", SCHEMA_VERSION))

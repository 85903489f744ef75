"""JSON Schema (2020-12) of the document, generated from the model."""

from __future__ import annotations

import inspect
import json
from typing import Any

from tracekit.report.model import SCHEMA_VERSION, Document

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def document_schema() -> dict[str, Any]:
    """The schema. Every key is always present; unknown keys are allowed (additions only)."""
    import msgspec

    schema = msgspec.json.schema(Document)
    for definition in schema["$defs"].values():
        if "description" in definition:
            # Python 3.13 and later take the indentation off docstrings themselves.
            definition["description"] = inspect.cleandoc(definition["description"])
        if definition.get("type") == "object" and "properties" in definition:
            definition["required"] = list(definition["properties"])
            for shape in definition["properties"].values():
                shape.pop("default", None)
    document = schema["$defs"]["Document"]
    document["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    return {
        "$schema": DIALECT,
        "title": "tracekit diagnose",
        "description": "What `tracekit diagnose --format json` prints. Additions only.",
        "$ref": schema["$ref"],
        "$defs": dict(sorted(schema["$defs"].items())),
    }


def schema_page() -> str:
    """The text of docs/diagnose.schema.json."""
    return json.dumps(document_schema(), indent=2) + "\n"

"""JSON Schema (2020-12) of documents, generated from their models."""

from __future__ import annotations

import inspect
import json
from typing import Any

from tracekit.report.model import SCHEMA_VERSION, Document

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def document_schema() -> dict[str, Any]:
    """The schema of a diagnosis."""
    return schema_of(Document, "diagnose", SCHEMA_VERSION)


def schema_of(kind: type, command: str, version: int) -> dict[str, Any]:
    """The schema of what a command prints as JSON, which begins with ``schema_version``.

    Every key is always present; unknown keys are allowed (additions only).
    """
    import msgspec

    schema = msgspec.json.schema(kind)
    for definition in schema["$defs"].values():
        if "description" in definition:
            # Python 3.13 and later take the indentation off docstrings themselves.
            definition["description"] = inspect.cleandoc(definition["description"])
        if definition.get("type") == "object" and "properties" in definition:
            definition["required"] = list(definition["properties"])
            for shape in definition["properties"].values():
                shape.pop("default", None)
    document = schema["$defs"][kind.__name__]
    document["properties"]["schema_version"] = {"const": version}
    return {
        "$schema": DIALECT,
        "title": f"tracekit {command}",
        "description": f"What `tracekit {command} --format json` prints. Additions only.",
        "$ref": schema["$ref"],
        "$defs": dict(sorted(schema["$defs"].items())),
    }


def schema_page() -> str:
    """The text of docs/diagnose.schema.json."""
    return as_page(document_schema())


def as_page(schema: dict[str, Any]) -> str:
    """The text of a schema's file."""
    return json.dumps(schema, indent=2) + "\n"

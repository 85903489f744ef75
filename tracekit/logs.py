"""Messages as JSON, one object a line: for programs that collect what a night writes to stderr."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tracekit.wording import safe_lines

JSON_VARIABLE = "TRACEKIT_LOG_JSON"
"""Set by the command for its worker processes, whose warnings stand in the same stream."""


def record(level: str, message: str, **fields: Any) -> str:
    """One line of ASCII without its end: ``time`` (UTC, ISO 8601), ``level`` (info, warning or
    error), ``message``, then the fields. Line breaks of a message are escaped by JSON."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    said = {"time": time, "level": level, "message": safe_lines(message), **fields}
    return json.dumps(said, allow_nan=False)


class _JsonHandler(logging.Handler):
    def emit(self, said: logging.LogRecord) -> None:
        try:
            text = said.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit
            text = str(said.msg)
        level = "error" if said.levelno >= logging.ERROR else "warning"
        line = record(level, text.removeprefix("note: "), logger=said.name)
        with contextlib.suppress(OSError, ValueError):  # as any message of ours
            print(line, file=sys.stderr)  # noqa: T201


def log_json() -> Callable[[], None]:
    """Let what libraries log and warn of be such lines too, also in worker processes; returns what
    takes that back."""
    handler = _JsonHandler()
    root = logging.getLogger()
    root.addHandler(handler)
    logging.captureWarnings(True)
    os.environ[JSON_VARIABLE] = "1"

    def undo() -> None:
        root.removeHandler(handler)
        logging.captureWarnings(False)
        os.environ.pop(JSON_VARIABLE, None)

    return undo


def as_parent() -> None:
    """In a worker process: log as the command that started it."""
    if os.environ.get(JSON_VARIABLE):
        log_json()

"""Finds out why a training job is slow, from the files that it left behind.

    import tracekit
    tracekit.ingest("traces/", run="run/")      # files to a run; idempotent
    run = tracekit.open("run/")                 # or raw paths, through the cache
    run.query("overlap"); run.sql("SELECT ..."); run.diagnose()
    tracekit.compare("yesterday/", "today/")    # what changed, and how sure that is

``tracekit.api`` holds the same functions for type checkers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tracekit.version import __version__ as __version__

if TYPE_CHECKING:
    from tracekit.api import compare as compare
    from tracekit.api import open as open


def __dir__() -> list[str]:
    # What there is, imported or not; modules that happen to be imported are no part of it.
    return ["__version__", "api", "compare", "ingest", "open"]


def __getattr__(name: str) -> Any:
    # Lazy: importing tracekit must not import DuckDB, Arrow or the ingestors.
    if name in ("compare", "open"):
        from tracekit import api

        return getattr(api, name)
    if name == "ingest":
        return import_module("tracekit.ingest")  # a package that can be called
    raise AttributeError(f"module 'tracekit' has no attribute {name!r}")

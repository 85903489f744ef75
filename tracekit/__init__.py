"""Finds out why a training job is slow, from the files that it left behind.

    import tracekit
    tracekit.ingest("traces/", run="run/")      # files to a run; idempotent
    run = tracekit.open("run/")                 # or raw paths, through the cache
    run.query("overlap"); run.sql("SELECT ..."); run.diagnose()

``tracekit.api`` holds the same functions for type checkers.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tracekit.version import __version__ as __version__

if TYPE_CHECKING:
    from tracekit.api import open as open


class _CallablePackage(ModuleType):
    """``tracekit.ingest`` is the package of ingestors and the verb: calling it ingests."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from tracekit import api

        return api.ingest(*args, **kwargs)


def _make_ingest_callable() -> None:
    import tracekit.ingest

    sys.modules[tracekit.ingest.__name__].__class__ = _CallablePackage


def __getattr__(name: str) -> Any:
    # Lazy: importing tracekit must not import DuckDB or Arrow.
    if name == "open":
        from tracekit import api

        return api.open
    raise AttributeError(f"module 'tracekit' has no attribute {name!r}")


_make_ingest_callable()

"""Reports are compared as text, so they quote no figures of the bench, which change."""

from __future__ import annotations

import pytest

from tracekit import reliability


@pytest.fixture(autouse=True)
def _no_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reliability, "table", dict)

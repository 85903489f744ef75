"""What of a long list of parameters every run of the tests has, and what only a whole one has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

_RUN = {"is_whole": True}


def configured(markers: str) -> None:
    """Whether this is a whole run, by the marks that it selects; before test files are imported."""
    _RUN["is_whole"] = "not slow" not in markers


def examples(few: int, many: int) -> int:
    """Of how many examples a property is asked: by ``make test``, and by a whole run."""
    return many if _RUN["is_whole"] else few


def soak(cases: Iterable[Any], *, fast: Iterable[Any] | int) -> list[Any]:
    """All cases as parameters; those that are not in ``fast`` are marked ``slow``.

    For grids whose cases take the same lines of code: ``make test`` has one of each kind, ``make
    test-all`` and CI all of them. ``fast`` as a number: so many of the first.
    """
    cases = list(cases)
    fast = cases[:fast] if isinstance(fast, int) else list(fast)
    if [case for case in fast if case not in cases]:
        raise ValueError("what is fast must be one of the cases")
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in fast else pytest.mark.slow,
        )
        for case in cases
    ]

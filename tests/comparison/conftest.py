"""Recorded pairs, read once for all tests of this folder."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from accuracy.twins import TWINS
from tracekit import api
from tracekit.comparison.sides import RunRows


@pytest.fixture(scope="session")
def compared_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RunRows]]:
    """Rows of a recorded twin by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))

        @functools.cache
        def rows(name: str) -> RunRows:
            with api.open(TWINS / name) as run:
                return run.compared()

        yield rows

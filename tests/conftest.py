"""Fixtures that many tests share."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from tracekit import catalog


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """An in-memory database with the queries' macros and every logical table, empty."""
    with duckdb.connect() as connection:
        catalog.load_macros(connection)
        catalog.create_empty_tables(connection)
        yield connection

"""Rows that wait in a file come back as they were, in their order."""

from __future__ import annotations

import errno
import io
import tempfile

import numpy as np
import pyarrow as pa
import pytest

from tracekit.errors import RunWriteError
from tracekit.ingest.traces import launches, spill

SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("text", pa.string()),
        ("grid", pa.list_(pa.int32())),
        ("is", pa.bool_()),
    ]
)


def _batch(first: int, count: int, *, null: tuple[str, ...] = ()) -> pa.Table:
    rows = range(first, first + count)
    values = {
        "number": [i if i % 3 else None for i in rows],
        "text": [f"text {i}" for i in rows],
        "grid": [[i, 1, 1] for i in rows],
        "is": [i % 2 == 0 for i in rows],
    }
    return pa.table({n: [None] * count if n in null else v for n, v in values.items()}, SCHEMA)


@pytest.mark.parametrize("limit", [1, 10, 1000])
def test_rows_come_back_whatever_is_unknown_in_a_batch(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "SPILL_ROWS", limit)
    batches = [
        _batch(0, 7),
        _batch(7, 9, null=("text", "grid")),
        _batch(16, 4, null=("number", "text", "grid", "is")),
        _batch(20, 5),
    ]
    kept = spill.Spill()
    for batch in batches:
        kept.add(batch)
    assert kept.rows == 25
    for _ in range(2):
        read = list(kept.batches())
        assert all(batch.schema == SCHEMA for batch in read)
        assert pa.concat_tables(read).to_pylist() == pa.concat_tables(batches).to_pylist()
    kept.close()


def test_nothing_comes_back_of_nothing() -> None:
    kept = spill.Spill()
    assert list(kept.batches()) == []
    kept.close()


def test_what_is_unknown_takes_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "SPILL_ROWS", 1)
    sizes = {}
    for null in ((), ("number", "text", "grid")):
        kept = spill.Spill()
        kept.add(_batch(0, 4000, null=null))
        sizes[null] = kept._file.tell()
        kept.close()
    assert sizes["number", "text", "grid"] < sizes[()] / 50


class _Full(io.BytesIO):
    """A file on a disk without space."""

    def write(self, _: object) -> int:
        raise OSError(errno.ENOSPC, "none")


def test_a_full_disk_is_not_the_trace_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "SPILL_ROWS", 1)
    monkeypatch.setattr(launches, "PIECE_ROWS", 1)
    monkeypatch.setattr(tempfile, "TemporaryFile", _Full)
    rows = spill.Spill()
    with pytest.raises(RunWriteError, match="No space left on device") as told:
        rows.add(_batch(0, 3))
    assert "TMPDIR" in str(told.value.hint)
    rows.close()
    one = np.ones(1, np.int64)
    calls = launches.LaunchFile()
    with pytest.raises(RunWriteError, match="No space left on device"):
        calls.add(one, one, one, one, one)
    calls.close()

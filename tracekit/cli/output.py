"""Rows to stdout or a file, in the format that was asked for."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.cli.options import TableFormat
from tracekit.cli.state import STATE, note, to_stdout
from tracekit.errors import UsageError
from tracekit.wording import safe

if TYPE_CHECKING:
    import pyarrow as pa


def check_target(path: Path | None, force: bool) -> None:
    """Refuse to overwrite unasked, before any work is done."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{path}: not a file in a folder that exists", hint="-o FILE")
    if path.exists() and not force:
        raise UsageError(f"{path}: exists", hint="--force overwrites it")


def write_text(text: str, path: Path | None) -> None:
    """Text to stdout, or whole to a file."""
    if STATE.is_interrupted:  # a library took the interrupt for a failure of its own
        raise KeyboardInterrupt
    if path is None:
        with to_stdout() as stream:
            stream.write(text)
        return
    with _replacing(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    note(f"wrote {path}")


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A neighbour of the file to write to, which takes its place once it is whole.

    A link stays, and what it leads to is replaced; a pipe or device is written to itself.
    """
    whole = path.resolve()
    draft = whole.with_name(f".{whole.name}.{os.getpid()}.part")
    if whole.exists() and not whole.is_file():
        draft = whole
    try:
        yield draft
        if draft != whole:
            if whole.exists():
                shutil.copymode(whole, draft)
            draft.replace(whole)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror or type(error).__name__})",
            hint="-o names a file in a folder that exists",
        ) from None
    finally:
        if draft != whole:
            draft.unlink(missing_ok=True)


def write_rows(rows: pa.Table, format_: TableFormat, path: Path | None = None) -> None:
    """Rows in the given format."""
    if format_ is TableFormat.parquet:
        _write_parquet(rows, path)
    elif format_ is TableFormat.csv:
        write_text(_csv(rows), path)
    elif format_ is TableFormat.json:
        write_text(json.dumps(_plain(rows), indent=1, default=str) + "\n", path)
    elif format_ is TableFormat.jsonl:
        lines = [json.dumps(row, default=str) + "\n" for row in _plain(rows)]
        write_text("".join(lines), path)
    else:
        write_text(_table(rows), path)


def _write_parquet(rows: pa.Table, path: Path | None) -> None:
    import pyarrow.parquet as pq

    if path is None and sys.stdout.isatty():
        raise UsageError("parquet does not go to a terminal", hint="-o FILE.parquet")
    if path is None:
        with to_stdout() as stream:
            pq.write_table(rows, stream.buffer)
        return
    with _replacing(path) as draft:
        pq.write_table(rows, draft)
    note(f"wrote {path}")


def _csv(rows: pa.Table) -> str:
    import csv
    import io

    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(rows.column_names)
    for row in rows.to_pylist():
        writer.writerow(["" if v is None else _csv_value(v) for v in row.values()])
    return stream.getvalue()


def _csv_value(value: object) -> object:
    # A cell that starts like a formula would run in a spreadsheet; files come from strangers.
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def _plain(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as JSON can hold them: no NaN, no infinity."""
    return [
        {k: None if isinstance(v, float) and v - v != 0 else v for k, v in row.items()}
        for row in rows.to_pylist()
    ]


def _table(rows: pa.Table) -> str:
    """Aligned columns: numbers right, text left, nothing cut."""
    names = rows.column_names
    body = [[_cell(v) for v in row.values()] for row in rows.to_pylist()]
    widths = [max([len(n), *(len(r[i]) for r in body)]) for i, n in enumerate(names)]
    is_text = [_is_text(rows, i) for i in range(len(names))]

    def line(cells: list[str]) -> str:
        padded = [
            c.ljust(w) if t else c.rjust(w) for c, w, t in zip(cells, widths, is_text, strict=True)
        ]
        return "  ".join(padded).rstrip()

    rule = ["-" * w for w in widths]
    count = f"({len(body)} row{'' if len(body) == 1 else 's'})"
    return "\n".join([line(names), line(rule), *(line(r) for r in body), count]) + "\n"


def _is_text(rows: pa.Table, index: int) -> bool:
    import pyarrow as pa

    kind = rows.schema.field(index).type
    return not (pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return safe(str(value))

"""Rows to stdout or a file, in the format that was asked for."""

from __future__ import annotations

import json
import shutil
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.cli.options import TableFormat
from tracekit.cli.state import STATE, note, to_stdout
from tracekit.drafts import replacing
from tracekit.errors import UsageError
from tracekit.wording import cut, safe

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
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    note(f"wrote {path}")


def write_bytes(data: bytes, path: Path) -> None:
    """Bytes whole to a file."""
    with replacing(path) as draft:
        draft.write_bytes(data)
    note(f"wrote {path}")


class Listed(NamedTuple):
    """Columns as Python has them, to be written as an Arrow table is without Arrow's start."""

    column_names: list[str]
    columns: list[list[Any]]
    is_text: list[bool]


def write_rows(rows: pa.Table | Listed, format_: TableFormat, path: Path | None = None) -> None:
    """Rows in the given format; Parquet is written of Arrow tables only."""
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
        is_shown = path is None and sys.stdout.isatty()
        width = shutil.get_terminal_size((0, 24)).columns if is_shown else 0
        write_text(table(rows, width or None), path)


def _write_parquet(rows: pa.Table, path: Path | None) -> None:
    import pyarrow.parquet as pq

    if path is None and sys.stdout.isatty():
        raise UsageError("parquet does not go to a terminal", hint="-o FILE.parquet")
    if path is None:
        with to_stdout() as stream:
            pq.write_table(rows, stream.buffer)
        return
    with replacing(path) as draft:
        pq.write_table(rows, draft)
    note(f"wrote {path}")


def _csv(rows: pa.Table | Listed) -> str:
    import csv
    import io

    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([_csv_value(name) for name in rows.column_names])
    for row in _rows(rows):
        writer.writerow(["" if v is None else _csv_value(v) for v in row])
    return stream.getvalue()


def _csv_value(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, dict)):
        return json.dumps(_finite(value), default=str)
    if not isinstance(value, str):
        return value
    # CSV is looked at in terminals, through pipes too; json and parquet keep every character.
    text = (
        "".join(c if c in "\n\t" else safe(c) for c in value) if not value.isprintable() else value
    )
    # A cell that starts like a formula would run in a spreadsheet; files come from strangers.
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _plain(rows: pa.Table | Listed) -> list[dict[str, Any]]:
    """Rows as JSON can hold them: no NaN, no infinity."""
    names = rows.column_names
    return [dict(zip(names, map(_finite, row), strict=True)) for row in _rows(rows)]


def _finite(value: Any) -> Any:
    """The value with null for what JSON has no number for, in lists and structs too."""
    if isinstance(value, float):
        return None if value - value != 0 else value
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return value


def _rows(rows: pa.Table | Listed) -> list[tuple[Any, ...]]:
    """Rows as Python has them; by column, since a name may stand twice."""
    if isinstance(rows, Listed):
        return list(zip(*rows.columns, strict=True))
    if not rows.num_columns:
        return [()] * rows.num_rows
    return list(zip(*map(_values, rows.columns), strict=True))


def _values(column: pa.ChunkedArray) -> list[Any]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]  # pyarrow is untyped
    except (ArithmeticError, ValueError):  # a time that Python has no type for
        return [_value(scalar) for scalar in column]


def _value(scalar: pa.Scalar) -> Any:
    """A value that may be, or hold, a time that Python has no type for."""
    import pyarrow as pa

    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(kind):
        return {name: _value(value) for name, value in scalar.items()}
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return [_value(value) for value in scalar.values]
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _time(scalar)
    try:
        return scalar.as_py()
    except (ArithmeticError, ValueError):
        return str(scalar.cast(pa.string()))


def _time(scalar: pa.Scalar) -> str:
    """A date or time as text, as Python writes those that it has; infinity as DuckDB calls it."""
    import pyarrow as pa

    try:
        return str(scalar.as_py())
    except (ArithmeticError, ValueError):
        pass
    number = int(scalar.value)
    unit = scalar.type.unit if pa.types.is_timestamp(scalar.type) else "days"
    if abs(number) == (2**31 - 1 if unit == "days" else 2**63 - 1):
        return "infinity" if number > 0 else "-infinity"
    if unit == "ns":
        seconds, rest_ns = divmod(number, 10**9)
        moment = datetime(1970, 1, 1) + timedelta(seconds=seconds)
        return f"{moment}.{rest_ns:09}"
    return f"{number} {unit} since 1970"


MIN_NAME_WIDTH = 12
"""What is left of a name, so that it can still be told from others."""


def table(rows: pa.Table | Listed, width: int | None = None) -> str:
    """Aligned columns: numbers right, text left.

    Nothing is cut unless a terminal's ``width`` is given: then text is, the longest first, so that
    lines fit; a number never is, and lines of many numbers may be longer.
    """
    names = [safe(name) for name in rows.column_names]
    body = [[_cell(v) for v in row] for row in _rows(rows)]
    whole = [max([len(n), *(len(r[i]) for r in body)]) for i, n in enumerate(names)]
    is_text = [_is_text(rows, i) for i in range(len(names))]
    is_name = [_is_name(rows, i) for i in range(len(names))]
    widths = _narrowed(whole, is_name, width) if width is not None else whole

    def line(cells: list[str]) -> str:
        padded = [
            cut(c, w).ljust(w) if t else c.rjust(w)
            for c, w, t in zip(cells, widths, is_text, strict=True)
        ]
        return "  ".join(padded).rstrip()

    rule = ["-" * w for w in widths]
    more = "" if widths == whole else "; names are cut: --format csv has them whole"
    count = f"({len(body)} row{'' if len(body) == 1 else 's'}{more})"
    return "\n".join([line(names), line(rule), *(line(r) for r in body), count]) + "\n"


def _narrowed(widths: list[int], is_name: list[bool], room: int) -> list[int]:
    """The widths of columns, those of names cut to a common limit for which the line fits."""
    over = sum(widths) + 2 * (len(widths) - 1) - room
    texts = [w for w, t in zip(widths, is_name, strict=True) if t and w > MIN_NAME_WIDTH]
    most = max(texts, default=0)
    while over > 0 and most > MIN_NAME_WIDTH:
        over -= sum(w >= most for w in texts)
        most -= 1
    return [min(w, most) if t and texts else w for w, t in zip(widths, is_name, strict=True)]


def _is_text(rows: pa.Table | Listed, index: int) -> bool:
    if isinstance(rows, Listed):
        return rows.is_text[index]
    import pyarrow as pa

    kind = rows.schema.field(index).type
    return not (pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_name(rows: pa.Table | Listed, index: int) -> bool:
    if isinstance(rows, Listed):  # whose times are text too
        return rows.is_text[index]
    import pyarrow as pa

    kind = rows.schema.field(index).type
    return _is_text(rows, index) and not (pa.types.is_temporal(kind) or pa.types.is_decimal(kind))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return safe(str(value))

"""Foreign values on their way into columns of the registry: what does not fit becomes null.

A file may say anything: a number of 5,000 digits, infinity, a time a million years away, half of a
character. Nothing of that may end the file that it stands in. This is the one place where such
values meet the types of the registry; it tells what it had to leave out, and where.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.schema import table

if TYPE_CHECKING:
    import pyarrow as pa

TIME_LIMIT_NS = 2**62
"""Times from here on, forwards or backwards, cannot be meant (1823 and 2116), and would overflow
when a duration or a clock's offset is added."""

EPOCH_S = 946_684_800, 4_102_444_800
"""2000 and 2100 in seconds since the epoch: a number between them, in some unit, is a moment."""

MAX_PRINTED = 10**40
"""No number that a file prints is as large, whether as a text or as a number: no float holds the
largest, nor what they are in a smaller unit."""

MAX_RANKS = 1 << 20
"""Ranks of a job that are believed. The largest clusters have some 100,000 GPUs; a header that
states more is damage, and what is as long as the job has ranks would take all memory."""

NO_FIT = "no_fit"
"""Counter of what was left out."""
NO_FIT_DOC = (
    "Values that cannot be meant: numbers beyond 64 bits, infinity, times before 1824 or after "
    "2115, words where a number stands. They are left out, the rest of their record is kept."
)
BAD_TEXT = "bad_text"
"""Counter of repaired text."""
BAD_TEXT_DOC = "Text with bytes or half characters that are no text: each shows as U+FFFD."


class Misfit(NamedTuple):
    """What did not fit into a column."""

    column: str
    row: int
    """The first row of them."""
    values_count: int
    is_text: bool
    """Text that was repaired; else values that became null."""


def tell(count: Callable[..., None], rows: pa.Table, misfits: Sequence[Misfit]) -> None:
    """Count what did not fit into the columns of ``rows`` (``Sink.count``), with its place."""
    for misfit in misfits:
        place = rows.column("place")[misfit.row].as_py() if "place" in rows.column_names else None
        count(
            BAD_TEXT if misfit.is_text else NO_FIT,
            misfit.values_count,
            severity="info" if misfit.is_text else "warning",
            doc=BAD_TEXT_DOC if misfit.is_text else NO_FIT_DOC,
            place=place,
            shape=misfit.column,
        )


def clean(text: str) -> str:
    """Text that UTF-8 can hold: lone surrogates become U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def group_id(ranks: Iterable[int]) -> str:
    """The id of a group of ranks: equal for equal sets of global ranks, in every file."""
    return _group_id(tuple(ranks))


@lru_cache(maxsize=64)  # a file names its few groups with every collective
def _group_id(ranks: tuple[int, ...]) -> str:
    text = ",".join(str(r) for r in sorted(ranks))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fitted(
    name: str, columns: Mapping[str, Sequence[object] | pa.Array]
) -> tuple[pa.Table, list[Misfit]]:
    """Rows of the registry's table ``name`` from Python values or arrays, and what did not fit.

    Values of Python become the registry's types. Arrays keep theirs unless that loses values: then
    they are cast, and what does not fit becomes null. KeyError for a column that is none.
    """
    import pyarrow as pa

    types = _declared(name)
    misfits: list[Misfit] = []
    arrays: dict[str, Any] = {}
    for column, values in columns.items():
        type_ = types[column][0]
        if isinstance(values, pa.Array | pa.ChunkedArray):
            arrays[column] = values
            continue
        try:
            arrays[column] = pa.array(values, type_)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            arrays[column], bad = _one_by_one(column, values, type_)
            misfits += bad
    rows = pa.table(arrays)
    rows, more = bounded(name, rows)
    return rows, misfits + more


def bounded(name: str, rows: pa.Table) -> tuple[pa.Table, list[Misfit]]:
    """Rows without infinite numbers and times that cannot be, in types that the registry takes.

    Nearly always nothing is wrong, and the ends of each column of times tell that. Columns that
    the registry does not know, or whose type no cast leads to it, stay: who writes them is wrong,
    not the file.
    """
    import pyarrow as pa

    misfits: list[Misfit] = []
    for at, column, type_, is_time in _to_check(name, rows.schema):
        values = rows.column(at)
        if values.type != type_:
            try:
                values = values.cast(type_)
            except pa.ArrowNotImplementedError:
                continue
            except pa.ArrowInvalid:
                values, told = _one_by_one(column, values.to_pylist(), type_)
                misfits += told
                rows = rows.set_column(at, column, values)
        good = _meant(values, is_time=is_time)
        if good is None:
            continue
        import pyarrow.compute as pc

        wrong = pc.invert(pc.fill_null(good, True))
        first, count = pc.index(wrong, True).as_py(), pc.sum(wrong).as_py()
        misfits.append(Misfit(column, first, count, is_text=False))
        rows = rows.set_column(at, column, pc.if_else(wrong, None, values))
    return rows, misfits


_MAX_PLANS = 32
"""Schemas of one table that are remembered: an ingestor has a few."""
_PLANS: dict[str, list[tuple[pa.Schema, list[tuple[int, str, pa.DataType, bool]]]]] = {}


def _to_check(name: str, schema: pa.Schema) -> list[tuple[int, str, pa.DataType, bool]]:
    """The columns that may hold what does not fit: position, name, type, whether it is a time."""
    import pyarrow as pa

    plans = _PLANS.setdefault(name, [])
    for known, plan in plans:
        if known.equals(schema):
            return plan
    declared = _declared(name)
    plan = []
    for at, field in enumerate(schema):
        type_, is_time = declared.get(field.name, (field.type, False))
        is_other = field.type != type_ and not _is_packed(field.type, type_)
        if is_other or is_time or (field.name in declared and pa.types.is_floating(type_)):
            plan.append((at, field.name, type_, is_time))
    if len(plans) < _MAX_PLANS:
        plans.append((schema, plan))
    return plan


def _meant(values: pa.ChunkedArray, *, is_time: bool) -> pa.ChunkedArray | None:
    """Which values can be meant; None where all can."""
    import pyarrow as pa

    if _are_times(values) if is_time else not pa.types.is_floating(values.type):
        return None
    import pyarrow.compute as pc

    if is_time:
        return pc.and_(pc.greater(values, -TIME_LIMIT_NS), pc.less(values, TIME_LIMIT_NS))
    good = pc.is_finite(values)
    return good if pc.all(good).as_py() is False else None


def _are_times(values: pa.ChunkedArray) -> bool:
    from tracekit import arrays

    ends = arrays.ends(values)
    return ends is None or (ends[0] > -TIME_LIMIT_NS and ends[1] < TIME_LIMIT_NS)


def _is_packed(stored: pa.DataType, wanted: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_dictionary(stored) and stored.value_type == wanted)


def _one_by_one(
    column: str, values: Sequence[object], type_: pa.DataType
) -> tuple[pa.Array, list[Misfit]]:
    """A column of values of which at least one does not fit."""
    import pyarrow as pa

    fitting: list[object] = []
    wrong: dict[bool, list[int]] = {False: [], True: []}
    for row, value in enumerate(values):
        try:
            pa.array([value], type_)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            repaired = _repaired(value)
            try:
                pa.array([repaired], type_)
            except (pa.ArrowException, OverflowError, TypeError, ValueError):
                repaired = None
            wrong[repaired is not None].append(row)
            fitting.append(repaired)
        else:
            fitting.append(value)
    misfits = [Misfit(column, rows[0], len(rows), text) for text, rows in wrong.items() if rows]
    return pa.array(fitting, type_), misfits


def _repaired(value: object) -> object:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list | tuple):
        return [_repaired(v) for v in value]
    return None


@cache
def _declared(name: str) -> dict[str, tuple[pa.DataType, bool]]:
    """The type of each stored column of a table, and whether it is a time."""
    spec = table(name)
    fields = spec.arrow_schema()
    return {c.name: (fields.field(c.name).type, c.is_time) for c in spec.stored_columns}

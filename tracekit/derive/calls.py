"""The rows of ``collective`` as arrays: what matching and clock alignment work on.

A *lane* is one rank's calls on one communicator in one capture, in the order in which they
started. Where the trace names the group, the lane is the group; else it is what stands in for
one: a device stream (each communicator has its own) or a worker thread of gloo.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from tracekit.correction import Correction, corrected
from tracekit.derive.stage import relations

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "barrier")
"""Operations that no member leaves before the last one has entered."""

SIZED = (*SYNCHRONISING, "broadcast", "reduce")
"""Operations whose members all state the same total size."""

NOBODY = -1
"""A number that the trace does not give."""

_TYPES = {
    "bf16": ("bfloat16", "__nv_bfloat16", "c10::bfloat16"),
    "f16": ("half", "float16", "__half", "c10::half"),
    "f32": ("float", "float32"),
    "f64": ("double", "float64"),
    "i8": ("char", "int8", "int8_t"),
    "u8": ("byte", "uint8", "uint8_t"),
    "i32": ("int", "int32", "int32_t"),
    "i64": ("long", "int64", "int64_t", "long int"),
}
"""One word for what producers spell each in their own way."""

_CALLS = """
WITH placed AS (
    SELECT x.attempt, coalesce(x.capture_id, 0) AS capture, x.rank, x.clock_id,
           c.* REPLACE (
               coalesce(g.resolved_id, c.group_id) AS group_id,
               coalesce(g.resolved_name, c.group_name) AS group_name,
               coalesce(c.src_rank, CASE WHEN c.op = 'recv' THEN p.member END) AS src_rank,
               coalesce(c.dst_rank, CASE WHEN c.op = 'send' THEN p.member END) AS dst_rank
           ),
           coalesce(c.op, 'unknown') AS kind,
           coalesce(c.is_p2p, false) OR coalesce(c.op IN ('send', 'recv', 'send_recv'), false)
               AS is_pair
    FROM collective c JOIN derive_context x USING (source_id)
    LEFT JOIN (SELECT DISTINCT attempt, group_id, resolved_id, resolved_name FROM derive_members) g
        ON g.attempt = x.attempt AND g.group_id = c.group_id
    LEFT JOIN derive_members p
        ON p.attempt = x.attempt AND p.group_id = c.group_id AND p.group_rank = c.peer_group_rank
    WHERE x.rank IS NOT NULL AND c.start_ns IS NOT NULL AND c.dur_ns IS NOT NULL
), named AS (
    SELECT *,
        CASE
            WHEN group_id IS NOT NULL THEN 'g' || group_id || '/' || coalesce(group_name, '')
            WHEN is_pair THEN 'p'
            WHEN timeline = 'device' THEN 'd' || coalesce(device, -1) || '/' || coalesce(stream, -1)
            ELSE 't' || coalesce(thread, -1)
        END || CASE WHEN is_pair THEN '#p2p' ELSE '' END AS lane_name
    FROM placed
)
SELECT source_id, place, attempt, capture, rank, clock_id, start_ns, start_ns + dur_ns AS end_ns,
       if(timeline = 'host', start_ns, coalesce(enqueue_ns, start_ns)) AS asked_ns,
       lane_name, group_id, group_name, coalesce(group_size, -1) AS group_size,
       coalesce(sequence, -1) AS sequence, kind AS op, is_pair,
       coalesce(message_bytes, -1) AS message_bytes,
       coalesce(t.element_type, lower(dtype), '') AS dtype,
       coalesce(src_rank, -1) AS src_rank, coalesce(dst_rank, -1) AS dst_rank,
       coalesce(peer_group_rank, -1) AS peer_group_rank,
       coalesce(timeline, 'device') AS timeline, coalesce(thread, -1) AS thread,
       coalesce(step, -1) AS step,
       coalesce(is_cut_start, false) OR coalesce(is_cut_end, false) AS is_cut
FROM named LEFT JOIN derive_types t ON t.name = lower(dtype)
"""
_ORDER = ("attempt", "capture", "rank", "lane_name", "start_ns", "place", "source_id")
BATCH_ROWS = 1 << 16
"""Calls whose text is in memory at once: as numbers they take a fifth of the room, and DuckDB would
hold all of them to put them in order."""


class Lane(Struct, frozen=True):
    """Rows ``first`` to ``last`` (exclusive) of the calls; several where threads share a pool."""

    attempt: int
    capture: int
    rank: int
    clock_id: int
    name: str
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)


class Calls(Struct, frozen=True, dict=True):
    """Columns of the collectives of placed ranks, in order of lanes and start."""

    texts: dict[str, list[str]]
    """What the numbers of text columns stand for, by column."""
    ints: dict[str, Ints]

    def __len__(self) -> int:
        return len(self.ints["rank"])

    def __getitem__(self, name: str) -> Ints:
        return self.ints[name]

    def text(self, name: str, row: int) -> str | None:
        """A text column of one row."""
        code = int(self[name][row])
        return None if code == NOBODY else self.texts[name][code]

    @cached_property
    def is_synchronising(self) -> Bools:
        """Rows whose operation nobody leaves before the last member has entered."""
        import numpy as np

        values = self.op_names
        wanted = [code for code, name in enumerate(values) if name in SYNCHRONISING]
        return np.isin(self["op"], wanted)

    @cached_property
    def is_on_host(self) -> Bools:
        """Rows that a thread of the host ran, as gloo's do."""
        host: Bools = self["timeline"] == self.code("timeline", "host")
        return host

    @cached_property
    def op_names(self) -> list[str]:
        """Operation by code."""
        return self.texts["op"]

    @cached_property
    def kind(self) -> Ints:
        """One code for what members of an instance must agree on: operation, size and type."""
        import numpy as np

        sized = [code for code, name in enumerate(self.op_names) if name in SIZED]
        size = np.where(np.isin(self["op"], sized), self["message_bytes"], NOBODY)
        size = np.where(self._is_told_by_all(size != NOBODY), size, NOBODY)
        _, size_code = np.unique(size, return_inverse=True)
        blank = self.code("dtype", "")
        dtype = np.where(self._is_told_by_all(self["dtype"] != blank), self["dtype"], 0)
        key = (self["op"] * (int(dtype.max(initial=0)) + 1) + dtype) * (
            int(size_code.max(initial=0)) + 1
        ) + size_code
        _, code = np.unique(key, return_inverse=True)
        shapes: Ints = code.astype(np.int64)
        return shapes

    def code(self, column: str, value: str) -> int:
        """The number of a text in a column; NOBODY where no row has it."""
        values = self.texts[column]
        return values.index(value) if value in values else NOBODY

    def _is_told_by_all(self, told: Bools) -> Bools:
        """Rows of operations of which every source tells something, or none does.

        Sources of different kinds tell different things: what one kind leaves out is no reason
        for its calls to differ from the others'.
        """
        import numpy as np

        width = int(self["source_id"].max(initial=0)) + 1
        key = self["op"] * width + self["source_id"]
        pairs, index = np.unique(key, return_inverse=True)
        any_told = np.zeros(len(pairs), bool)
        np.logical_or.at(any_told, index, told)
        silent = np.unique(pairs[~any_told] // width)
        return ~np.isin(self["op"], silent)

    @cached_property
    def lanes(self) -> list[Lane]:
        """All lanes, as the trace shows them."""
        import numpy as np

        if not len(self):
            return []
        same = np.ones(len(self), bool)
        same[0] = False
        for name in ("attempt", "capture", "rank", "lane_name"):
            same[1:] &= self[name][1:] == self[name][:-1]
        starts = np.flatnonzero(~same)
        names = self.texts["lane_name"]
        return [
            Lane(
                int(self["attempt"][rows[0]]),
                int(self["capture"][rows[0]]),
                int(self["rank"][rows[0]]),
                int(self["clock_id"][rows[0]]),
                names[int(self["lane_name"][rows[0]])],
                rows.astype(np.int64),
            )
            for rows in np.split(np.arange(len(self)), starts[1:])
        ]

    def with_steps(self, steps: Ints) -> Calls:
        """The same calls, those without a step with the ones given (NOBODY: none)."""
        import numpy as np

        known = self["step"]
        return Calls(self.texts, {**self.ints, "step": np.where(known == NOBODY, steps, known)})

    def moved(self, corrections: Mapping[int, Correction]) -> Calls:
        """The same calls with times on the job's clock; ``corrections`` by source."""
        if not corrections:
            return self
        moved = {
            name: corrected(self[name], self["source_id"], corrections)
            for name in ("start_ns", "end_ns")
        }
        return Calls(self.texts, {**self.ints, **moved})


_TEXTS = ("lane_name", "group_id", "group_name", "op", "dtype", "timeline")


def read_calls(con: duckdb.DuckDBPyConnection, context: pa.Table, members: pa.Table) -> Calls:
    """The calls of all sources in ``context`` (source_id, attempt, rank, capture_id, clock_id).

    ``members``: of communicators that were resolved (communicators.Communicators.table).
    """
    import numpy as np
    import pyarrow as pa

    from tracekit import arrays

    names, types = zip(*((n, dtype) for dtype, known in _TYPES.items() for n in known), strict=True)
    words = pa.table(
        {"name": pa.array(names, pa.string()), "element_type": pa.array(types, pa.string())}
    )
    codes: dict[str, dict[str, int]] = {name: {} for name in _TEXTS}
    with relations(con, derive_context=context, derive_members=members, derive_types=words):
        reader = con.sql(_CALLS).to_arrow_reader(BATCH_ROWS)
        parts = {name: [np.zeros(0, np.int64)] for name in reader.schema.names}
        for batch in reader:
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if name in _TEXTS:
                    numbers = _numbered(column, codes[name])
                else:
                    numbers = arrays.numbers(column, NOBODY).astype(np.int64)
                parts[name].append(numbers)
    ints = {name: np.concatenate(parts.pop(name)) for name in list(parts)}
    texts = {name: sorted(known) for name, known in codes.items()}
    for name, known in codes.items():
        # Numbers in the order of the text, whichever came first.
        place = np.empty(len(known) + 1, np.int64)
        place[[known[text] for text in texts[name]]] = np.arange(len(known))
        place[NOBODY] = NOBODY
        ints[name] = place[ints[name]]
    order = np.lexsort([ints[name] for name in reversed(_ORDER)])
    return Calls(texts, {name: ints.pop(name)[order] for name in list(ints)})


def _numbered(texts: pa.Array, codes: dict[str, int]) -> Ints:
    """The number of each text, which new ones get here; NOBODY for none."""
    import numpy as np

    from tracekit import arrays

    packed = arrays.encoded(texts)
    found = [codes.setdefault(text, len(codes)) for text in packed.dictionary.to_pylist()]
    numbers: Ints = np.array([*found, NOBODY], np.int64)[arrays.numbers(packed.indices, NOBODY)]
    return numbers


class SomeCalls(Calls, frozen=True, dict=True):
    """Some rows of calls, with what all rows decide as columns: ``kind`` and the like."""

    def __len__(self) -> int:
        return len(self["kind"])

    @cached_property
    def kind(self) -> Ints:
        """As all calls have it."""
        return self["kind"]

    @cached_property
    def is_synchronising(self) -> Bools:
        """As all calls have it."""
        return self["is_synchronising"].astype(bool)

    @cached_property
    def is_on_host(self) -> Bools:
        """As all calls have it."""
        return self["is_on_host"].astype(bool)

"""The export's own table of strings: names are numbers into it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.ingest.nsys.database import Tables
from tracekit.ingest.nsys.meta import STRINGS


class Strings:
    """All strings of an export, in order of their ids."""

    def __init__(self, database: Tables) -> None:
        parts_ids: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        parts: list[pa.Array] = []
        if database.has(STRINGS, "id", "value"):
            for batch in database.stream(STRINGS, ("id", "value")):
                parts_ids.append(np.asarray(batch.ints("id").fill_null(-1)))
                parts.append(batch.texts("value"))
        ids = np.concatenate(parts_ids) if parts_ids else np.zeros(0, np.int64)
        values = pa.concat_arrays(parts) if parts else pa.array([], pa.string())
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        self.values: pa.Array = values.take(pa.array(order))

    def codes(self, ids: pa.Array) -> pa.Array:
        """Position in ``values`` of each id; null where there is no such string."""
        wanted = np.asarray(ids.fill_null(-1))
        if not len(self._ids):
            return pa.nulls(len(ids), pa.int64())
        at = np.minimum(np.searchsorted(self._ids, wanted), len(self._ids) - 1)
        known = (self._ids[at] == wanted) & np.asarray(ids.is_valid())
        return pa.array(at, mask=~known)

    def take(self, ids: pa.Array) -> pa.Array:
        """The strings of some ids."""
        return self.values.take(self.codes(ids))

    def starting(self, prefix: str) -> list[int]:
        """Ids of the strings that begin so."""
        is_like = pc.starts_with(self.values, prefix).fill_null(False)
        ids: list[int] = self._ids[np.asarray(is_like)].tolist()
        return ids

    def matching(self, pattern: str) -> list[int]:
        """Ids of the strings in which a regular expression of Arrow's is found."""
        is_like = pc.match_substring_regex(self.values, pattern).fill_null(False)
        ids: list[int] = self._ids[np.asarray(is_like)].tolist()
        return ids

    def text(self, text_id: int | None) -> str | None:
        """One string."""
        if text_id is None:
            return None
        value: str | None = self.take(pa.array([text_id], pa.int64()))[0].as_py()
        return value

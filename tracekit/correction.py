"""Times put right by their clock's correction: once in Python and once in SQL, which are equal.

To a time are added the offset and what the clock has drifted by since the drift's origin, to the
nearest nanosecond (half to even): time + offset + drift * (time - origin).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]


class Correction(NamedTuple):
    """What is added to a source's times, as ``source_context`` has it."""

    offset_ns: int = 0
    drift_ratio: float = 0.0
    drift_origin_ns: int = 0


def corrected(times_ns: Ints, source_ids: Ints, corrections: Mapping[int, Correction]) -> Ints:
    """Times of rows on the job's clock, by their sources; without a correction they stay."""
    import numpy as np

    size = int(source_ids.max(initial=-1)) + 1
    offset, origin, drift = (np.zeros(size, t) for t in (np.int64, np.int64, np.float64))
    for source_id, correction in corrections.items():
        if source_id < size:
            offset[source_id], drift[source_id], origin[source_id] = correction
    bend = np.rint(drift[source_ids] * (times_ns - origin[source_ids]))
    return np.asarray(times_ns + offset[source_ids] + bend.astype(np.int64))


def corrected_sql(time: str, row: str) -> str:
    """The same as an expression: of a time, and the alias of a row with a correction's columns."""
    bend = f"CAST({row}.drift_ratio * ({time} - {row}.drift_origin_ns) AS BIGINT)"
    return f"{time} + {row}.offset_ns + {bend}"

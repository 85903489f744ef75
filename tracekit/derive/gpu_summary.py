"""What the samples of each counter of each GPU come to, file by file.

Thousands of GPUs have tens of millions of samples in ten minutes, and most questions ask no more
than how many, how much and since when: the derived table answers those of a whole file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tracekit.correction import Correction, corrected
from tracekit.schema import table

if TYPE_CHECKING:
    import pyarrow as pa

TEXT = """
SELECT
    source_id, node, device_id, nvml_index, time_source, counter, kind,
    any_value(unit) AS unit,
    count(*) AS samples_count,
    count(time_ns) AS timed_count,
    min(time_ns) AS first_ns,
    max(time_ns) AS last_ns,
    min(place) AS first_place,
    max(place) AS last_place,
    count(value) AS values_count,
    min(value) AS min_value,
    max(value) AS max_value,
    sum(value) AS total_value,
    count_if(value >= 0.2) AS active_count,
    count_if(value >= 0.5) AS utilised_count,
    count(counted) AS counted_count,
    min(counted) AS min_counted,
    max(counted) AS max_counted
FROM gpu_sample
GROUP BY source_id, node, device_id, nvml_index, time_source, counter, kind
"""
"""Of ``gpu_sample`` as it is stored. The columns of ``gpu_counter_summary``."""


def on_the_jobs_clock(summaries: pa.Table, corrections: Mapping[int, Correction]) -> pa.Table:
    """Rows of ``TEXT`` with their times put right, in the registry's order and types."""
    import numpy as np
    import pyarrow as pa

    source_ids = summaries["source_id"].to_numpy()
    for at, name in enumerate(summaries.column_names):
        if name in ("first_ns", "last_ns"):
            times = summaries[name]
            moved = corrected(times.fill_null(0).to_numpy(), source_ids, corrections)
            rows = pa.array(moved, pa.int64(), mask=np.asarray(times.is_null()))
            summaries = summaries.set_column(at, name, rows)
    schema = table("gpu_counter_summary").arrow_schema()
    return (
        summaries.select(schema.names)
        .cast(schema)
        .sort_by([(name, "ascending") for name in ("source_id", "first_place", "counter")])
    )

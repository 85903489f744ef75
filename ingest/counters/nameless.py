"""Samples of devices that nothing names: held until it is known that they are of one.

A table of eight GPUs without a column that tells them apart reads as one GPU that does eight things
at once. Two values of one counter at one time, values in bursts (a tool that prints one device
after the other gives each its own millisecond), or two sets of labels whose times overlap, show
that it is not one: then nothing of it is kept, for no value is known to follow another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

MAX_HELD = 2_000_000
"""Samples that are held; what comes after these is judged by itself."""

MAX_BURSTS_RATIO = 0.4
"""Share of its gaps that one device may have within bursts, by chance."""
MAX_PAUSES_RATIO = 0.1
"""Share of its gaps in which nobody sampled."""
MAX_BURST_RATIO = 0.1
"""A gap within a burst over the usual one between two."""
MIN_GAPS_COUNT = 8
"""Fewer gaps tell nothing of how they are spread."""

_DEVICE = ("node", "counter", "original_name", "priority", "queue", "lane")
"""Columns in which two samples of one device at one moment differ."""

Block = tuple["pa.Array", "pa.Array", "pa.Array", "pa.Array", "pa.Array"]
"""Series, place, time_ns, value and counted of samples."""


class Judged(NamedTuple):
    """What became of what was held."""

    good: Block
    """Samples to be written."""
    left_out_count: int
    place: int
    """Where a sample stands that cannot be of the same device as one before it: the first such."""


class Nameless:
    """The held samples of one file. ``columns``: those of a series, behind which labels stand."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._at = [columns.index(name) for name in _DEVICE if name in columns]
        self._width = len(columns)
        self.series: dict[tuple[Any, ...], int] = {}
        self._blocks: list[Block] = []
        self.rows_count = 0
        self._several: set[Any] = set()
        """Machines of which several such devices were sampled."""

    def hold(self, series: Sequence[tuple[Any, ...]], block: Block) -> None:
        """Keep a block, whose series are given by their place in ``series``."""
        import numpy as np
        import pyarrow as pa

        numbers = np.zeros(len(series), np.int32)
        for at in np.unique(block[0].to_numpy()).tolist():
            numbers[at] = self.series.setdefault(series[at], len(self.series))
        ids = pa.array(numbers).take(block[0])
        self._blocks.append((ids, *block[1:]))
        self.rows_count += len(ids)

    def judged(self) -> Judged:
        """All that is held, which is then held no more."""
        import polars as pl
        import pyarrow as pa

        ids, *rest = (pa.concat_arrays(list(c)) for c in zip(*self._blocks, strict=True))
        self._blocks.clear()
        self.rows_count = 0
        every = list(self.series)
        keys: dict[tuple[Any, ...], int] = {}
        of_key = [keys.setdefault(tuple(s[i] for i in self._at), len(keys)) for s in every]
        labels: dict[Any, int] = {}
        of_label = [labels.setdefault(s[self._width :], len(labels)) for s in every]
        names = ("place", "time_ns", "value", "counted")
        held = pl.DataFrame(dict(zip(names, map(pl.from_arrow, rest), strict=True)))
        numbers = pl.Series(ids.to_numpy())
        held = held.with_columns(
            key=pl.Series(of_key, dtype=pl.Int32)[numbers],
            label=pl.Series(of_label, dtype=pl.Int32)[numbers],
        )
        nodes = [key[0] for key in keys]  # the machine is the first of _DEVICE
        places: list[int] = []
        for key, place in [*_at_once(held), *_in_bursts(held), *_side_by_side(held)]:
            self._several.add(nodes[key])
            places.append(place)
        is_good = held["key"].is_in([k for k, n in enumerate(nodes) if n not in self._several])
        kept = is_good.to_arrow()
        left_out = held.height - int(is_good.sum())
        first = min(places, default=held["place"].min() or 0)
        good = tuple(column.filter(kept) for column in (ids, *rest))
        return Judged(good, left_out, first)  # type: ignore[arg-type]  # as many as went in


def _at_once(held: pl.DataFrame) -> list[tuple[int, int]]:
    """Keys of which two values stand at one time, and where."""
    import polars as pl

    at_once = (
        held.filter(pl.col("time_ns").is_not_null())
        .group_by("key", "time_ns")
        .agg(
            is_double=(pl.col("value").n_unique() > 1) | (pl.col("counted").n_unique() > 1),
            place=pl.col("place").max(),
        )
        .filter("is_double")
        .group_by("key")
        .agg(pl.col("place").min())
    )
    return at_once.rows()


def _in_bursts(held: pl.DataFrame) -> list[tuple[int, int]]:
    """Keys of which nearly half of the values or more follow another at once, beside how long it
    takes to the next burst; and where the second stands. Of two devices every other value does."""
    import polars as pl

    gap = pl.col("gap").drop_nulls()
    in_bursts = (
        held.filter(pl.col("time_ns").is_not_null())
        .select("key", "place", "time_ns")
        .sort("key", "time_ns", "place")
        .with_columns(gap=pl.col("time_ns").diff().over("key"))
        .group_by("key")
        .agg(
            count=gap.len(),
            short=gap.quantile(MAX_BURSTS_RATIO, "lower"),
            usual=gap.quantile(1 - MAX_PAUSES_RATIO, "lower"),
            place=pl.col("place").sort_by("time_ns").get(1, null_on_oob=True),
        )
        .filter(
            pl.col("count") >= MIN_GAPS_COUNT, pl.col("short") < MAX_BURST_RATIO * pl.col("usual")
        )
    )
    return in_bursts.select("key", "place").rows()


def _side_by_side(held: pl.DataFrame) -> list[tuple[int, int]]:
    """Keys that stand below two sets of labels at the same time, and where."""
    import polars as pl

    spans = held.group_by("key", "label").agg(
        first=pl.col("time_ns").min(), last=pl.col("time_ns").max(), place=pl.col("place").min()
    )
    of_key: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for key, _, first, last, place in spans.rows():
        of_key[key].append((first or 0, last or 0, place))
    return [
        (key, max(before[2], after[2]))
        for key, spans_of in of_key.items()
        for before, after in pairwise(sorted(spans_of))
        if after[0] <= before[1]
    ]

"""Metrics that programs print beside the line of their step.

Composer prints them below the step's line, one a line. Hugging Face's Trainer prints a dictionary
into its bar, which has the step; the dictionary names none. Trainer prints it through tqdm, which
takes its bar away, lets the text through and draws the bar again, now at the step that the metrics
are of; the drawing before may be older, since not each step is drawn. So metrics belong to the
drawing right behind them.
They are told only if they stand alone between two drawings of one bar: where the output of a
program is buffered apart from its bar, several come together and late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.ingest.base import Sink

if TYPE_CHECKING:
    import polars as pl

    from tracekit.ingest.steplog.formats import StepFormat

MARKER = "{'loss': "
"""How the dictionary of a training step begins; those of evaluations and of the end do not."""
FIELDS = {name: rf"'{name}': '?([-+\d.eE]+)" for name in ("loss", "learning_rate", "grad_norm")}
"""Columns of ``job_step``, by how the dictionary says them: as numbers, or as texts of numbers."""

_TIMES_BELOW = {
    "elapsed_h": ("elapsed_ns", 3600e9),
    "dur_s": ("dur_ns", 1e9),
    "input_wait_s": ("input_wait_ns", 1e9),
}
"""Of the names of ``StepFormat.below`` that are no columns: which they are, and the unit in ns."""
MAX_ELAPSED_NS = 3600e9 * 10**5
"""Longest training that is believed: eleven years."""


class BarMetrics:
    """Joins dictionaries of metrics to the drawings of a bar, across blocks of lines."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._before: pl.DataFrame | None = None
        """The last two drawings or dictionaries of the blocks before."""
        self._is_due = False
        """Whether the last of these is a dictionary."""
        self.found_count = self._told = 0

    @staticmethod
    def said(pieces: pl.DataFrame) -> pl.DataFrame:
        """The dictionaries among ``pieces``, which have the columns ``index`` and ``line``: the
        columns of ``FIELDS``."""
        import polars as pl

        return pieces.filter(pl.col("line").str.contains(MARKER, literal=True)).select(
            "index", *(_number(name, pattern) for name, pattern in FIELDS.items())
        )

    def join(self, said: pl.DataFrame, drawn: pl.DataFrame) -> pl.DataFrame:
        """``drawn``, with what is ``said`` beside in the columns of ``FIELDS``.

        Both have the column ``index``, in which they are ordered; ``drawn`` has the columns of
        ``job_step``.
        """
        import polars as pl

        self.found_count += said.height
        bars = drawn.select("index", "step", "total_steps_count", is_said=pl.lit(value=False))
        if not said.height and not self._is_due:
            self._before = bars.tail(1) if bars.height else self._before
            return drawn
        events = pl.concat([bars, said.with_columns(is_said=pl.lit(value=True))], how="diagonal")
        events = events.sort("index", "is_said")  # in one piece a dictionary stands behind the bar
        if self._before is not None:
            is_old = self._before.with_columns(index=pl.lit(None, events.schema["index"]))
            events = pl.concat([is_old, events], how="diagonal")
        self._before, self._is_due = events.tail(2), bool(events["is_said"][-1])
        told = events.with_columns(pl.col(name).shift(1) for name in FIELDS).filter(
            ~pl.col("is_said"),
            pl.col("is_said").shift(1),
            ~pl.col("is_said").shift(2),
            pl.col("total_steps_count") == pl.col("total_steps_count").shift(2),
            pl.col("step") >= pl.col("step").shift(2),
        )
        self._told += told.height
        return drawn.drop(FIELDS).join(
            told.select("index", *FIELDS), on="index", how="left", maintain_order="left"
        )

    def finish(self) -> None:
        """Say which are told of no step."""
        self._sink.count(
            "metrics_without_step", self.found_count - self._told, severity="info",
            doc="Dictionaries of metrics that do not stand alone between drawings of one bar.",
        )  # fmt: skip


class MetricsBelow:
    """Joins metrics to the step above them, across blocks of lines: the last step of a block is
    held until the next one, or the end, says what stands below it."""

    def __init__(self) -> None:
        self.held: pl.DataFrame | None = None

    @staticmethod
    def said(pieces: pl.DataFrame, known: StepFormat) -> pl.DataFrame:
        """The metrics among ``pieces``, which have the columns ``index`` and ``line``."""
        import polars as pl

        is_below = pl.col("line").str.contains(known.below_marker, literal=True)
        numbers = (
            _ns(p, _TIMES_BELOW[n][1]).alias(_TIMES_BELOW[n][0])
            if n in _TIMES_BELOW
            else _number(n, p)
            for n, p in known.below
        )
        return pieces.filter(is_below).select(pl.col("index").cast(pl.Int64), *numbers)

    def join(self, said: pl.DataFrame, steps: pl.DataFrame, known: StepFormat) -> pl.DataFrame:
        """The steps before the last, with the metrics that are ``said`` below each.

        Both have the column ``index``, in which they are ordered; ``steps`` has the columns of
        ``job_step``.
        """
        import polars as pl

        steps = steps.with_columns(index=pl.col("index").cast(pl.Int64))
        if self.held is not None:
            steps = pl.concat([self.held.with_columns(index=pl.lit(-1, pl.Int64)), steps])
        names = [_TIMES_BELOW.get(name, (name, 1.0))[0] for name, _ in known.below]
        below = (
            said.join_asof(steps.select("index", above="index"), on="index", check_sortedness=False)
            .group_by("above")
            .agg(pl.col(name).drop_nulls().first() for name in names)
        )
        order = steps.columns
        steps = steps.join(
            below,
            left_on="index",
            right_on="above",
            how="left",
            suffix="_below",
            maintain_order="left",
        ).with_columns(pl.coalesce(f"{name}_below", name).alias(name) for name in names)
        self.held = steps.select(order).tail(1)
        return steps.select(order).head(-1)


def _number(name: str, pattern: str) -> pl.Expr:
    import polars as pl

    value = pl.col("line").str.extract(pattern).cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value).alias(name)


def _ns(pattern: str, unit_ns: float) -> pl.Expr:
    import polars as pl

    ns = pl.col("line").str.extract(pattern).cast(pl.Float64, strict=False) * unit_ns
    return pl.when(ns < MAX_ELAPSED_NS).then(ns).round().cast(pl.Int64)

"""From lines of a job's output to ``job_step``: blocks of lines at a time, never one by one.

Lines are looked at as a column: a literal search leaves those that may be a step's, then one
pattern a format takes them apart. A line that ends no step is left to other readers of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from tracekit.ingest.base import Sink, write_columns
from tracekit.ingest.steplog.formats import FORMATS, StepFormat, own_format
from tracekit.ingest.steplog.metrics import FIELDS, MARKER, BarMetrics
from tracekit.ingest.steplog.words import any_of, holds
from tracekit.values import EPOCH_S, TIME_LIMIT_NS

if TYPE_CHECKING:
    import polars as pl

Line = tuple[int, bytes]
"""Its number in the file, from 1, and its bytes without the end."""

MAX_LINE_BYTES = 4096
"""No line of a step is longer, nor is one drawing of a bar; the rest is not looked at."""
STAMP_BYTES = 300
"""A line's time stands in its first so many characters, behind what launchers put before it."""
MAX_STEP = 10**10
"""Highest number of a step, of the last one, and of steps over all epochs that is believed."""
MAX_EPOCH = 10**6
MAX_HOURS = 10**5
MAX_STEP_S = 10**7
"""Longest step that is believed: four months."""
_MARKERS = any_of(m.encode() for m in (*(m for f in FORMATS for m in f.markers), MARKER))
_STAMP = (
    r"(?P<date>\d{4}-\d\d-\d\d)[ T](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_TAG = r"\[(?:[Rr]ank ?|default)(\d{1,7})\]"
_COLUMNS = (
    "place", "step", "epoch", "total_steps_count", "time_ns", "elapsed_ns", "dur_ns", "is_averaged",
    "samples_count", "tokens_count", "loss", "learning_rate", "grad_norm", "mfu_ratio",
    "model_flops_per_s", "tag", "format",
)  # fmt: skip


class StepReader:
    """Takes the lines of steps out of a job's output."""

    def __init__(self, sink: Sink, own_pattern: str | None = None) -> None:
        self._sink = sink
        self._formats = (own_format(own_pattern), *FORMATS) if own_pattern else FORMATS
        self.count = 0
        """Lines of steps so far."""
        self.formats: set[str] = set()
        self._metrics = BarMetrics(sink)
        self._window: tuple[int, int] | None = None
        self._zones: set[bool] = set()

    def take(self, lines: Sequence[bytes], block: bytes, first_place: int) -> list[Line] | None:
        """Write the steps of consecutive lines; the other lines, or None where none is a step.

        ``block`` is all of them with their ends, ``first_place`` the number of the first.
        """
        has_own = self._formats is not FORMATS
        if not has_own and not holds(block, _MARKERS):
            return None
        import polars as pl

        places, texts = _pieces(lines, first_place, has_returns=b"\r" in block)
        asked = pl.DataFrame(
            {"place": places, "line": pl.Series(texts, dtype=pl.Binary)},
            schema_overrides={"place": pl.Int64},
        ).with_columns(_decoded(pl.col("line"), block))
        asked = asked.with_row_index()
        if not has_own:
            asked = asked.filter(pl.col("line").str.contains(_MARKERS))
        taken: dict[int, bool] = {}
        for known in self._formats:
            if not asked.height:
                break
            rows = asked
            if known.markers:
                markers = (*known.markers, MARKER) if known.is_bar else known.markers
                holding = (pl.col("line").str.contains(m, literal=True) for m in markers)
                rows = asked.filter(pl.any_horizontal(*holding))
            if not rows.height:
                continue
            steps = _found(rows, known)
            if known.is_bar:
                steps = self._metrics.join(rows, steps)
            if steps.height:
                taken |= dict.fromkeys(steps["place"].to_list(), known.is_bar)
                asked = asked.join(steps.select("place"), on="place", how="anti")
                self._write(steps, known)
        if not taken:
            return None
        if not any(taken.values()):
            numbered = enumerate(lines, first_place)
            return [(place, line) for place, line in numbered if line and place not in taken]
        rest = []
        for place, line in enumerate(lines, first_place):
            # A bar ends without a line feed, so what is printed next stands behind it.
            text = line.rpartition(b"]")[2].strip() if taken.get(place) else line
            if text and (place not in taken or taken[place]):
                rest.append((place, text))
        return rest

    def _write(self, steps: pl.DataFrame, known: StepFormat) -> None:
        import polars as pl

        if known.is_bar:  # drawn again and again
            drawing = ("place", "step", "epoch", "total_steps_count")
            told = [name for name in FIELDS if steps[name].null_count() < steps.height]
            steps = steps.with_columns(
                pl.col(name).forward_fill().over(drawing) for name in told
            ).unique(drawing, keep="last", maintain_order=True)
        self.count += steps.height
        self.formats.add(known.name)
        zones = set(steps.filter(pl.col("time_ns").is_not_null())["has_zone"].to_list())
        self._zones |= zones
        low, high = steps["time_ns"].min(), steps["time_ns"].max()
        if isinstance(low, int) and isinstance(high, int):
            old = self._window or (low, high)
            self._window = min(low, old[0]), max(high, old[1])
        write_columns(self._sink, "job_step", {name: steps[name].to_arrow() for name in _COLUMNS})

    @property
    def basis(self) -> Literal["epoch", "local", "none"]:
        """What the lines' times count from: the epoch where every one names its zone."""
        if self._window is None:
            return "none"
        return "epoch" if self._zones == {True} else "local"

    @property
    def window_ns(self) -> tuple[int, int] | None:
        """First and last time of a line."""
        return self._window

    def finish(self) -> None:
        """Say what was counted."""
        self._metrics.finish()
        self._sink.count(
            "step_line", self.count, severity="info", doc="Lines that report a training step."
        )
        if len(self._zones) > 1:
            self._sink.count(
                "mixed_zones",
                doc="Some lines state a time zone and others none; all were read as stated.",
            )


def _pieces(
    lines: Sequence[bytes], first_place: int, *, has_returns: bool
) -> tuple[list[int], list[bytes]]:
    """The lines, those of progress bars taken apart at each carriage return."""
    if not has_returns:
        return list(range(first_place, first_place + len(lines))), [
            line[:MAX_LINE_BYTES] for line in lines
        ]
    places: list[int] = []
    texts: list[bytes] = []
    for place, line in enumerate(lines, first_place):
        texts += [piece[:MAX_LINE_BYTES] for piece in line.split(b"\r") if piece]
        places += [place] * (len(texts) - len(places))
    return places, texts


def _decoded(column: pl.Expr, block: bytes) -> pl.Expr:
    """Text of lines: what is no UTF-8 is replaced, and colours of terminals are dropped."""
    import polars as pl

    try:
        block.decode()
    except UnicodeDecodeError:
        text = column.map_elements(lambda b: b.decode("utf-8", "replace"), return_dtype=pl.String)
    else:
        text = column.cast(pl.String)
    return text.str.replace_all(r"\x1b\[[0-9;?]{0,20}[A-Za-z]", "") if b"\x1b" in block else text


def _found(rows: pl.DataFrame, known: StepFormat) -> pl.DataFrame:
    """The lines of a format, with the columns of ``job_step``."""
    import polars as pl

    line = pl.col("line")
    said = line.str.extract_groups(known.pattern).struct.unnest()
    more = [line.str.extract(pattern).alias(name) for name, pattern in known.fields]
    steps = rows.select("index", "place", "line", said, *more).filter(pl.col("step").is_not_null())
    groups = set(steps.columns)
    columns = [
        pl.col("index", "place"),
        _integer("step", groups, MAX_STEP),
        _integer("epoch", groups, MAX_EPOCH),
        _integer("total", groups, MAX_STEP).alias("total_steps_count"),
        _elapsed(groups).alias("elapsed_ns"),
        _dur(groups).alias("dur_ns"),
        pl.lit(known.is_averaged).alias("is_averaged"),
        _integer("samples", groups).alias("samples_count"),
        _integer("tokens", groups).alias("tokens_count"),
        *(_real(name, groups).alias(name) for name in ("loss", "learning_rate", "grad_norm")),
        (_real("mfu_percent", groups) / 100).alias("mfu_ratio"),
        (_real("tflops", groups) * 1e12).alias("model_flops_per_s"),
        line.str.extract(_TAG).cast(pl.Int32, strict=False).alias("tag"),
        pl.lit(known.name).alias("format"),
    ]
    if "time" in groups:
        stamp, number = pl.col("time"), pl.col("time").cast(pl.Float64, strict=False)
    else:
        stamp, number = line.str.head(STAMP_BYTES), pl.lit(None, pl.Float64)
    steps = steps.select(
        *columns, stamp.str.extract_groups(_STAMP).alias("at"), number.alias("epoch_number")
    ).unnest("at")
    # Most bars state no time, and few patterns a group of theirs: nothing is parsed of nulls.
    times = [_time()] if steps["date"].null_count() < steps.height else []
    times += [_of_epoch("epoch_number")] if "time" in groups else []
    return steps.with_columns(
        (pl.coalesce(times) if times else pl.lit(None, pl.Int64)).alias("time_ns"),
        (pl.col("zone").is_not_null() | pl.col("epoch_number").is_not_null()).alias("has_zone"),
    )


def _integer(name: str, groups: set[str], most: int = 2**62) -> pl.Expr:
    """A whole number up to ``most``: what a stranger's log says beyond that is no number."""
    import polars as pl

    if name not in groups:
        return pl.lit(None, pl.Int64).alias(name)
    value = pl.col(name).cast(pl.Int64, strict=False)
    return pl.when(value <= most).then(value).alias(name)


def _real(name: str, groups: set[str]) -> pl.Expr:
    import polars as pl

    if name not in groups:
        return pl.lit(None, pl.Float64)
    value = pl.col(name).str.replace_all(",", "", literal=True).cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def _dur(groups: set[str]) -> pl.Expr:
    """ns, from whichever unit the line states."""
    import polars as pl

    stated = [
        _real(name, groups) * scale
        for name, scale in (("dur_ms", 1e6), ("dur_s", 1e9))
        if name in groups
    ]
    if not stated:
        return pl.lit(None, pl.Int64)
    dur_ns = pl.coalesce(stated)
    return pl.when(dur_ns <= MAX_STEP_S * 1e9).then(dur_ns).round().cast(pl.Int64, strict=False)


def _elapsed(groups: set[str]) -> pl.Expr:
    import polars as pl

    if "seconds" not in groups:
        return pl.lit(None, pl.Int64)
    hours = _integer("hours", groups, MAX_HOURS).fill_null(0)
    seconds = hours * 3600 + _integer("minutes", groups) * 60 + _integer("seconds", groups)
    return seconds * 1_000_000_000


def _of_epoch(name: str) -> pl.Expr:
    """ns since the epoch of a number in seconds, ms, us or ns: whichever is of 2000 to 2100."""
    import polars as pl

    epoch_ns = pl.lit(None, pl.Int64)
    for unit_ns in (10**9, 10**6, 10**3, 1):
        ns = pl.col(name) * unit_ns
        is_time = ns.is_between(EPOCH_S[0] * 10**9, EPOCH_S[1] * 10**9)
        whole = ns.round().cast(pl.Int64, strict=False)
        epoch_ns = pl.when(is_time).then(whole).otherwise(epoch_ns)
    return epoch_ns


def _time() -> pl.Expr:
    """ns since the epoch of date, clock, fraction and zone; without a zone as if it were UTC."""
    import polars as pl

    moment = pl.concat_str("date", pl.lit(" "), "clock").str.to_datetime(
        "%Y-%m-%d %H:%M:%S", strict=False, time_unit="ms"
    )
    moment = pl.when(moment.dt.epoch("ms").is_between(0, TIME_LIMIT_NS // 1_000_000 - 1)).then(
        moment
    )
    fraction = pl.col("fraction").fill_null("").str.pad_end(9, "0").cast(pl.Int64)
    zone = pl.col("zone")  # a sign, two digits, perhaps a colon, two digits
    minutes = zone.str.slice(1, 2).cast(pl.Int64, strict=False) * 60
    minutes += zone.str.tail(2).cast(pl.Int64, strict=False)
    east = pl.when(pl.col("zone").str.starts_with("-")).then(-minutes).otherwise(minutes)
    shift = pl.when(pl.col("zone") == "Z").then(0).otherwise(east).fill_null(0)
    return moment.dt.epoch("ms") * 1_000_000 + fraction - shift * 60_000_000_000

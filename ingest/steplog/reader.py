"""From lines of a job's output to ``job_step``: blocks of lines at a time, never one by one.

Lines are looked at as a column: a literal search leaves those that may be a step's, then one
pattern a format takes them apart. A line that ends no step is left to other readers of the file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import compress
from math import gcd
from typing import TYPE_CHECKING, Literal, NamedTuple

from tracekit.ingest.base import Sink, write_columns
from tracekit.ingest.steplog.formats import BAR_RATES, FORMATS, OWN, StepFormat, own_format
from tracekit.ingest.steplog.metrics import FIELDS, MARKER, BarMetrics, MetricsBelow
from tracekit.ingest.steplog.words import Block, Texts, any_of
from tracekit.values import EPOCH_S, TIME_LIMIT_NS

if TYPE_CHECKING:
    import polars as pl

    from tracekit.ingest.steplog.parts import Parts, Sought
    from tracekit.ingest.steplog.words import Flags

Line = tuple[int, bytes]
"""Its number in the file, from 1, and its bytes without the end."""

MAX_LINE_BYTES = 8192
"""No line of a step is longer, nor is one drawing of a bar; the rest is not looked at."""
STAMP_BYTES = 300
"""A line's time stands in its first so many characters, behind what launchers put before it."""
MAX_STEP = 10**10
"""Highest number of a step, of the last one, and of steps over all epochs that is believed."""
MAX_EPOCH = 10**6
MAX_RANK = 10**7 - 1
MAX_HOURS = 10**5
MAX_STEP_S = 10**7
"""Longest step that is believed: four months."""
_BESIDE = {f.name: MARKER if f.is_bar else f.below_marker for f in FORMATS}
"""Of each format: what lines hold that tell more of its steps."""
_METRICS = re.escape(MARKER)
_MARKERS = {f.name: any_of(m.encode() for m in (*f.markers, _BESIDE[f.name]) if m) for f in FORMATS}
"""Of each format: what one of its lines holds, as a pattern."""
_DATE = r"[-/][0-9]{2}[-/][0-9]{2}[ T][0-9]"
"""What no stamp is without: to look whether any line has one takes half as long, and less where
they have neither of the characters that it begins with."""
_STAMP = (
    r"(?:(?P<date>\d{4}(?:-\d\d-|/\d\d/)\d\d)|\[(?P<month_first>\d\d/\d\d/\d\d))[ T]"
    r"(?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
"""``month_first`` is Rich's, whose handler writes the date of the C locale in brackets."""
_YEARLESS = (
    r"^(?:\[[^\]]{1,30}\]:? ?|\d{1,7}: )?\[?"
    r"(?:[IWEF]?(?P<month>\d\d)(?:/)?(?P<day>\d\d) )?"
    r"(?P<day_clock>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?[\] ]"
)
"""A clock at a line's head without a year: of glog and absl, MMEngine, or no date at all."""
_COLOUR = re.compile(rb"\x1b\[[0-9;?]{0,20}[A-Za-z]")
"""What terminals are told; no line ends within."""
_TAG = r"\[(?:[Rr]ank ?|RANK |default)(\d{1,7})\]"
_IN_TAG = r"\[(?:[Rr]ank|RANK|default)"
_POD = r"^\[pod/([a-z0-9.-]{1,253}?)(?:-[bcdfghjklmnpqrstvwxz2456789]{5})?/[a-z0-9.-]{1,63}\] "
"""What kubectl logs --prefix puts before a line: the pod, without the letters that are drawn for
each new one of a job's index."""
_IN_POD = "\\[pod/"
_RATES = tuple(rate.encode() for rate in BAR_RATES)
_FURTHER = ("input_wait_ns", "running_dur_ns", "running_input_wait_ns")
"""Durations that a line may state beside its step's."""
_WHOLE = {"step", "total", "epoch", "epoch_from_1", "epoch_of_row", "samples", "tokens", "rank",
          "elapsed_days", "elapsed_ms", "tag"}  # fmt: skip
"""Groups of whole numbers, and of what is read as text; the others are decimals."""
_AS_TEXT = {"elapsed", "elapsed_words", "month", "day", "day_clock", "time"}
_COLUMNS = (
    "place", "step", "epoch", "total_steps_count", "time_ns", "elapsed_ns", "dur_ns", "is_averaged",
    *_FURTHER,
    "samples_count", "tokens_count", "loss", "learning_rate", "grad_norm", "mfu_ratio",
    "model_flops_per_s", "tag", "format",
)  # fmt: skip


class Looked(NamedTuple):
    """What a block of lines says, by itself: of what stands in others it knows nothing."""

    block: Block
    first_place: int
    """The number of its first line."""
    steps: list[tuple[StepFormat, pl.DataFrame, pl.DataFrame | None]]
    """Steps of each format, and what its lines say beside them."""
    taken: dict[int, bool]
    """Places of lines that are steps', and whether they are bars."""
    with_parts: list[Line]
    """Lines of steps that tell how long the parts of the step took."""
    whole_count: int = 0
    """Lines that are steps' and no bars."""

    @property
    def others_count(self) -> int:
        """Lines that are no step's, those with something behind a bar among them at most."""
        return self.block.count - self.whole_count

    def others_hold(self, pattern: str) -> bool:
        """Whether one of the lines that are no step's, or what is printed behind a bar, holds a
        pattern of ``Block.holds``."""
        if not self.others_count or not self.block.holds(pattern):
            return False
        if not self.taken:
            return True
        return Block([line for _, line in self.others(self.block.holding(pattern))]).holds(pattern)

    def others(self, among: Flags | None = None) -> Iterator[Line]:
        """Lines that are no step's, and what is printed behind bars; of some lines where flags say
        of which."""
        if not self.others_count:
            return
        numbered = enumerate(self.block.lines, self.first_place)
        for place, line in numbered if among is None else compress(numbered, among):
            if place not in self.taken:
                yield place, line
            elif self.taken[place]:  # a bar ends without a line feed, so the next text follows
                behind = _behind_bar(line)
                if behind:
                    yield place, behind


class StepReader:
    """Takes the lines of steps out of a job's output: ``look`` at blocks in any order, by several
    threads, then ``take`` what was seen in the lines' order."""

    def __init__(self, sink: Sink, own_pattern: str | None = None, rank: int | None = None) -> None:
        """``rank`` is what the file's name says: of lines that name none themselves."""
        self._sink = sink
        self._rank = rank
        self._formats = (own_format(own_pattern), *FORMATS) if own_pattern else FORMATS
        self._met = {known for known in self._formats if not known.markers}
        """Formats whose marker was seen: the others are looked for once a block, not a line."""
        self.count = 0
        """Lines of steps so far."""
        self.formats: set[str] = set()
        self._metrics = BarMetrics(sink)
        self._below = {known: MetricsBelow() for known in self._formats if known.below}
        self._epochs: dict[str, tuple[int, int]] = {}
        """Of formats whose lines end epochs: how many steps one has, and how many there were."""
        self._pod: str | None = None
        """Whose steps are kept, of several pods that print into one file."""
        self._of_other_pods = 0
        self._batches: dict[str, int] = {}
        """Of formats whose steps are counted in samples: how many of them one takes."""
        self._without_batch = 0
        self._window: tuple[int, int] | None = None
        self._zones: set[bool] = set()

    def look(self, block: Block, first_place: int) -> Looked:
        """The steps of consecutive lines; ``first_place`` is the number of the first."""
        looked = Looked(block, first_place, [], {}, [])
        if not self._met:
            self._meet(block)
            if not self._met:
                return looked
        import numpy as np
        import polars as pl

        places, texts = _pieces(block, first_place)
        asked = pl.DataFrame({"place": places, "line": texts.column}).with_row_index()
        whole_count, is_new_asked = 0, False
        """Whether what earlier formats left was asked for the markers of those never met."""
        for known in self._formats:
            if known not in self._met and not is_new_asked:
                is_whole = asked.height == len(places)
                self._meet(texts if is_whole else texts.alike(asked["index"].to_numpy()))
                is_new_asked = True
            if known not in self._met:
                continue
            patterns = [p for p in (_MARKERS.get(known.name), known.within) if p]
            is_marked = texts.has(*patterns, without=known.without)[asked["index"].to_numpy()]
            rows = asked if is_marked.all() else asked.filter(is_marked)
            if not rows.height:
                continue
            steps = _found(rows, known, block, self._rank, texts)
            if known.ends_epoch:
                # Drawn again with what the validation says, whose time is in the mean then.
                ends = steps.filter(pl.col("step") == pl.col("total_steps_count"))
                steps = ends.unique("place", keep="first", maintain_order=True)
            if block.holds(_IN_POD):
                pods = rows.select("index", pod=pl.col("line").str.extract(_POD))
                steps = steps.join(pods, on="index", how="left", maintain_order="left")
            said = None
            if known.is_bar:
                is_said = block.has_escapes or block.holds(_METRICS)
                said = self._metrics.said(rows if is_said else rows.clear())
            elif known.below:
                said = self._below[known].said(rows, known)
            if steps.height:
                taken = steps["place"].unique()
                whole_count += 0 if known.is_bar else len(taken)
                looked.taken.update(dict.fromkeys(taken.to_list(), known.is_bar))
                if known.has_parts:
                    places_found = sorted(taken.to_list())
                    looked.with_parts.extend(
                        (p, block.lines[p - first_place]) for p in places_found
                    )
                is_all = steps.height == asked.height
                is_left = np.ones(block.count, np.bool_)
                is_left[taken.to_numpy() - first_place] = False
                left = is_left[asked["place"].to_numpy() - first_place]
                asked = asked[:0] if is_all else asked.filter(left)
            if steps.height or said is not None:
                looked.steps.append((known, steps, said))
            if not asked.height:
                break
        return looked._replace(whole_count=whole_count)

    def take(self, looked: Looked) -> None:
        """Write the steps of the lines that follow those before."""
        import polars as pl

        for known in self._met:
            wants = known.batch and known.name not in self._batches
            if wants and looked.block.holds(known.batch):
                counts = looked.block.text.str.extract(known.batch).drop_nulls().cast(pl.Int64)
                self._batches[known.name] = max(gcd(*counts), 1)
        for known, found, said in looked.steps:
            steps = self._of_one_pod(found)
            if known.batch:
                steps = self._by_samples(steps, known)
            if known.ends_epoch and steps.height:
                steps = self._in_epochs(steps, known)
            if known.is_bar and said is not None:
                steps = self._metrics.join(said, steps)
            elif said is not None:
                steps = self._below[known].join(said, steps, known)
            if steps.height:
                self._write(steps, known)

    def _by_samples(self, steps: pl.DataFrame, known: StepFormat) -> pl.DataFrame:
        """The steps, of lines that say how many samples were taken until then."""
        import polars as pl

        batch = self._batches.get(known.name)
        if batch is None:
            self._without_batch += steps.height
            return steps.clear()
        samples = steps.with_columns(samples_count=pl.col("step"))
        return samples.with_columns(pl.col("step", "total_steps_count") // batch)

    def _in_epochs(self, steps: pl.DataFrame, known: StepFormat) -> pl.DataFrame:
        """The lines that end an epoch, numbered; what has other steps evaluates."""
        import polars as pl

        total, before = self._epochs.get(known.name, (steps["total_steps_count"][0], 0))
        steps = steps.filter(pl.col("total_steps_count") == total)
        self._epochs[known.name] = total, before + steps.height
        return steps.with_columns(epoch=pl.row_index().cast(pl.Int64) + before)

    def _of_one_pod(self, steps: pl.DataFrame) -> pl.DataFrame:
        """Of several pods that print the same steps, one after the other, those of the first."""
        import polars as pl

        if "pod" not in steps.columns:
            return steps
        if self._pod is None and steps["pod"].null_count() < steps.height:
            self._pod = steps["pod"].drop_nulls()[0]
        kept = steps.filter(pl.col("pod").is_null() | (pl.col("pod") == self._pod))
        self._of_other_pods += steps.height - kept.height
        return kept.drop("pod")

    def _meet(self, texts: Block | Texts) -> None:
        """Notice the formats whose markers lines hold."""
        others = [known for known in self._formats if known not in self._met]
        if texts.holds("|".join(_MARKERS[known.name] for known in others)):
            self._met |= {k for k in others if texts.holds(_MARKERS[k.name])}

    def _write(self, steps: pl.DataFrame, known: StepFormat) -> None:
        import polars as pl

        if known.is_bar:  # drawn again and again
            drawing = ("place", "step", "epoch", "total_steps_count")
            told = [name for name in FIELDS if steps[name].null_count() < steps.height]
            steps = steps.with_columns(pl.col(name).forward_fill().over(drawing) for name in told)
            is_next = (pl.col(name).eq_missing(pl.col(name).shift(-1)) for name in drawing)
            steps = steps.filter(~pl.all_horizontal(*is_next) | (pl.row_index() == pl.len() - 1))
            # Mostly one bar that moves on: then each is the last, which is cheap to see.
            is_one = all(steps[name].n_unique() == 1 for name in ("epoch", "total_steps_count"))
            if not (is_one and steps["step"].is_sorted()):
                steps = steps.unique(drawing, keep="last", maintain_order=True)
        self.count += steps.height
        self.formats.add(known.name)
        self._zones |= set(steps["has_zone"].filter(steps["time_ns"].is_not_null()).unique())
        low, high = steps["time_ns"].min(), steps["time_ns"].max()
        if isinstance(low, int) and isinstance(high, int):
            old = self._window or (low, high)
            self._window = min(low, old[0]), max(high, old[1])
        write_columns(self._sink, "job_step", {name: steps[name].to_arrow() for name in _COLUMNS})

    @property
    def has_bare_metrics(self) -> bool:
        """Whether there are dictionaries of metrics, and no line is a step's."""
        return not self.count and self._metrics.found_count > 0

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
        for known, below in self._below.items():
            if below.held is not None:
                self._write(below.held, known)
        self._sink.count(
            "step_of_other_pod", self._of_other_pods, severity="info",
            doc="Lines of steps that other pods print into the file: one pod's are the job's.",
        )  # fmt: skip
        self._sink.count(
            "step_without_batch", self._without_batch,
            doc="Lines that count samples in a log that does not say its global_batch_size: which "
            "step they are of is not known.",
        )  # fmt: skip
        self._sink.count(
            "step_line", self.count, severity="info", doc="Lines that report a training step."
        )
        if len(self._zones) > 1:
            self._sink.count(
                "mixed_zones",
                doc="Some lines state a time zone and others none; all were read as stated.",
            )


def _pieces(block: Block, first_place: int) -> tuple[pl.Series, Texts]:
    """The lines without colours of terminals, those of progress bars taken apart at each carriage
    return, with their places."""
    import polars as pl

    if block.has_escapes:
        block = Block(_without_colours(block.whole))
    texts, line = block.pieces(MAX_LINE_BYTES)
    return pl.Series(line + first_place, dtype=pl.Int64), texts


def _without_colours(text: bytes) -> bytes:
    """The text without what terminals are told: its lines mostly tell the same few things."""
    for code in set(_COLOUR.findall(text[:MAX_LINE_BYTES])):
        text = text.replace(code, b"")
    return _COLOUR.sub(b"", text) if b"\x1b" in text else text


def _behind_bar(line: bytes) -> bytes:
    """What is printed behind the last bar of a line; that may hold brackets of its own."""
    rate = max(line.rfind(rate) for rate in _RATES)
    end = line.find(b"]", rate) if rate >= 0 else -1
    return (line[end + 1 :] if end >= 0 else line.rpartition(b"]")[2]).strip()


def _found(
    rows: pl.DataFrame, known: StepFormat, block: Block, rank: int | None, texts: Texts
) -> pl.DataFrame:
    """The lines of a format, with the columns of ``job_step``; ``rows`` are some of ``texts``."""
    import polars as pl

    is_tagged = block.has_escapes or block.holds(_IN_TAG)
    found = _parts(rows, known, texts, is_tagged=is_tagged)
    if found is None:
        steps = _with_fields(_taken(rows, known.pattern), known)
    else:
        steps, found = _of_parts(rows, known, found)
    groups = set(steps.columns)
    said = {name for name, type_ in steps.schema.items() if type_ == pl.String}
    """Groups that are no numbers yet."""
    if known.has_commas:
        steps = steps.with_columns(
            pl.col(name).str.replace_all(",", "", literal=True)
            for name in (*FIELDS, "step", "total", "mfu_percent", "tflops", "dur_ms", "dur_s")
            if name in said
        )
    if known.has_thousands:
        steps = steps.with_columns(
            pl.col(name).str.replace("K", "e3", literal=True).str.replace("M", "e6", literal=True)
            for name in {"dur_ms", "dur_s"} & said
        ).with_columns(_scaled("step").alias(name) for name in {"step"} & said)
    if "epoch_dur_s" in groups:
        whole, count = (pl.col(n).cast(pl.Float64, strict=False) for n in ("epoch_dur_s", "total"))
        mean_ms = pl.when(count > 0).then(whole / count * 1e3).cast(pl.String)
        steps = steps.with_columns(dur_ms=pl.coalesce(mean_ms, *{"dur_ms"} & groups))
    stamps = _stamps(steps, block) if found is None or "time" in groups else _stamps_of(found)
    columns = _columns(known, frozenset(groups), rank, is_tagged=is_tagged and found is None)
    number = pl.col("time") if "time" in groups else pl.lit(None)
    number = number.cast(pl.Float64, strict=False).alias("epoch_number")
    steps = steps.select(*columns, "line", number)
    steps = pl.concat([steps, stamps], how="horizontal")
    # Most bars state no time, and few patterns a group of theirs: nothing is parsed of nulls.
    stated = {name for name in ("date", "zone") if steps[name].null_count() < steps.height}
    times = [_time(has_zones="zone" in stated)] if "date" in stated else []
    times += [_of_epoch("epoch_number")] if "time" in groups else []
    is_timed = stated or known.is_bar or "time" in groups or "elapsed_ms" in groups
    if not is_timed and (found is None or found.has("yearless").any()):
        line = pl.col("line").str.head(STAMP_BYTES)
        clocks = steps.select(line.str.extract_groups(_YEARLESS).struct.unnest())
        steps = steps.with_columns(pl.coalesce("elapsed_ns", _since_midnight(clocks)))
    return steps.with_columns(
        (pl.coalesce(times) if times else pl.lit(None, pl.Int64)).alias("time_ns"),
        (pl.col("zone").is_not_null() | pl.col("epoch_number").is_not_null()).alias("has_zone"),
    )


@lru_cache
def _columns(
    known: StepFormat, groups: frozenset[str], rank: int | None, *, is_tagged: bool
) -> tuple[pl.Expr, ...]:
    """Columns of ``job_step`` but for times, of the groups that a format's patterns have: the same
    for each block."""
    import polars as pl

    beside = _dur("input_wait", groups).fill_null(0)
    tags = [_integer(name, groups, MAX_RANK) for name in ("rank", "tag") if name in groups]
    if is_tagged:
        tags.append(pl.col("line").str.extract(_TAG).cast(pl.Int64, strict=False))
    return (
        pl.col("index", "place"),
        _integer("step", groups, MAX_STEP),
        _epoch(groups).alias("epoch"),
        _integer("total", groups, MAX_STEP).alias("total_steps_count"),
        _elapsed(groups).alias("elapsed_ns"),
        (_dur("dur", groups) + (beside if known.is_wait_beside else 0)).alias("dur_ns"),
        *(_dur(name.removesuffix("_ns"), groups).alias(name) for name in _FURTHER),
        pl.lit(known.is_averaged).alias("is_averaged"),
        _integer("samples", groups).alias("samples_count"),
        _integer("tokens", groups).alias("tokens_count"),
        *(_real(name, groups).alias(name) for name in FIELDS),
        (_real("mfu_percent", groups) / 100).alias("mfu_ratio"),
        (_real("tflops", groups) * 1e12).alias("model_flops_per_s"),
        pl.coalesce(*tags, pl.lit(rank, pl.Int64)).cast(pl.Int32).alias("tag"),
        pl.lit(known.name).alias("format"),
    )


def _stamps(steps: pl.DataFrame, block: Block) -> pl.DataFrame:
    """Date, seconds of its clock, ns of their fraction and zone, sought in each line or in the time
    that it states."""
    import polars as pl

    has_time = "time" in steps.columns
    stamp = pl.col("time") if has_time else pl.col("line").str.head(STAMP_BYTES)
    if not (block.holds(_DATE) and steps.select(stamp.str.contains(_DATE).any()).item()):
        return _without_stamps(steps.height)
    said = steps.select(stamp.str.extract_groups(_STAMP).struct.unnest())
    if said["clock"].null_count() == said.height:  # a year of two digits
        return _without_stamps(steps.height)
    if said["month_first"].null_count() < said.height:
        said = said.with_columns(date=pl.coalesce("date", _year_first()))
    clock = pl.col("clock").str
    parts = [clock.slice(at, 2).cast(pl.Int64, strict=False) for at in (0, 3, 6)]
    is_time = pl.all_horizontal(p < most for p, most in zip(parts, (24, 60, 60), strict=True))
    return said.select(
        "date",
        clock_s=pl.when(is_time).then(parts[0] * 3600 + parts[1] * 60 + parts[2]),
        fraction_ns=pl.col("fraction").fill_null("").str.pad_end(9, "0").cast(pl.Int64),
        zone="zone",
    )


def _stamps_of(found: Parts) -> pl.DataFrame:
    """The same of lines whose parts are known."""
    import polars as pl

    clock_s = found.clock_s("clock", is_of_day=True)
    if clock_s is None or not found.has("clock").any():
        return _without_stamps(len(found))
    said = pl.DataFrame(
        {
            "date": found.text("date"), "month_first": found.text("month_first"),
            "clock_s": clock_s, "fraction_ns": found.behind_point("fraction", 9),
            "zone": found.text("zone"),
        }
    )  # fmt: skip
    if said["month_first"].null_count() < said.height:
        said = said.with_columns(date=pl.coalesce("date", _year_first()))
    return said.drop("month_first")


def _year_first() -> pl.Expr:
    """The date of ``month_first``."""
    import polars as pl

    part = pl.col("month_first").str
    return pl.concat_str(
        pl.lit("20"), part.tail(2), pl.lit("-"), part.head(2), pl.lit("-"), part.slice(3, 2)
    )


def _without_stamps(lines_count: int) -> pl.DataFrame:
    import polars as pl

    types = {"date": pl.String, "clock_s": pl.Int64, "fraction_ns": pl.Int64, "zone": pl.String}
    return pl.select(pl.repeat(None, lines_count, dtype=t).alias(n) for n, t in types.items())


def _parts(rows: pl.DataFrame, known: StepFormat, texts: Texts, *, is_tagged: bool) -> Parts | None:
    """What a format's patterns find in lines of few shapes; a user's own pattern may be about
    digits, and is none of Python's."""
    from tracekit.ingest.steplog import parts

    if known.name == OWN:
        return None
    return parts.parts_of(texts, rows["index"].to_numpy(), _sought(known, is_tagged=is_tagged))


@lru_cache
def _sought(known: StepFormat, *, is_tagged: bool) -> tuple[Sought, ...]:
    """What is looked for in the lines of a format."""
    from tracekit.ingest.steplog.parts import Sought, sought

    groups = re.compile(known.pattern).groupindex
    yearless = Sought(re.compile(_YEARLESS), ((0, "yearless"),), STAMP_BYTES)
    return (
        sought(known.pattern),
        *(sought(pattern, name) for name, pattern in known.fields if name not in groups),
        *([sought(_TAG, "tag")] if is_tagged else ()),
        *(() if "time" in groups else (sought(_STAMP, most_chars=STAMP_BYTES), yearless)),
    )


def _of_parts(rows: pl.DataFrame, known: StepFormat, found: Parts) -> tuple[pl.DataFrame, Parts]:
    """The lines with a step, with those groups of the format's patterns that one of them has: as
    numbers where they are plain ones, else as text; and their parts."""

    is_step = found.has("step")
    found = found.of(is_step)
    names = {*re.compile(known.pattern).groupindex, *(name for name, _ in known.fields), "tag"}
    columns: dict[str, pl.Series] = {}
    for name in sorted(names):
        if not found.has(name).any():
            continue
        if name == "elapsed" and (seconds := found.clock_s(name)) is not None:
            columns["elapsed_s"] = seconds
            continue
        number = None
        if name in _WHOLE:
            number = found.whole(name)
        elif name not in _AS_TEXT:
            number = found.real(name)
        columns[name] = found.text(name) if number is None else number
    steps = rows.filter(is_step).select("index", "place", "line")
    return steps.with_columns(column.alias(name) for name, column in columns.items()), found


def _taken(rows: pl.DataFrame, pattern: str) -> pl.DataFrame:
    import polars as pl

    said = pl.col("line").str.extract_groups(pattern).struct.unnest()
    return rows.select("index", "place", "line", said)


def _with_fields(steps: pl.DataFrame, known: StepFormat) -> pl.DataFrame:
    """The lines with a step, with what the format's further patterns find and no group has."""
    import polars as pl

    line = pl.col("line").str
    more: dict[str, list[pl.Expr]] = {name: [] for name, _ in known.fields}
    for name, pattern in known.fields:
        more[name].append(line.extract(pattern))
    return steps.filter(pl.col("step").is_not_null()).with_columns(
        pl.coalesce(found).alias(name) for name, found in more.items() if name not in steps.columns
    )


def _integer(name: str, groups: Collection[str], most: int = 2**62) -> pl.Expr:
    """A whole number up to ``most``: what a stranger's log says beyond that is no number."""
    import polars as pl

    if name not in groups:
        return pl.lit(None, pl.Int64).alias(name)
    value = pl.col(name).cast(pl.Int64, strict=False)
    return pl.when(value <= most).then(value).alias(name)


def _scaled(name: str) -> pl.Expr:
    """A count such as 12, 31K or 1.23k in full, as text."""
    import polars as pl

    text = pl.col(name).str
    unit = pl.col(name).str.tail(1).replace_strict(
        {"K": 1e3, "k": 1e3, "M": 1e6}, default=1.0, return_dtype=pl.Float64
    )  # fmt: skip
    number = text.strip_chars_end("KkM").cast(pl.Float64, strict=False)
    return (number * unit).round().cast(pl.Int64, strict=False).cast(pl.String)


def _epoch(groups: Collection[str]) -> pl.Expr:
    import polars as pl

    first = {"epoch": 0, "epoch_of_row": 0, "epoch_from_1": 1}
    told = [_integer(name, groups, MAX_EPOCH) - at for name, at in first.items() if name in groups]
    return pl.coalesce(told) if told else pl.lit(None, pl.Int64)


def _real(name: str, groups: Collection[str]) -> pl.Expr:
    import polars as pl

    if name not in groups:
        return pl.lit(None, pl.Float64)
    value = pl.col(name).cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def _dur(what: str, groups: Collection[str]) -> pl.Expr:
    """ns, from whichever unit the line states."""
    import polars as pl

    stated = [
        _real(f"{what}_{unit}", groups) * scale
        for unit, scale in (("ms", 1e6), ("s", 1e9))
        if f"{what}_{unit}" in groups
    ]
    if what == "dur" and "steps_per_s" in groups:
        pace = _real("steps_per_s", groups)
        stated.append(pl.when(pace > 0).then(1e9 / pace))
    if not stated:
        return pl.lit(None, pl.Int64)
    dur_ns = pl.coalesce(stated)
    return pl.when(dur_ns <= MAX_STEP_S * 1e9).then(dur_ns).round().cast(pl.Int64, strict=False)


def _elapsed(groups: Collection[str]) -> pl.Expr:
    """ns, of hours where there are any, minutes and seconds, with colons between; or of ms."""
    import polars as pl

    if "day_clock" in groups:
        return _in_year()
    if "elapsed_ms" in groups:
        return _integer("elapsed_ms", groups, MAX_HOURS * 3_600_000) * 1_000_000
    if "elapsed_words" in groups:
        said = pl.col("elapsed_words").str
        units = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
        seconds = pl.sum_horizontal(
            said.extract(rf"(\d+){unit}").cast(pl.Int64).fill_null(0) * s for unit, s in units
        )
        return pl.when(pl.col("elapsed_words").is_not_null()).then(seconds) * 1_000_000_000
    if "elapsed_s" in groups:
        seconds = pl.col("elapsed_s")
    elif "elapsed" in groups:
        text = pl.col("elapsed").str
        parts = text.head(-6), text.slice(-5, 2), text.tail(2)
        hours, minutes, seconds = (part.cast(pl.Int64, strict=False) for part in parts)
        hours = pl.when(hours <= MAX_HOURS).then(hours).fill_null(0)
        seconds = hours * 3600 + minutes * 60 + seconds
    else:
        return pl.lit(None, pl.Int64)
    if "elapsed_days" in groups:
        seconds += pl.col("elapsed_days").cast(pl.Int64, strict=False).fill_null(0) * 86_400
    return seconds * 1_000_000_000


def _since_midnight(said: pl.DataFrame) -> pl.Series:
    """ns since the year, or the day, began: what the clock at each line's head says."""
    import polars as pl

    clock = [pl.col("day_clock").str.slice(at, 2).cast(pl.Int64) for at in (0, 3, 6)]
    is_time = pl.all_horizontal(c < most for c, most in zip(clock, (24, 60, 60), strict=True))
    second = (clock[0] * 60 + clock[1]) * 60 + clock[2]
    of_day = second * 1_000_000_000 + pl.col("part").fill_null("").str.pad_end(9, "0").cast(
        pl.Int64
    )
    stated = said.select(
        day=pl.when(pl.col("month").is_null())
        .then(pl.lit(0, pl.Int64))
        .otherwise(_in_year("00:00:00")),
        of_day=pl.when(is_time).then(of_day),
    )
    return stated["day"] + stated["of_day"]


def _in_year(clock: str | None = None) -> pl.Expr:
    """ns since the year began, of a date without one: as if the year were a leap year. The clock
    is a group's where none is given."""
    import polars as pl

    at = pl.lit(clock) if clock else pl.col("day_clock")
    stamp = pl.concat_str(pl.lit("2000-"), "month", pl.lit("-"), "day", pl.lit(" "), at)
    begin = pl.lit(946_684_800_000_000_000)
    return (
        stamp.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ns", strict=False).cast(pl.Int64)
        - begin
    )


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


def _time(*, has_zones: bool) -> pl.Expr:
    """ns since the epoch of what ``_stamps`` gives; without a zone as if it were UTC."""
    import polars as pl

    # Days are few, so each is parsed once.
    date = pl.col("date").str.replace_all("/", "-", literal=True)
    second = date.str.to_date("%Y-%m-%d", strict=False).dt.epoch("s") + pl.col("clock_s")
    is_time = second.is_between(0, TIME_LIMIT_NS // 1_000_000_000 - 1)
    local_ns = pl.when(is_time).then(second) * 1_000_000_000 + pl.col("fraction_ns")
    if not has_zones:
        return local_ns
    zone = pl.col("zone")  # a sign, two digits, perhaps a colon, two digits
    minutes = zone.str.slice(1, 2).cast(pl.Int64, strict=False) * 60
    minutes += zone.str.tail(2).cast(pl.Int64, strict=False)
    east = pl.when(pl.col("zone").str.starts_with("-")).then(-minutes).otherwise(minutes)
    shift = pl.when(pl.col("zone") == "Z").then(0).otherwise(east).fill_null(0)
    return local_ns - shift * 60_000_000_000

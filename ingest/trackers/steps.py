"""Records of metrics to rows of ``job_step``: which metric is what is decided once a file.

The first records decide, by their names, and for durations without a unit by the clock beside
them; later records are read by that and streamed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Any, Literal

from tracekit.ingest.base import Sink, write_columns
from tracekit.ingest.trackers.names import Meaning, Role, by_role
from tracekit.values import EPOCH_S

HEAD_RECORDS = 2000
"""Records by which it is decided what each metric is."""
BATCH_RECORDS = 20_000
MAX_NAMES = 20_000
"""Different names of metrics that are looked at in the first records."""
MAX_STEP = 10**10
"""Highest number of a step that is believed."""
MAX_DUR_NS = 10**16
"""Longest step that is believed: four months."""
AGREES = (0.2, 1.25)
"""Of the median distance of two records, how much a step's duration is where its unit is right.
Whatever lies between two steps is in the distance and not in the duration."""
LONGER_RATIO = 1.05
"""A wait for input that is longer than its step by more than rounding lies beside the step."""

Value = Any
_COLUMNS: tuple[tuple[str, Role], ...] = (
    ("samples_count", "samples"), ("tokens_count", "tokens"), ("total_steps_count", "total"),
)  # fmt: skip
_REALS: tuple[Role, ...] = ("loss", "learning_rate", "grad_norm")


def number(value: Value) -> float | None:
    """A finite number, also where a text holds it; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        real = float(value)
    except (ValueError, OverflowError):
        return None
    return real if math.isfinite(real) else None


def whole(value: Value, most: int = 2**62) -> int | None:
    """A whole number from 0; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value <= most else None
    real = number(value)
    return int(real) if real is not None and real.is_integer() and 0 <= real <= most else None


def moment(value: Value) -> tuple[int, bool] | None:
    """ns since the epoch and whether its zone is known; None where it is no time of day.

    A number is in seconds, ms, us or ns, whichever falls between 2000 and 2099. A text without a
    zone is taken as if it were UTC.
    """
    real = number(value)
    if real is not None:
        for unit_ns in (10**9, 10**6, 10**3, 1):
            if EPOCH_S[0] * 1e9 <= real * unit_ns < EPOCH_S[1] * 1e9:
                # Whole seconds apart: a float of ns since the epoch has steps of 256.
                seconds = math.floor(real * unit_ns / 10**9)
                rest = (real - seconds * (10**9 // unit_ns)) * unit_ns
                return seconds * 10**9 + round(rest), True
        return None
    if not isinstance(value, str) or not 16 <= len(value) <= 40:
        return None
    try:
        at = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    has_zone = at.tzinfo is not None
    at = at if has_zone else at.replace(tzinfo=UTC)
    if not 2000 <= at.year < 2100:
        return None
    return round(at.timestamp()) * 10**9 if at.microsecond == 0 else (
        math.floor(at.timestamp()) * 10**9 + at.microsecond * 1000
    ), has_zone


class Steps:
    """Takes a file's records, in their order, and writes their steps."""

    def __init__(self, sink: Sink, format_: str, rank: int | None = None) -> None:
        """``rank`` is what the file's name says: of rows that name none themselves."""
        self._sink = sink
        self._format = format_
        self._rows: list[tuple[int, Mapping[str, Value]]] = []
        self._roles: dict[Role, tuple[str, Meaning]] | None = None
        self._dur_ns = 0.0
        self._wait_ns = 0.0
        self._is_wait_beside = False
        """Whether durations leave the wait for input out."""
        self._rank = rank
        self.count = 0
        """Steps written."""
        self.stepless = 0
        """Records without a step."""
        self._zones: set[bool] = set()
        self._window: tuple[int, int] | None = None

    def add(self, place: int, record: Mapping[str, Value]) -> None:
        """One record: values by the names of their metrics."""
        self._rows.append((place, record))
        if len(self._rows) >= (HEAD_RECORDS if self._roles is None else BATCH_RECORDS):
            self._flush()

    def finish(self, place_kind: Literal["line", "row", "record"]) -> None:
        """Write what is left, and say what the file is."""
        self._flush()
        sink, basis = self._sink, "none"
        sink.count("step_line", self.count, severity="info",
                   doc="Lines that report a training step.")  # fmt: skip
        if self.stepless:
            sink.count(
                "record_without_step", self.stepless, severity="info",
                doc="Records of metrics that name no step: an evaluation's, or the system's.",
            )  # fmt: skip
        if self._window:
            basis = "epoch" if self._zones == {True} else "local"
            sink.fact(window_start_ns=self._window[0], window_end_ns=self._window[1])
        if len(self._zones) > 1:
            sink.count(
                "mixed_zones",
                doc="Some lines state a time zone and others none; all were read as stated.",
            )
        sink.fact(time_basis=basis, producer=self._format, place_kind=place_kind)
        if not self.count:
            sink.fact(status="empty", reason="no record names a training step")

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if not rows:
            return
        if self._roles is None:
            self._roles = self._decided(rows)
        if "step" not in self._roles:
            self.stepless += len(rows)
            return
        self._write(rows, self._roles)

    def _decided(
        self, rows: list[tuple[int, Mapping[str, Value]]]
    ) -> dict[Role, tuple[str, Meaning]]:
        """The metric of each role, from the first records."""
        names: dict[str, int] = {}
        for _, record in rows:
            for name, value in record.items():
                if value not in (None, "") and (name in names or len(names) < MAX_NAMES):
                    names[name] = names.get(name, 0) + 1
        # A metric of evaluations alone stands in few records.
        often = [n for n, times in names.items() if 2 * times >= max(names.values(), default=0)]
        roles = by_role(list(names))
        for role in ("step", "time"):
            if (best := by_role(often).get(role)) is not None:
                roles[role] = best
        if "time" in roles and not any(moment(r.get(roles["time"][0])) for _, r in rows):
            del roles["time"]
        if "elapsed" in roles:
            gone = [v for _, r in rows if (v := number(r.get(roles["elapsed"][0]))) is not None]
            if any(b < a for a, b in pairwise(gone)):
                del roles["elapsed"]  # of a step, or of an epoch
        if "dur" in roles and "step" in roles:
            unit_ns = roles["dur"][1].unit_ns or self._unit_ns(rows, roles)
            if unit_ns is None:
                self._sink.count(
                    "duration_without_unit",
                    doc="A step's duration without a unit, and no clock that tells which it is; "
                    "it is not read. Give the metric a name that ends in its unit (step_time_s).",
                )
                del roles["dur"]
            else:
                self._dur_ns = unit_ns
        if "input_wait" in roles:
            # Whoever gives one without a unit gives both in the same.
            self._wait_ns = roles["input_wait"][1].unit_ns or self._dur_ns
            if not self._wait_ns:
                del roles["input_wait"]
            elif "dur" in roles:
                self._is_wait_beside = any(
                    (wait := number(record.get(roles["input_wait"][0]))) is not None
                    and (dur := number(record.get(roles["dur"][0]))) is not None
                    and wait * self._wait_ns > LONGER_RATIO * dur * self._dur_ns
                    for _, record in rows
                )
        return roles

    def _unit_ns(
        self, rows: list[tuple[int, Mapping[str, Value]]], roles: dict[Role, tuple[str, Meaning]]
    ) -> int | None:
        """ns in the unit of durations, of which the times between records tell; None if none do."""
        clock = self._clock(roles)
        points = [
            (step, at)
            for _, record in rows
            if (step := whole(record.get(roles["step"][0]))) is not None
            and (at := clock(record)) is not None
        ]
        apart = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(points) if b[0] > a[0]]
        durs = [v for _, r in rows if (v := number(r.get(roles["dur"][0]))) is not None]
        if not apart or not durs or median(apart) <= 0:
            return None
        ratio = median(durs) / median(apart)
        fits = [u for u in (10**9, 10**6, 10**3) if AGREES[0] <= ratio * u <= AGREES[1]]
        return fits[0] if len(fits) == 1 else None

    @staticmethod
    def _clock(
        roles: dict[Role, tuple[str, Meaning]],
    ) -> Callable[[Mapping[str, Value]], int | None]:
        """ns of a record, since the epoch or the start of the program."""
        if "time" in roles:
            time = roles["time"][0]
            return lambda record: at[0] if (at := moment(record.get(time))) else None
        if "elapsed" in roles:
            gone = roles["elapsed"][0]
            return lambda record: (
                round(v * 1e9) if (v := number(record.get(gone))) is not None and v < 1e9 else None
            )
        return lambda record: None

    def _write(
        self,
        rows: list[tuple[int, Mapping[str, Value]]],
        roles: dict[Role, tuple[str, Meaning]],
    ) -> None:
        names = {role: name for role, (name, _) in roles.items()}
        step_name = names["step"]
        stepped = [
            (place, record, step)
            for place, record in rows
            if (step := whole(record.get(step_name), MAX_STEP)) is not None
        ]
        self.stepless += len(rows) - len(stepped)
        self.count += len(stepped)
        if not stepped:
            return

        def told(role: Role, read: Callable[[Value], Any]) -> list[Any]:
            name = names.get(role)
            if name is None:
                return [None] * len(stepped)
            return [read(record.get(name)) for _, record, _ in stepped]

        waits = told("input_wait", lambda value: _wait_ns(value, self._wait_ns))
        durs = told("dur", lambda value: _dur_ns(value, self._dur_ns))
        if self._is_wait_beside:
            durs = [dur and dur + (wait or 0) for dur, wait in zip(durs, waits, strict=True)]
        moments = told("time", moment)
        self._zones |= {at[1] for at in moments if at}
        times = [at[0] for at in moments if at]
        if times:
            old = self._window or (times[0], times[0])
            self._window = min(*times, old[0]), max(*times, old[1])
        columns: dict[str, list[Any]] = {
            "place": [place for place, _, _ in stepped],
            "step": [step for _, _, step in stepped],
            "time_ns": [at[0] if at else None for at in moments],
            "elapsed_ns": told("elapsed", _elapsed_ns),
            "dur_ns": durs,
            "input_wait_ns": waits,
            "format": [self._format] * len(stepped),
            "tag": told("rank", lambda value: whole(value, 2**31 - 1))
            if "rank" in names
            else [self._rank] * len(stepped),
            "mfu_ratio": told("mfu", _ratio),
        }
        if "dur" in roles and (averaged := roles["dur"][1].is_averaged) is not None:
            columns["is_averaged"] = [averaged] * len(stepped)
        columns |= {name: told(role, whole) for name, role in _COLUMNS}
        columns |= {role: told(role, number) for role in _REALS}
        write_columns(self._sink, "job_step", columns)


def _dur_ns(value: Value, unit_ns: float) -> int | None:
    stated = number(value)
    if stated is None or not 0 < stated * unit_ns <= MAX_DUR_NS:
        return None
    return round(stated * unit_ns)


def _wait_ns(value: Value, unit_ns: float) -> int | None:
    stated = number(value)
    return 0 if stated == 0 else _dur_ns(value, unit_ns)


def _elapsed_ns(value: Value) -> int | None:
    gone = number(value)
    return round(gone * 1e9) if gone is not None and 0 <= gone < 1e9 else None


def _ratio(value: Value) -> float | None:
    """Model FLOP utilisation: trackers have it as a share or in percent."""
    stated = number(value)
    if stated is None or not 0 <= stated <= 100:
        return None
    return stated / 100 if stated > 1 else stated

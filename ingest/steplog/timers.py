"""How long parts of a step took, by the timers that Megatron-LM and others print below its line.

Rows of ``job_step_part``: a part's shortest and longest time over all ranks, a rank's own, or what
one rank says of itself without its number. Forms, as the programs' sources print them:

    (min, max) time across ranks (ms):          max time across ranks (ms):
        forward-compute .....: (1.00, 2.00)         forward-compute .....: 2.00
    times across ranks (ms):                    time (ms) | forward: 1.00 | backward: 2.00
      forward-compute:                          step:1 - timing_s/gen:74.020 - timing_s/ref:3.420
         rank  0: 1.00

A part's name is kept where each of its words is one of those that timers are called by; others are
counted, since a stranger's line may hold anything in such a form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tracekit.ingest.base import Sink, write_columns
from tracekit.ingest.steplog.words import any_of

WORDS = (b"across ranks (ms):", b"time (ms) | ")
KEYS = any_of(WORDS)
MAX_BETWEEN = 200
"""Lines of others within a block of timers, beyond which it has ended."""
MAX_NAME_CHARS = 60
MAX_MS = 1e10
"""Longest time that is believed: four months."""

_NAME = rb"([A-Za-z][\w/-]{0,80})"
_MS = rb"(\d{1,12}(?:\.\d{1,9})?)"
_BEFORE = rb"(?:^|[\s\]:>])"
_SPREAD = re.compile(_BEFORE + _NAME + rb" \.{0,80}: \(" + _MS + rb", " + _MS + rb"\)\s*$")
_LONGEST = re.compile(_BEFORE + _NAME + rb" \.{1,80}: " + _MS + rb"\s*$")
_PART = re.compile(rb"(?:^|[\]:>] ?|: ) {2}" + _NAME + rb":\s*$")
_OF_RANK = re.compile(rb" {2}rank +(\d{1,7}): " + _MS + rb"\s*$")
_SAID = re.compile(rb"([A-Za-z][\w/ -]{0,80}): " + _MS + rb"\s*$")
_OF_STEP = re.compile(
    rb"\btiming_s/(?!step:)([a-z_]{1,60}):(?:np\.float64\()?(\d{1,9}(?:\.\d{1,9})?)"
)
_TAG = re.compile(rb"\[[Rr]ank ?(\d{1,7})\]")
_BETWEEN = re.compile(rb"[-_/ ]+")
_WORDS = frozenset(
    b"""
    a2a activation activations actor adv all allgather allreduce alltoall and attention autograd
    average backward barrier batch bcast bf16 broadcast bubble bucket bwd check checkpoint clip
    closure combine comm communication compute context copy count cp critic cross data dataloader
    dispatch dp elapsed ema embedding ep eval evaluate evaluation exchange expert experts finalize
    first flush forward fp16 fp32 fp8 fused fwd gather gen generate generation generator global
    grad gradient gradients grads group head hook host inf init inner input interval inv iter
    iteration iterators last layer layernorm layers load local log logging logits loss lr main max
    memory micro microbatch microstep min mlp model module moe move nan new next nonzero norm
    offload old opt optim optimizer other output overflow overlap param parameter parameters params
    pipe pipeline post postprocess pp pre prefetch prepare preprocess prob profile recompute recv
    reduce reduction ref reference refit reset reshard reward rollout sample sampling save scale
    scatter scheduler score send sequence sequences set setup sharded shuffle sleep split stage
    start state step sum swap sync synchronization synchronize tensor test testing time timers to
    token tokens total tp train training transfer unscale update upload valid validation values
    wait wake weight weights zero zeros
    """.split()
)
"""Words of timers' names in Megatron-LM, DeepSpeed, what is built on them, and verl."""
_COLUMNS = ("place", "name", "part_rank", "dur_ns", "min_ns", "max_ns")

Times = tuple[int | None, int | None, int | None, int | None]
"""Rank, its time, the shortest and the longest over ranks, in ns."""


class TimerReader:
    """Takes timers of parts of steps out of a job's output. Consumes no line."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._open: str | None = None
        """How the block that is being read tells times: spread, longest or ranks."""
        self._last = 0
        """Place of the last line that belongs to it."""
        self._part: bytes | None = None
        """Whose ranks are being listed."""
        self._rows: list[tuple[int, str, int | None, int | None, int | None, int | None]] = []
        self._odd = 0
        self.count = 0
        """Times found so far."""

    @property
    def is_open(self) -> bool:
        """Whether lines without a word of ``KEYS`` may belong to what the last one began."""
        return self._open is not None

    def take(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Look at lines with their places."""
        for place, line in lines:
            if b"ms)" in line and self._head(place, line):
                continue
            if self._open is not None:
                self._within(place, line)
        self._write()

    def take_steps(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Look at lines of steps, with their places, that tell the parts of the step: verl's.
        They are of the process that drives the others, which no rank is."""
        for place, line in lines:
            for name, seconds in _OF_STEP.findall(line):
                self._add(place, name, (None, _ns(seconds, 1e9), None, None))
        self._write()

    def _write(self) -> None:
        if self._rows:
            columns = dict(zip(_COLUMNS, map(list, zip(*self._rows, strict=True)), strict=True))
            write_columns(self._sink, "job_step_part", columns)
            self._rows = []

    def _head(self, place: int, line: bytes) -> bool:
        """Whether a line begins a block, or tells all in itself."""
        if (at := line.find(WORDS[0])) >= 0:
            before = line[:at]
            self._open = (
                "spread" if b"(min, max) time " in before
                else "longest" if b"max time " in before
                else "ranks"
            )  # fmt: skip
            self._last, self._part = place, None
            return True
        at = line.find(WORDS[1])
        if at < 0:
            return False
        tag = _TAG.search(line, 0, at)
        for text in line[at + len(WORDS[1]) :].split(b"|"):
            if said := _SAID.match(text.strip()):
                rank = int(tag[1]) if tag else None
                self._add(place, said[1], (rank, _ns(said[2]), None, None))
        return True

    def _within(self, place: int, line: bytes) -> None:
        if place - self._last > MAX_BETWEEN:
            self._open = self._part = None
        elif self._open == "spread":
            if both := _SPREAD.search(line):
                self._last = place
                self._add(place, both[1], (None, None, _ns(both[2]), _ns(both[3])))
        elif self._open == "longest":
            if most := _LONGEST.search(line):
                self._last = place
                self._add(place, most[1], (None, None, None, _ns(most[2])))
        elif own := _OF_RANK.search(line):
            self._last = place
            if self._part is not None:
                self._add(place, self._part, (int(own[1]), _ns(own[2]), None, None))
        elif part := _PART.search(line):
            self._last, self._part = place, part[1]

    def _add(self, place: int, name: bytes, times: Times) -> None:
        is_known = len(name) <= MAX_NAME_CHARS and _WORDS.issuperset(_BETWEEN.split(name))
        if not is_known or all(t is None for t in times[1:]):
            self._odd += 1
            return
        self.count += 1
        self._rows.append((place, name.decode("ascii").replace(" ", "-"), *times))

    def finish(self) -> None:
        """Say what was counted."""
        count = self._sink.count
        count("part_time", self.count, severity="info", doc="Times of parts of steps.")
        count(
            "odd_part_time", self._odd, severity="info",
            doc="Times of parts whose name has other words than timers', or that no step takes.",
        )  # fmt: skip


def _ns(text: bytes, unit_ns: float = 1e6) -> int | None:
    value = float(text) * unit_ns
    return round(value) if value <= MAX_MS * 1e6 else None

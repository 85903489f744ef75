"""What a job's own straggler detector reports of its ranks: Megatron-LM's, NVRx', FlagScale's.

Events of ``log_event``, one a report and quantity, with the ranks that it names. Forms, as the
programs' sources print them:

    [...] | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 | ... | MxEtpt/Rnk: 297.32TF/8
    GPU relative performance:                       === Straggler Report at Step 10 ===
     Worst performing 5/512 ranks:                  GPU Performance Scores (higher=faster):
      Rank=76 Node=h100-001 Score=0.94                Rank 0 (node-15): 2.9138
"""

from __future__ import annotations

import re

from msgspec import Struct, field

from tracekit.ingest.base import Severity, Sink, write_columns

WORDS = (b"MxRtt/Rnk: ", b"GPU relative performance:", b"=== Straggler Report at ")
_KEY = re.compile(b"|".join(map(re.escape, WORDS)))
_MEGATRON = re.compile(
    rb"M[nx](Clk|Tmp|Etpt)/Rnk: (\d{1,7}(?:\.\d{1,6})?)(?:MHz|C|TF)/(\d{1,7})(?!\d)"
)
_NAMES = {b"Clk": "clock_mhz", b"Tmp": "temperature_celsius", b"Etpt": "throughput_tflops"}
_SCORE = re.compile(rb"Rank=(\d{1,7}) Node=([\w.-]{1,200}) Score=(\d{1,4}(?:\.\d{1,9})?)\s*$")
_RANK = re.compile(rb"Rank (\d{1,7})(?: \(([\w.-]{1,200})\))?: (\d{1,6}(?:\.\d{1,9})?)\s*$")
_SCORES = b"GPU Performance Scores"
MAX_BETWEEN = 12
"""Lines of others within a report, beyond which it has ended."""
MAX_RANKS = 4096
"""Ranks of one report that are kept."""
MAX_REPORTS = 20_000


class _Report(Struct):
    place: int
    by: str
    what: str
    values: dict[int, str] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)

    @property
    def fields(self) -> list[str]:
        """``rank.3=0.94``, and ``node.3=h1`` where it is said."""
        return [
            f"by={self.by}", f"what={self.what}",
            *(f"rank.{rank}={value}" for rank, value in self.values.items()),
            *(f"node.{rank}={node}" for rank, node in self.nodes.items()),
        ]  # fmt: skip


class StragglerReader:
    """Takes the reports out of a job's output. Shows each line; consumes none."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._reports: list[_Report] = []
        self._open: _Report | None = None
        self._has_scores = False
        """Whether the part with the scores has begun, of a report that has others before it."""
        self._between = 0

    @property
    def is_open(self) -> bool:
        """Whether a report has begun that further lines belong to."""
        return self._open is not None

    @property
    def count(self) -> int:
        """Reports that were found."""
        return len(self._reports)

    def take(self, line: bytes, place: int) -> None:
        """Look at a line."""
        if self._open is not None:
            self._continue(line)
        begun = _KEY.search(line)
        if begun is None or len(self._reports) >= MAX_REPORTS:
            return
        self._end()
        if begun[0] == WORDS[0]:
            self._megatron(line, place)
        elif begun[0] == WORDS[1]:
            self._open = _Report(place, "nvrx", "score")
            self._has_scores, self._between = True, 0
        else:
            self._open = _Report(place, "flagscale", "score")
            self._has_scores, self._between = False, 0

    def _megatron(self, line: bytes, place: int) -> None:
        by_name: dict[str, _Report] = {}
        for name, value, rank in _MEGATRON.findall(line):
            what = _NAMES[name]
            report = by_name.setdefault(what, _Report(place, "megatron", what))
            report.values.setdefault(int(rank), value.decode())
        self._reports += by_name.values()

    def _continue(self, line: bytes) -> None:
        report = self._open
        if report is None:
            return
        if not self._has_scores:
            # Times of sections are those of every rank, too, and may be many.
            self._has_scores = _SCORES in line
            self._between += not (self._has_scores or _RANK.search(line.replace(b"ms", b"")))
        elif stated := (_SCORE if report.by == "nvrx" else _RANK).search(line):
            rank, node, value = (
                stated.groups() if report.by == "nvrx" else (stated[1], stated[2], stated[3])
            )
            if len(report.values) < MAX_RANKS:
                report.values.setdefault(int(rank), value.decode())
                if node:
                    report.nodes.setdefault(int(rank), node.decode())
            self._between = 0
        else:
            self._between += 1
        if self._between > MAX_BETWEEN or b"GPU individual performance:" in line:
            self._end()

    def _end(self) -> None:
        if self._open is not None and self._open.values:
            self._reports.append(self._open)
        self._open = None

    def finish(self) -> None:
        """Write the events."""
        self._end()
        if not self._reports:
            return
        severity: Severity = "info"
        count = len(self._reports)
        write_columns(
            self._sink,
            "log_event",
            {
                "place": [r.place for r in self._reports],
                "code": ["straggler-report"] * count,
                "severity": [severity] * count,
                "template": ["straggler-report"] * count,
                "fields": [r.fields for r in self._reports],
            },
        )

"""What a comparison is made of: rows of each run, and what its diagnosis says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct, field

from tracekit.comparison.calls import Called
from tracekit.comparison.path import Charges, Part, Paths
from tracekit.report.model import Document
from tracekit.rules.steps import Steps

Row = Mapping[str, Any]


class RunRows(Struct, frozen=True, dict=True):
    """One run of a side, as it answered."""

    id: str
    document: Document
    """What diagnose says of it."""
    steps: Steps
    paths: Paths | None
    """None where its queries could not be run."""
    called: Called = field(default_factory=dict)
    """What its steps call, by pipeline stage."""
    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """Rows by query name, of the attempt that is compared."""
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Queries that could not be run, and why."""
    description: Mapping[str, str] = field(default_factory=dict)
    """What a job description says, by its fields' names."""
    is_by_log: bool = False
    """Whether its steps are its training log's: of some run of the comparison there are no other.
    Then ``step_charges`` has one entry a stretch of the log, a mean step of it."""

    def of(self, query: str) -> Sequence[Row]:
        """Rows of a query; none where it could not be run."""
        return self.rows.get(query, ())

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that the run has, steady or not."""
        return self.document.run.ranks

    @cached_property
    def stages(self) -> dict[int, int]:
        """Pipeline stage by rank, where there are stages."""
        rows = self.of("job_ranks")
        return {int(r["rank"]): int(r["pp_rank"]) for r in rows if r["pp_rank"] is not None}

    @cached_property
    def hosts(self) -> dict[int, str]:
        """Host by rank, as far as known."""
        rows = self.of("job_ranks")
        return {int(r["rank"]): str(r["host"]) for r in rows if r["host"] is not None}

    @cached_property
    def step_charges(self) -> tuple[Charges, ...]:
        """What each steady step of the job went into, in order; each adds up to its step.

        Of a training log what is between steps (saves, evaluations, stalls) counts to them.
        Along the critical path; without clocks as the median rank's step divides; of a job with
        timers alone nothing is known of a step but its length.
        """
        if self.is_by_log:
            return tuple(
                {Part("step"): float(row["step_ns"]), Part("between"): float(row["between_ns"])}
                for row in self.of("job_step_curve")
                if row["step_ns"] is not None and row["between_ns"] is not None
            )
        if len(self.steps):
            charged = self.paths.steps(self.steps, self.stages) if self.paths else {}
            return tuple(charged.values()) or tuple(self._divided())
        timed = self.of("job_step_time")
        return tuple({Part("unexplained"): float(row["dur_ns"])} for row in timed if row["dur_ns"])

    @property
    def steps_count(self) -> int:
        """Steps that are compared."""
        if self.is_by_log:
            return sum(int(row["steps_count"]) for row in self.of("job_step_curve"))
        return len(self.step_charges)

    @property
    def lengths_s(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Steps from which a side's median and longest step are: of a log its stretches' own."""
        if self.is_by_log:
            rows = self.of("job_step_curve")
            return tuple(r["p50_ns"] / 1e9 for r in rows), tuple(r["max_ns"] / 1e9 for r in rows)
        steps_s = tuple(sum(c.values()) / 1e9 for c in self.step_charges)
        return steps_s, steps_s

    def _divided(self) -> list[Charges]:
        """Each step as it divides on the median rank (on the first that it has, without it)."""
        charged: list[Charges] = []
        for key, ranks in self.steps.by_key.items():
            row = ranks.get(self.steps.median_rank or 0) or ranks[min(ranks)]
            scale = self.steps.job_dur_ns(key) / row.dur_ns
            parts = {
                Part("compute"): row.compute_ns * scale,
                Part("communication"): row.exposed_comm_ns * scale,
                Part("copies"): row.memory_ns * scale,
                Part("idle"): row.idle_ns * scale,
            }
            charged.append({part: ns for part, ns in parts.items() if ns})
        return charged

    @cached_property
    def own_ns(self) -> Mapping[int, Mapping[str, float]]:
        """What each rank did in a mean steady step, by cause."""
        return self.paths.own_ns(self.steps) if self.paths else {}

    @cached_property
    def has_path(self) -> bool:
        """Whether its steps were taken apart along the critical path."""
        return self.paths is not None and bool(self.paths.steps(self.steps, self.stages))

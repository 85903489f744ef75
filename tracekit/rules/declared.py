"""What a rule declares: what it reads and decides by, and what it is to others.

``Rule.run`` asks it: it is given what it declares and nothing else.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from tracekit.findings import Instrument, NotChecked, Owner, Severity
from tracekit.rules.facts import HIDDEN_QUERY, LOST_QUERY, Facts, UndeclaredQueryError
from tracekit.rules.outcome import (
    HIDDEN,
    HIDDEN_CAPTURE,
    LOST,
    LOST_CAPTURE,
    NO_GPU,
    RuleOutcome,
    lacking,
)
from tracekit.rules.thresholds import Thresholds

DOC_HEADINGS = (
    "What it means",
    "How it shows",
    "Why it hurts",
    "Remedy",
    "When this is wrong",
    "Source",
)
"""Every rule's docstring has these headings in this order; ``explain`` prints them."""

Topic = Literal[
    "GPU health",
    "links, packet loss, pause",
    "NCCL's transports and choices",
    "the job's history",
    "what hosts lack",
]
Effect = Literal[
    "waiting",  # others wait for it in communication
    "lateness",  # its ranks enter collectives late
    "lateness of its group",  # so do all members of a group of which no rank can be named
    "stalled launches",  # its host launches nothing meanwhile
    "slow host",  # what a rank does on its host takes longer, or stands still
    "slow saves",  # a checkpoint takes long to write
    "late input",  # the loader hands batches over late
    "a lost member",  # a process is gone that others call a collective with
    "unfed GPUs",  # kernels are launched too slowly
    "idle stages",  # other stages of the pipeline stand idle
    "latency",  # small messages wait as if each took long
    "slow GPU",  # a GPU computes slowly
    "odd GPU",  # a GPU differs from its peers in temperature or power
    "slow link",  # one link carries less than those beside it
    "slow transfers within hosts",
    "slow transfers between hosts",
    "pauses",  # senders are told to stop
    "bursts",  # many send to one at once
    "restarts",  # the job is started again
]
"""What a fault makes, by which another rule may see it: a new rule names what it makes, and stands
in no list of another."""
Sameness = Literal[
    "job", "some ranks", "ranks", "named ranks", "ranks and steps", "devices", "hosts"
]
"""Where a cause must sit to explain a symptom: anywhere; on some ranks, not on all (what holds up
everybody makes nobody wait for another); on all ranks of the symptom; there, where the cause names
ranks, is as grave, and the symptom suspects no others; there, at the same time; on one of its
devices; on all its hosts, and not on all of the job."""


class Lends(Struct, frozen=True):
    """How a symptom's measured price passes to what causes it, where that is stated without one."""

    instrument: Instrument
    """What states such a cause."""
    shown: str
    """What the traces show of it."""
    is_to_one: bool = False
    """Only to a cause that stands alone and has nothing against it."""


class Rule(Struct, frozen=True):
    """A rule: one module, one name, one question to the data."""

    name: str
    summary: str
    owner: Owner
    thresholds: Thresholds
    queries: tuple[str, ...]
    """What it answers from, what may exempt somebody or move the blame included: where one of
    these could not be run, the rule says so and nothing else."""
    evaluate: Callable[[Facts, Any], RuleOutcome]
    """Of the rule's own module. Is given rows of ``queries`` and ``optional`` only."""
    optional: Mapping[str, str] = field(default_factory=dict)
    """What it can do without, and what each is for (words, a price): never whether somebody is
    accused, nor who."""
    cap: Severity = Severity.CRITICAL
    blames: Literal["culprit", "program", "nobody"] = "culprit"
    """"nobody": describes how the time is spent; may be a symptom of another. "program": blames
    nobody either, and yet is more than what the layout allows."""
    needs: str = ""
    """The input that is most often absent, as ``not_checked`` states it."""
    needs_kernels: bool = False
    """Whether it must see what ran on the device: it abstains where CUDA graphs hide that."""
    kernel_queries: tuple[str, ...] = ()
    """For a rule with other evidence besides: what shows the device, which it needs too, and which
    is withheld from it where CUDA graphs hide that."""
    judges_windows: bool = False
    """Whether it means as much of a window in which nothing marks steps as of a step."""
    topic: Topic | None = None
    """What a reader would ask about that logs or counters tell; None: the rule's own name says
    it."""
    reads_other_files: bool = False
    """Whether logs or counters tell it something where there is no trace; with a topic they do."""
    is_hang: bool = False
    """Whether what it finds ends the job."""
    explains: tuple[Effect, ...] = ()
    """What it makes, so that its findings explain those of the rules that are ``symptom_of``
    that."""
    symptom_of: tuple[Effect, ...] = ()
    """What it would see of another fault."""
    same: Sameness = "job"
    """How near such a fault must be."""
    lends: Lends | None = None
    """Whether its price passes to causes without one."""
    sees: Effect | None = None
    """What fault it sees by its trace, which a rule with another instrument may know better."""
    absorbs: tuple[Effect, ...] = ()
    """Faults that it sees with another instrument: a finding that ``sees`` one in the same place
    and this one become one finding, under this rule's name. It makes them too."""
    budget: Literal["place", "communication", "idle first", "counted"] = "place"
    """What part of the step its cost comes out of: by where its ranks are; only exposed
    communication; idle time, then exposed communication; none, as the sum of what stands in the
    budget already."""
    bound: Literal["communication", "communication and copies"] | None = None
    """What nothing but can cost by it: communication of the rank that has most; of the ranks that
    the rule names, which says itself how much."""
    states: Literal["cause", "harm", "shared link"] | None = None
    """What its findings prove without a price: why communication is slow; that a port does harm,
    whatever it costs (no job makes it by running); the use of a link that any job shares, which
    may lead a verdict only where the finding left its price open."""

    @property
    def needs_traces(self) -> bool:
        """Whether it has nothing to say of logs or counters alone."""
        return self.topic is None and not self.reads_other_files

    @property
    def names_culprit(self) -> bool:
        """Whether it blames a part of the job."""
        return self.blames == "culprit"

    def configured(self, overrides: Mapping[str, object]) -> Rule:
        """The rule with some thresholds replaced; UsageError for one that it does not have."""
        if not overrides:
            return self
        return replace(self, thresholds=self.thresholds.replaced(f"rule {self.name}", overrides))

    @property
    def reads(self) -> tuple[str, ...]:
        """Every query whose rows the rule may look at."""
        return tuple(dict.fromkeys((*self.needed, *self.optional)))

    @property
    def needed(self) -> tuple[str, ...]:
        """Those without which it says nothing."""
        sees_kernels = self.needs_kernels or self.kernel_queries
        kernels = (HIDDEN_QUERY, LOST_QUERY) if sees_kernels else ()
        return tuple(dict.fromkeys((*self.queries, *self.kernel_queries, *kernels)))

    def run(self, facts: Facts) -> RuleOutcome:
        """Evaluate, unless a query that it needs could not be run."""
        for query in self.needed:
            if query in facts.unavailable:
                return lacking(self.name, f"query {query}: {facts.unavailable[query]}")
        if self.judges_windows and facts.over_windows is not None:
            facts = facts.over_windows
        try:
            outcome = self._judged(facts.limited(self.reads, self))
        except UndeclaredQueryError as error:
            return self.undeclared(error)
        without = tuple(
            NotChecked(rule=self.name, needs=f"query {query} ({why}): {facts.unavailable[query]}")
            for query, why in self.optional.items()
            if query in facts.unavailable and query not in self.needed
        )
        return replace(outcome, not_checked=outcome.not_checked + without)

    def _judged(self, facts: Facts) -> RuleOutcome:
        lost, least = facts.job.lost_ranks, facts.kernel_limits.min_sound_ranks_count
        is_blind = self.needs_kernels and (
            facts.hidden_ranks or (lost and len(set(facts.ranks) - lost) < least)
        )
        if is_blind or (self.kernel_queries and (facts.hidden_ranks or lost)):
            seen = facts if is_blind else facts.without(self.kernel_queries)
            outcome = self.evaluate(seen, self.thresholds)
            if outcome.findings and not is_blind:
                return outcome
            if facts.hidden_ranks:
                return lacking(self.name, HIDDEN, HIDDEN_CAPTURE)
            # What it would lack with all kernels as well is the first thing to be had.
            if any(lack.needs != NO_GPU[0] for lack in outcome.not_checked):
                return RuleOutcome(not_checked=outcome.not_checked)
            return lacking(self.name, LOST, LOST_CAPTURE)
        return self.evaluate(facts, self.thresholds)

    def undeclared(self, error: UndeclaredQueryError) -> RuleOutcome:
        """The outcome of a rule that reads what it does not declare. Tests let the error pass."""
        return lacking(self.name, f"query {error}, which the rule reads and does not declare")

    @property
    def doc(self) -> str:
        """The docstring of its module, which has all DOC_HEADINGS."""
        return inspect.cleandoc(sys.modules[self.evaluate.__module__].__doc__ or "")

    def explain(self) -> str:
        """What ``tracekit explain`` prints: the docstring, then the thresholds."""
        lines = [f"{self.name}: {self.summary}", "", self.doc, "", "Thresholds"]
        for name, value in self.thresholds.values().items():
            lines += [f"  {name} = {value:g}", f"      {self.thresholds.reasons[name]}"]
        return "\n".join(lines) + "\n"

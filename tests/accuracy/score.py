"""What a diagnosis is worth beside the truth."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

MIN_COST_RATIO = 0.05
"""Single faults below this share of the step need not be named."""
AT_START = frozenset({"init-straggler"})
"""Faults whose price is paid before the steps."""
MAJOR = ("major", "critical")


@dataclass(frozen=True)
class Named:
    """One finding, as far as it is scored."""

    rule: str
    severity: str
    confidence: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    groups: tuple[str, ...]
    is_top: bool
    is_symptom: bool
    step_ratio: float | None = None
    """What it is said to cost, as a share of the step."""
    candidates: tuple[int, ...] = ()
    """Ranks among which it says that the culprit is, where it accuses none."""


@dataclass(frozen=True)
class Outcome:
    """One job: its truth and what was said of it."""

    label: str
    layout: str
    ranks_count: int
    seed: int
    truth: dict[str, Any]
    verdict: str
    named: tuple[Named, ...]
    error: str | None = None

    @property
    def cost_ratio(self) -> float:
        """What the faults cost, as a share of the step; 1 for a job that hangs.

        Of the steady steps, where the truth tells them: a first step that the profiler slows, or
        that compiles, is no measure of any other.
        """
        measured = self.truth["measured"]
        if measured.get("is_hung"):
            return 1.0
        steady = "steady_" if measured.get("steady_step_s_with_fault") else ""
        slow = measured.get(f"{steady}step_s_with_fault")
        fast = measured.get(f"{steady}step_s_without_fault")
        return (slow - fast) / slow if slow and fast else 0.0

    @property
    def top(self) -> Named | None:
        """The finding that the verdict names."""
        return next((n for n in self.named if n.is_top), None)


def is_right_rule(named: Named, fault: dict[str, Any]) -> bool:
    """Whether a finding names the fault's cause."""
    return named.rule in (*fault["expected_rules"], *fault["allowed_rules"])


def is_right_place(named: Named, fault: dict[str, Any], truth: dict[str, Any]) -> bool:
    """Whether a finding accuses the culprit and nobody else.

    Naming more ranks than the culprits is wrong; of several culprits, naming some is right. A
    place that is the whole job may be named as all ranks or as none.
    """
    where = fault["where"]
    culprits = set(where["ranks"])
    if where["stages"]:
        culprits = _ranks_of_stages(where["stages"], truth)
    if culprits and len(culprits) < truth["world_size"]:
        if named.ranks:
            return set(named.ranks) <= culprits
        return bool(named.hosts) and set(named.hosts) <= set(where["hosts"])
    if where["hosts"] and named.hosts:
        return set(named.hosts) <= set(where["hosts"])
    return True


def is_narrowed(named: Named, fault: dict[str, Any], truth: dict[str, Any]) -> bool:
    """Whether a finding that accuses nobody holds the culprit among fewer than all ranks."""
    culprits, held = set(fault["where"]["ranks"]), set(named.candidates)
    is_open = not named.ranks and not named.hosts and len(held) < truth["world_size"]
    return is_open and bool(culprits) and culprits <= held


def _ranks_of_stages(stages: Sequence[int], truth: dict[str, Any]) -> set[int]:
    per_stage = truth["world_size"] // truth["layout"]["pp"]
    return {r for r in range(truth["world_size"]) if r // per_stage in stages}


@dataclass
class RuleScore:
    """Precision and recall of one rule."""

    right: int = 0
    wrong: int = 0
    found: int = 0
    due: int = 0

    @property
    def precision(self) -> float | None:
        """Of what it reported (minor or more), the share that was right."""
        total = self.right + self.wrong
        return self.right / total if total else None

    @property
    def recall(self) -> float | None:
        """Of what it had to report, the share that it did."""
        return self.found / self.due if self.due else None


@dataclass
class Scores:
    """All figures of a set of outcomes."""

    jobs: int = 0
    single: int = 0
    """Jobs with one fault, of a built rule, that costs enough."""
    cause_right: int = 0
    culprit_right: int = 0
    healthy: int = 0
    healthy_major: int = 0
    pairs: int = 0
    pairs_both: int = 0
    decoys_named: int = 0
    errors: int = 0
    rules: dict[str, RuleScore] = field(default_factory=lambda: defaultdict(RuleScore))
    levels: dict[tuple[str, str], list[int]] = field(
        default_factory=lambda: defaultdict(lambda: [0, 0])
    )
    """(rule, confidence) -> right, all."""
    confusion: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    missed: list[str] = field(default_factory=list)

    @property
    def top1(self) -> float | None:
        """Share of single-fault jobs whose cause and culprit were both named first."""
        return self.culprit_right / self.single if self.single else None

    @property
    def false_major(self) -> float | None:
        """Share of healthy jobs with a major finding."""
        return self.healthy_major / self.healthy if self.healthy else None

    @property
    def both(self) -> float | None:
        """Share of two-fault jobs in which both were named."""
        return self.pairs_both / self.pairs if self.pairs else None


def score(outcomes: Iterable[Outcome], checkable: set[str]) -> Scores:
    """Figures over ``outcomes``; faults not in ``checkable`` only enter the matrix."""
    scores = Scores()
    for outcome in outcomes:
        scores.jobs += 1
        if outcome.error is not None:
            scores.errors += 1
            scores.missed.append(
                f"{outcome.label} {outcome.layout} seed {outcome.seed}: {outcome.error}"
            )
        top = outcome.top
        said = top.rule if top is not None else f"({outcome.verdict})"
        scores.confusion[outcome.label][said] += 1
        _rules(scores, outcome, checkable)
        faults = outcome.truth["faults"]
        if not faults:
            scores.healthy += 1
            bad = [n for n in outcome.named if n.severity in MAJOR]
            if bad:
                scores.healthy_major += 1
                scores.missed.append(_story(outcome, f"healthy, but {bad[0].rule} is major"))
        elif not all(f["fault"] in checkable for f in faults):
            continue
        elif len(faults) == 1:
            _single(scores, outcome)
        else:
            _pair(scores, outcome)
    return scores


def _single(scores: Scores, outcome: Outcome) -> None:
    if outcome.cost_ratio < MIN_COST_RATIO:
        return
    fault, top = outcome.truth["faults"][0], outcome.top
    scores.single += 1
    is_cause = top is not None and is_right_rule(top, fault)
    is_culprit = is_cause and top is not None and is_right_place(top, fault, outcome.truth)
    scores.cause_right += is_cause
    scores.culprit_right += is_culprit
    if not is_culprit:
        said = f"{top.rule} at {top.ranks or top.hosts}" if top else outcome.verdict
        scores.missed.append(_story(outcome, f"said {said}"))


def _pair(scores: Scores, outcome: Outcome) -> None:
    scores.pairs += 1
    found = [
        any(is_right_rule(n, f) and is_right_place(n, f, outcome.truth) for n in outcome.named)
        for f in outcome.truth["faults"]
    ]
    scores.pairs_both += all(found)
    if not all(found):
        missing = [
            f["fault"] for f, ok in zip(outcome.truth["faults"], found, strict=True) if not ok
        ]
        scores.missed.append(_story(outcome, f"did not name {', '.join(missing)}"))


def _rules(scores: Scores, outcome: Outcome, checkable: set[str]) -> None:
    faults = outcome.truth["faults"]
    inherent = set(outcome.truth.get("inherent_rules", ()))
    for decoy in outcome.truth["decoys"]:
        forbidden = set(decoy.get("forbidden_rules", ()))
        place = set(decoy["where"]["ranks"])
        scores.decoys_named += any(
            n.rule in forbidden
            and (not place or place & set(n.ranks))
            # What a fault causes is no decoy taken for one.
            and not any(is_right_rule(n, f) or n.rule in f["symptom_rules"] for f in faults)
            for n in outcome.named
        )
    for named in outcome.named:
        if named.severity == "note" or named.is_symptom:
            continue
        if any(
            is_right_rule(named, f)
            and (is_right_place(named, f, outcome.truth) or is_narrowed(named, f, outcome.truth))
            for f in faults
        ):
            is_right = True
        elif named.rule in inherent or _is_symptom(named, outcome):
            continue
        else:
            is_right = False
        rule = scores.rules[named.rule]
        rule.right += is_right
        rule.wrong += not is_right
        level = scores.levels[named.rule, named.confidence]
        level[0] += is_right
        level[1] += 1
    for fault in faults:
        # What strikes before the first step costs no step anything and is due all the same.
        is_worth_it = outcome.cost_ratio >= MIN_COST_RATIO or fault["fault"] in AT_START
        if fault["fault"] not in checkable or not is_worth_it:
            continue
        seen = {n.rule for n in outcome.named if is_right_place(n, fault, outcome.truth)}
        hit = seen & set(fault["expected_rules"])
        # One of them must be reported: whichever was leaves nothing for the others to find.
        for name in hit or fault["expected_rules"]:
            scores.rules[name].due += 1
            scores.rules[name].found += name in hit


def _is_symptom(named: Named, outcome: Outcome) -> bool:
    """Whether a finding says what a fault causes, and accuses nobody else of it."""
    return any(
        named.rule in f["symptom_rules"]
        and (not named.ranks or is_right_place(named, f, outcome.truth))
        for f in outcome.truth["faults"]
    )


def _story(outcome: Outcome, what: str) -> str:
    return (
        f"{outcome.label} ({outcome.cost_ratio:.0%} of the step), {outcome.layout}, "
        f"{outcome.ranks_count} ranks, seed {outcome.seed}: {what}"
    )

"""The sentence that a comparison leads with."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.comparison.model import (
    Change,
    Contribution,
    NotCompared,
    Side,
    StepChange,
    Verdict,
    are_single,
)
from tracekit.rules.steps import SAME_RATIO
from tracekit.wording import listed, plural, seconds, share, short, some_ranges

MAX_NAMED = 2
"""Contributions that the sentence names."""
MIN_NAMED_RATIO = 0.1
"""Share of the difference from which a contribution is named."""
MIN_CAUSE_RATIO = 0.5
"""Share of a difference from which a contribution is its cause: of recorded faults the largest has
more than half. A machine that is busier makes a bit of everything slower."""

MIN_TOLD_S = 0.5e-9
"""Times are whole nanoseconds; less than half of one is what sums of floats leave."""

_DOES = {
    "compute": ("computes", "compute"),
    "copies": ("copies", "copy"),
    "communication": ("communicates", "communicate"),
    "idle": ("stands idle", "stand idle"),
    "input": ("waits for input", "wait for input"),
    "checkpoint": ("saves a checkpoint", "save a checkpoint"),
    "evaluation": ("evaluates", "evaluate"),
    "logging": ("logs", "log"),
    "collection": ("collects garbage", "collect garbage"),
    "compilation": ("compiles", "compile"),
}


def subject(part: Contribution) -> str:
    """Whose contribution it is: ``rank 3``, ``ranks 0-3``, ``all ranks``."""
    if not part.ranks:
        return "all ranks"
    return ("rank " if len(part.ranks) == 1 else "ranks ") + some_ranges(part.ranks, 2)


def deed(part: Contribution) -> str:
    """What it is: ``rank 3 waits for input in dataloader``."""
    more = part.difference.difference_s > 0
    if part.cause == "transfer":
        whose = f", by {subject(part)}" if part.ranks else ""
        return f"{'slower' if more else 'faster'} transfer of {part.operation or 'messages'}{whose}"
    if part.cause == "unexplained":
        return "unexplained"
    if part.cause == "step":
        return f"the steps themselves take {'longer' if more else 'less'}"
    if part.cause == "between":
        return f"{'more' if more else 'less'} between steps (saves, evaluations, stalls)"
    text = f"{subject(part)} {_DOES[part.cause][len(part.ranks) != 1]}"
    if part.cause in ("compute", "copies"):
        text += " longer" if more else " shorter"
        return text + (f", most in {short(part.detail)}" if part.detail else "")
    if not more:
        text += " less"
    if part.detail and part.cause == "idle":
        what, is_in, path = part.detail.rpartition(" in ")  # ranges in ranges have long names
        text += f" {what} in {short(path)}" if is_in else f" {part.detail}"
    elif part.detail:
        text += f" in {part.detail}"
    return text


def verdict(
    change: StepChange | None,
    contributions: Sequence[Contribution],
    sides: tuple[Side, Side],
    not_compared: Sequence[NotCompared],
) -> Verdict:
    """What changed, in a sentence."""
    if change is None:
        lacking = [
            name
            for name, side in zip(("baseline", "candidate"), sides, strict=True)
            if not side.steps_count
        ]
        return Verdict(
            change="not comparable",
            sentence=f"No step time to compare: the {listed(lacking)} "
            f"{'has' if len(lacking) == 1 else 'have'} no steady step.",
        )
    if not change.is_significant:
        sentence = _unchanged(change, sides) + _suspected(change, contributions, sides)
        return Verdict(change="no significant change", sentence=sentence)
    word: Change = "slower" if change.difference_s > 0 else "faster"
    less = "more" if change.difference_s > 0 else "less"
    apart_s = seconds(abs(change.difference_s))
    sentence = f"{share(abs(change.ratio))} {word}: {apart_s} of each step {less}"
    named = _named(change, contributions)
    if named:
        sentence += ", of which " + "; ".join(
            f"{seconds(abs(c.difference.difference_s))}: {deed(c)}" for c in named
        )
    return Verdict(change=word, sentence=f"{sentence}.{_spread(change, named, sides)}")


def _spread(change: StepChange, named: Sequence[Contribution], sides: tuple[Side, Side]) -> str:
    """What a difference in a bit of everything may be, where nothing shows what runs differ by."""
    largest_s = max((abs(c.difference.difference_s) for c in named), default=0.0)
    if not are_single(*sides) or largest_s >= MIN_CAUSE_RATIO * abs(change.difference_s):
        return ""
    return " No cause makes half of it, as on a busier machine: compare several runs of each side."


def _named(change: StepChange, contributions: Sequence[Contribution]) -> list[Contribution]:
    """What makes most of a difference."""
    return [
        c
        for c in contributions
        if c.difference.difference_s * change.difference_s > 0
        and abs(c.difference.difference_s) >= MIN_NAMED_RATIO * abs(change.difference_s)
    ][:MAX_NAMED]


def _suspected(
    change: StepChange, contributions: Sequence[Contribution], sides: tuple[Side, Side]
) -> str:
    """What a large difference is made of that so few steps do not prove."""
    named = _named(change, contributions)[:1]
    if not named or abs(change.ratio) < MIN_NAMED_RATIO:
        return ""
    part = named[0]
    steps = ""
    if part.affected_steps_count is not None:
        side = sides[1] if part.difference.difference_s > 0 else sides[0]
        steps = f" in {part.affected_steps_count} of {plural(side.steps_count, 'step')}"
    return f" Most of it is that {deed(part)}{steps}: compare more steps."


def _unchanged(change: StepChange, sides: tuple[Side, Side]) -> str:
    base_s, other_s = sides[0].mean_s or 0.0, sides[1].mean_s or 0.0
    steps = f"{seconds(base_s)} and {seconds(other_s)} a step"
    if change.low_s is None or change.high_s is None:
        return (
            f"No significant change can be shown: {steps}, and too few steps "
            f"({sides[0].steps_count} and {sides[1].steps_count}) to say how sure that is."
        )
    if abs(change.difference_s) < MIN_TOLD_S:
        return f"No change: {seconds(base_s)} a step on both sides."
    bounds = f"{signed(change.low_s)} to {signed(change.high_s)}"
    if change.low_s <= 0 <= change.high_s:
        why = f"the difference of {seconds(abs(change.difference_s))} may be chance ({bounds})"
    else:
        why = f"the difference of {seconds(abs(change.difference_s))} is under {share(SAME_RATIO)}"
    return f"No significant change: {steps}; {why}."


def signed(value_s: float) -> str:
    """A duration with its sign: +3.20 ms."""
    return f"{'-' if value_s < 0 else '+'}{seconds(abs(value_s))}"


def steps_words(side: Side) -> str:
    """``12 steps``; of several runs ``24 steps of 2 runs``."""
    of = f" of {plural(len(side.runs), 'run')}" if len(side.runs) > 1 else ""
    return plural(side.steps_count, "step") + of

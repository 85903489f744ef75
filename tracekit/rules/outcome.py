"""What a rule may answer: findings, and what it could not check, in words that rules share."""

from __future__ import annotations

from msgspec import Struct

from tracekit.findings import Finding, NotChecked


class RuleOutcome(Struct, frozen=True):
    """What a rule says. Both empty: it looked and there is nothing, or its question has no
    meaning here."""

    findings: tuple[Finding, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    is_applicable: bool = True
    """False: the question has no meaning for this job (one rank cannot be late), so the rule has
    looked at nothing and lacks nothing."""


UNPROVED = "files in a format that no real sample proved"
"""Name of the evidence against a finding that rests on such files: it stays a note."""
HIDDEN = "the kernels inside CUDA graphs (recorded as whole graphs)"
"""The need of rules that must see kernels, where graphs hide them."""
HIDDEN_CAPTURE = "nsys profile --cuda-graph-trace=node"
LOST = "the kernels that the profiler lost on some ranks (launches without one)"
"""The need of rules that must see kernels, where too many ranks' are gone."""
LOST_CAPTURE = "profile again, a shorter window or fewer activities, so that no buffer overflows"
NO_GPU = (
    "a GPU timeline (these ranks show none)",
    "if the job runs on GPUs, profile with activities CPU and CUDA",
)
"""The need of rules that only a GPU's timeline can answer, and what supplies it."""
PROFILE = "profile with activities CPU and, on GPUs, CUDA"
"""What supplies ranges, calls and communication of any job."""
NO_STEPS = ("at least one steady step", "profile five or more steps after warm-up")
"""The need of rules that judge steps, and what supplies it."""
NOT_APPLICABLE = RuleOutcome(is_applicable=False)


def lacking(rule: str, needs: str, capture: str | None = None) -> RuleOutcome:
    """The outcome of a rule that lacks its inputs."""
    return RuleOutcome(not_checked=(NotChecked(rule=rule, needs=needs, capture=capture),))

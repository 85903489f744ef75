"""
What it means
    The model is compiled again in the middle of the run: a shape, a type or a Python value is not
    what the compiled code was made for.

How it shows
    Ranges of torch.compile (``dynamo_timed``, which newer versions record as operators) on the
    thread that runs the steps, in steady steps, with the GPU idle meanwhile. The first steps, where
    everything is compiled once, are left out.

Why it hurts
    A compilation takes seconds; all ranks wait for the one that compiles. After
    ``recompile_limit`` variants the code runs uncompiled, and slowly, for good.

Remedy
    ``TORCH_LOGS=recompiles`` names the guard that failed. Pad sequences to a few lengths,
    ``torch._dynamo.mark_dynamic`` for sizes that vary, keep Python numbers that change out of the
    compiled code; keep the cache (``TORCHINDUCTOR_CACHE_DIR``) on a disk that survives restarts.

When this is wrong
    A window that begins with the job holds the first compilations: where no step is marked as
    warm-up they look the same, and the finding says which steps it means. An evaluation inside the
    window compiles its own variant once. Triton kernels that tune themselves without
    torch.compile leave no such range.

Source
    Diagnosis D14 and D15.
"""

from __future__ import annotations

from tracekit.rules.base import PROFILE, Facts, Rule, RuleOutcome
from tracekit.rules.stalls import StallSummary, StallText, StallThresholds, evaluate_stalls


def _says(stall: StallSummary) -> str:
    verb = "compiles" if stall.subject.startswith("Rank ") else "compile"
    return (
        f"{stall.subject} {verb} the model again {stall.often}, for "
        f"{stall.lasts} with nothing else running, and the job waits."
    )


TEXT = StallText(
    query="compile_stall",
    says=_says,
    noun="compilation",
    needs="compilations recorded in a trace (torch.compile's own ranges)",
    capture=PROFILE,
    confirm=("TORCH_LOGS=recompiles for 50 steps: it names each guard that failed",),
    remedy=(
        "pad inputs to a few lengths, or mark the sizes that vary as dynamic",
        "keep Python numbers that change from step to step out of compiled code",
    ),
)


def evaluate(facts: Facts, limits: StallThresholds) -> RuleOutcome:
    """The ranks whose compilations delay the job."""
    return evaluate_stalls(facts, limits, TEXT)


RULE = Rule(
    name="recompile",
    summary="The model is compiled again in the middle of the run.",
    owner="model",
    thresholds=StallThresholds(),
    queries=("step_breakdown", TEXT.query),
    evaluate=evaluate,
    needs=TEXT.needs,
    explains=("waiting", "lateness"),
)

"""traffic-mismatch: what a layout does not need, and nothing on the strength of a guess."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tracekit import traffic
from tracekit.findings import Severity
from tracekit.job import JobDescription, parse_job
from tracekit.rules import rule
from tracekit.rules.base import Facts, RuleOutcome

MakeJob = Callable[..., Any]
RULE = rule("traffic-mismatch")
JOB = """
[parallelism]
tp = 2
dp = 2
zero_stage = 0
[schedule]
microbatches = 4
[model]
layers = 1
hidden = 1024
heads = 16
sequence = 2048
parameters = 50_000_000
dtype = "bfloat16"
[batch]
micro = 1
[hardware]
gpus_per_node = 2
nvlink_domain = 2
nvlink_bytes_per_s = 400e9
nic_bytes_per_s = 50e9
"""
TENSOR = 4 * 1 * 4 * 2048 * 1024 * 2.0
"""Bytes of the activations: 2 (t-1)/t = 1 of each message."""
GRADIENTS = 50_000_000 / 2 * 2.0


def row(kind: str | None, op: str, sent: float | None, **more: Any) -> dict[str, Any]:
    given = {"group_kind": kind, "op": op, "calls_per_step": 1.0, "bytes_per_step": sent}
    size = {"group_size": 2, "hosts_count": 1, "dtype": "BFloat16", "largest_bytes": 1}
    expected = {"expected_bytes": None, "basis": None}
    return {**given, **size, **expected, "attempt": 1, "ranks_count": 4, **more}


def healthy() -> list[dict[str, Any]]:
    return [row("tp", "all_reduce", TENSOR), row("dp", "all_reduce", GRADIENTS)]


def facts(
    make_job: MakeJob,
    *rows: dict[str, Any],
    text: str = JOB,
    comm_ms: int = 40,
    shares: dict[str, int] | None = None,
    measured_on: str = "gpu",
    **job: Any,
) -> Facts:
    """Every rank exposes 40 of its 100 ms, all of it in all-reduces unless said."""
    made = make_job(comm_ms=comm_ms, measured_on=measured_on)
    description = parse_job(text.encode(), "/data/job.toml") if text else None
    made.rows["traffic"] = traffic.beside(list(rows), description)
    made.rows["exposed_comm_by_op"] = [
        {"rank": rank, "op": op, "exposed_comm_ns": ns}
        for rank in range(4)
        for op, ns in (shares or {"all_reduce": 100}).items()
    ]
    found: Facts = made.facts(**job)
    return replace(found, description=description)


def test_what_the_layout_needs_is_no_finding(make_job: MakeJob) -> None:
    assert RULE.run(facts(make_job, *healthy())) == RuleOutcome()


def test_gradients_in_32_bits_are_said_with_what_they_cost(make_job: MakeJob) -> None:
    wide = row("dp", "all_reduce", 2 * GRADIENTS, dtype="Float")
    (finding,) = RULE.run(facts(make_job, healthy()[0], wide)).findings
    assert finding.id == "traffic-mismatch/dp-oversized"
    assert "2.00x): its elements are Float" in finding.summary
    part = 2 * GRADIENTS / (2 * GRADIENTS + TENSOR)
    assert finding.impact.s_per_step == pytest.approx(0.040 * part / 2)
    assert finding.severity is Severity.MAJOR
    assert "reduce_dtype" in finding.remedy[0]


def test_a_reduction_every_microbatch_is_known_by_its_calls(make_job: MakeJob) -> None:
    often = row("dp", "all_reduce", 4 * GRADIENTS, calls_per_step=4.0)
    (finding,) = RULE.run(facts(make_job, healthy()[0], often)).findings
    assert "no_sync()" in finding.remedy[0]


@pytest.mark.parametrize(("ratio", "is_said"), [(1.25, True), (1.24, False)])
def test_a_quarter_more_than_any_implementation(
    make_job: MakeJob, ratio: float, is_said: bool
) -> None:
    dp = row("dp", "all_reduce", ratio * GRADIENTS)
    assert bool(RULE.run(facts(make_job, healthy()[0], dp)).findings) is is_said


def test_recomputation_is_one_way_to_implement_it(make_job: MakeJob) -> None:
    tp = row("tp", "all_reduce", 1.5 * TENSOR)
    assert RULE.run(facts(make_job, tp, healthy()[1])) == RuleOutcome()


def test_an_excess_that_is_small_beside_the_rest_is_not_said(make_job: MakeJob) -> None:
    big = [row("tp", "all_reduce", TENSOR), row("dp", "all_reduce", 1.3 * GRADIENTS)]
    assert RULE.run(facts(make_job, *big)).findings
    text = JOB.replace("layers = 1", "layers = 10")
    big[0] = row("tp", "all_reduce", 10 * TENSOR)
    assert RULE.run(facts(make_job, *big, text=text)) == RuleOutcome()


def test_hidden_traffic_costs_nothing_and_is_a_note(make_job: MakeJob) -> None:
    wide = row("dp", "all_reduce", 2 * GRADIENTS)
    (finding,) = RULE.run(facts(make_job, healthy()[0], wide, comm_ms=0)).findings
    assert finding.severity is Severity.NOTE
    assert finding.impact.s_per_step is None


def test_on_an_assumed_field_nothing_is_accused_and_the_field_is_named(make_job: MakeJob) -> None:
    text = JOB.replace('dtype = "bfloat16"', "")
    wide = row("dp", "all_reduce", 2 * GRADIENTS, dtype="Float")
    (finding,) = RULE.run(facts(make_job, healthy()[0], wide, text=text)).findings
    assert finding.severity is Severity.NOTE
    assert finding.impact.s_per_step is None
    assert "Give model.dtype in the job description to settle it" in finding.summary


def test_operations_that_the_layout_has_no_use_for(make_job: MakeJob) -> None:
    rows = [*healthy(), row("pp", "send", GRADIENTS)]
    text = JOB.replace("dp = 2", "dp = 2\npp = 1")
    (finding,) = RULE.run(facts(make_job, *rows, text=text)).findings
    assert finding.id == "traffic-mismatch/pp-extra"
    assert "the job description says pp = 1" in finding.summary
    # Where pp is not given, that is what would settle it.
    (open_,) = RULE.run(facts(make_job, *rows)).findings
    assert "Give parallelism.pp" in open_.summary
    small = [*healthy(), row("pp", "send", 0.04 * (GRADIENTS + TENSOR))]
    assert RULE.run(facts(make_job, *small, text=text)) == RuleOutcome()


def test_one_communicator_may_be_two_families(make_job: MakeJob) -> None:
    """Experts over all replicas: the gradients' all-reduce runs on the experts' group."""
    tensor, gradients = healthy()
    instead = row("ep", "all_reduce", GRADIENTS, group_size=2)
    unseen = {**gradients, "calls_per_step": 0.0, "bytes_per_step": 0.0, "expected_bytes": None}
    text = JOB.replace("dp = 2", "dp = 2\nep = 2")
    assert RULE.run(facts(make_job, tensor, instead, unseen, text=text)) == RuleOutcome()
    (finding,) = RULE.run(facts(make_job, tensor, gradients, instead, text=text)).findings
    assert finding.id == "traffic-mismatch/ep-extra"


@pytest.mark.parametrize("kind", [None, "world"])
def test_groups_without_a_known_purpose_accuse_nobody(make_job: MakeJob, kind: str | None) -> None:
    rows = [*healthy(), row(kind, "all_gather", GRADIENTS, group_size=4)]
    assert RULE.run(facts(make_job, *rows)) == RuleOutcome()


def test_broadcasts_are_used_beside_every_layout(make_job: MakeJob) -> None:
    rows = [*healthy(), row("dp", "broadcast", GRADIENTS)]
    assert RULE.run(facts(make_job, *rows)) == RuleOutcome()


def test_what_is_missing_is_a_contradiction_not_a_cost(make_job: MakeJob) -> None:
    (finding,) = RULE.run(facts(make_job, healthy()[0])).findings
    assert finding.id == "traffic-mismatch/dp-missing"
    assert finding.severity is Severity.NOTE
    assert "no dp all-reduce" in finding.summary


def test_nothing_is_missing_where_it_may_be_elsewhere(make_job: MakeJob) -> None:
    unknown = row(None, "all_reduce", GRADIENTS, group_size=4)
    assert RULE.run(facts(make_job, healthy()[0], unknown)) == RuleOutcome()
    assert RULE.run(facts(make_job, healthy()[0], world_size=8)) == RuleOutcome()


def test_a_zero_stage_that_the_traces_contradict(make_job: MakeJob) -> None:
    halves = [row("dp", op, GRADIENTS / 2) for op in ("all_gather", "reduce_scatter")]
    found = RULE.run(facts(make_job, healthy()[0], *halves)).findings
    assert {f.id for f in found} == {"traffic-mismatch/dp-extra", "traffic-mismatch/dp-missing"}
    assert any("all-gather and reduce-scatter is there instead" in f.summary for f in found)
    assert all(f.severity is Severity.NOTE for f in found)
    # A stage that is not given is no statement to contradict.
    text = JOB.replace("zero_stage = 0", "")
    assert RULE.run(facts(make_job, healthy()[0], *halves, text=text)) == RuleOutcome()


SHARDED = JOB.replace("tp = 2\ndp = 2\nzero_stage = 0", "dp = 4\nzero_stage = 3")


def hsdp(size: int = 2, op: str = "all_reduce") -> list[dict[str, Any]]:
    """A job of shards whose data-parallel groups are not told apart."""
    shards = [row(None, o, GRADIENTS / 2) for o in ("all_gather", "reduce_scatter")]
    return [*shards, row("dp", op, GRADIENTS / 2, group_size=size)]


@pytest.mark.parametrize("replicas", ["", "\ndp_replicate = 2"], ids=["not given", "given"])
def test_replicas_of_shards_reduce_whatever_the_stage(make_job: MakeJob, replicas: str) -> None:
    text = SHARDED.replace("dp = 4", f"dp = 4{replicas}")
    assert not RULE.run(facts(make_job, *hsdp(), text=text)).findings


@pytest.mark.parametrize(("backend", "is_said"), [("gloo", False), ("nccl", True), ("", True)])
def test_gloo_reduces_all_where_shards_scatter(
    make_job: MakeJob, backend: str, is_said: bool
) -> None:
    """As PyTorch records it of fully_shard over gloo: gathers, and all-reduces for the rest."""
    rows = [row("dp", op, GRADIENTS, group_size=4) for op in ("all_gather", "all_reduce")]
    text = f'backend = "{backend}"\n{SHARDED}' if backend else SHARDED
    found = RULE.run(facts(make_job, *rows, text=text)).findings
    said = {"traffic-mismatch/dp-extra", "traffic-mismatch/dp-missing"}
    assert {f.id for f in found} == (said if is_said else set())


@pytest.mark.parametrize(
    ("replicas", "size", "op"),
    [
        ("", 4, "all_reduce"),  # all of dp: nobody is a replica
        ("", 3, "all_reduce"),  # no part that divides it
        ("\ndp_replicate = 1", 2, "all_reduce"),
        ("\ndp_replicate = 4", 2, "all_reduce"),
        ("", 2, "all_to_all"),  # no reduction
    ],
)
def test_what_no_replicas_would_send_is_extra(
    make_job: MakeJob, replicas: str, size: int, op: str
) -> None:
    text = SHARDED.replace("dp = 4", f"dp = 4{replicas}")
    found = RULE.run(facts(make_job, *hsdp(size, op), text=text)).findings
    assert "traffic-mismatch/dp-extra" in {f.id for f in found}


def test_groups_of_another_size_than_said(make_job: MakeJob) -> None:
    rows = [row("tp", "all_reduce", 2 * TENSOR, group_size=4), healthy()[1]]
    (finding,) = RULE.run(facts(make_job, *rows)).findings
    assert finding.id == "traffic-mismatch/tp-contradicted"
    assert "says tp = 2; the traces show tp groups of 4 ranks" in finding.summary


def spread(**more: Any) -> list[dict[str, Any]]:
    return [row("tp", "all_reduce", TENSOR, hosts_count=2, **more), healthy()[1]]


def test_a_family_that_crosses_hosts_though_it_fits_one(make_job: MakeJob) -> None:
    (finding,) = RULE.run(facts(make_job, *spread())).findings
    assert finding.id == "traffic-mismatch/tp-misplaced"
    part = TENSOR / (TENSOR + GRADIENTS)
    assert finding.impact.s_per_step == pytest.approx(0.040 * part * (1 - 50 / 400))


@pytest.mark.parametrize(
    ("text", "job"),
    [
        (JOB, {"hosts": {r: f"pod{r}" for r in range(4)}}),  # one-GPU pods
        (JOB.replace("gpus_per_node = 2", ""), {}),
        (JOB.replace("nvlink_domain = 2", "nvlink_domain = 72"), {}),  # a rack of NVLink
    ],
    ids=["pods", "unknown", "rack"],
)
def test_hosts_that_are_no_separate_machines(
    make_job: MakeJob, text: str, job: dict[str, Any]
) -> None:
    assert RULE.run(facts(make_job, *spread(), text=text, **job)) == RuleOutcome()


def test_nccl_s_own_count_of_hosts_comes_first(make_job: MakeJob) -> None:
    found = facts(make_job, *spread())
    rows = {**found.rows, "nccl_groups": [{"kind": "tp"}]}
    assert RULE.run(replace(found, rows=rows)) == RuleOutcome()


def test_without_a_description_or_its_model_it_says_what_it_needs(make_job: MakeJob) -> None:
    outcome = RULE.run(facts(make_job, *healthy(), text=""))
    assert "job description" in outcome.not_checked[0].needs
    outcome = RULE.run(facts(make_job, *healthy(), text="[parallelism]\ntp = 2\ndp = 2\n"))
    assert not outcome.findings
    assert "model.layers" in outcome.not_checked[0].needs
    assert RULE.run(facts(make_job)).not_checked[0].needs == "collectives in steady steps"


def rounds(count: int = 4, **more: Any) -> list[dict[str, Any]]:
    """What each rank reduces to one update: 2 calls after each of ``count`` forward passes."""
    given: dict[str, Any] = {"rounds_count": count, "calls_count": 2, "source_id": 0, "place": 9}
    given |= {"updates_count": 11, "steps_count": 11, "attempt": 1}
    given |= {"wrapper": "DistributedDataParallel"}
    given |= {"least_calls_ratio": 1.0, "least_bytes_ratio": 1.0, "copies_ns": None}
    return [{"rank": rank, **given, **more} for rank in range(4)]


def reducing(make_job: MakeJob, *of_rounds: dict[str, Any], **given: Any) -> RuleOutcome:
    """The rule without a job description, of a job that sends tensors and gradients."""
    found = facts(make_job, *healthy(), **{"text": "", **given})
    whole = {**found.rows, "gradient_rounds": list(of_rounds)}
    return RULE.run(replace(found, rows=whole))


def test_gradients_reduced_after_each_of_several_passes_need_no_description(
    make_job: MakeJob,
) -> None:
    (found,) = reducing(make_job, *rounds()).findings
    assert found.summary.startswith("Gradients are reduced after each of 4 forward passes of ")
    # 40 ms are exposed, and gradients are 50 of 66.8 MB: three rounds of four.
    part = GRADIENTS / (GRADIENTS + TENSOR)
    assert found.impact.s_per_step == pytest.approx(0.040 * part * 3 / 4)
    assert found.impact.high_s_per_step == pytest.approx(0.040 * part)
    assert "no_sync()" in found.remedy[0]
    assert found.evidence[0].query == "gradient_rounds"
    assert found.evidence[0].rows
    assert "copies" not in found.summary
    (copied,) = reducing(make_job, *rounds(copies_ns=8e6)).findings  # of each of ten updates
    assert copied.impact.s_per_step == pytest.approx((0.040 * part + 0.008) * 3 / 4)
    assert "copies of gradients among them" in copied.summary
    sizeless = [{**r, "bytes_per_step": None} for r in healthy()]
    sizeless[1]["calls_per_step"] = 3.0
    made = facts(make_job, *sizeless, text="")
    whole = {**made.rows, "gradient_rounds": rounds()}
    (found,) = RULE.run(replace(made, rows=whole)).findings
    assert found.impact.s_per_step == pytest.approx(0.040 * 3 / 4 * 3 / 4)  # by calls


@pytest.mark.parametrize(
    "of_rounds",
    [
        [],
        rounds(1),
        rounds(
            least_bytes_ratio=0.89
        ),  # of another model, or a loss in all rounds and gradients in one
        rounds(least_calls_ratio=0.49, least_bytes_ratio=None),
        rounds(updates_count=2, steps_count=2),
        rounds(steps_count=22),  # two optimizers
        rounds()[:3],  # one rank is not seen
        [*rounds()[:3], *rounds(1)[3:]],
        [*rounds()[:3], *rounds(least_bytes_ratio=0.0)[3:]],
    ],
    ids=[
        "none",
        "one",
        "bytes",
        "calls",
        "few",
        "optimizers",
        "a rank less",
        "a rank with one",
        "a rank without",
    ],
)
def test_who_may_reduce_once_is_not_accused(
    make_job: MakeJob, of_rounds: list[dict[str, Any]]
) -> None:
    outcome = reducing(make_job, *of_rounds)
    assert not outcome.findings
    assert "job description" in outcome.not_checked[0].needs


def test_just_as_many_updates_and_as_even_rounds_as_it_takes(make_job: MakeJob) -> None:
    few: dict[str, Any] = {"updates_count": 3, "steps_count": 3}
    assert reducing(make_job, *rounds(2, least_bytes_ratio=0.9, **few)).findings
    unsized: dict[str, Any] = {"least_calls_ratio": 0.5, "least_bytes_ratio": None}
    assert reducing(make_job, *rounds(2, **few, **unsized)).findings


@pytest.mark.parametrize(("text", "is_told"), [(JOB, False), ("[parallelism]\ndp = 2\n", True)])
def test_where_a_description_says_how_many_bytes_sizes_are_compared_instead(
    make_job: MakeJob, text: str, is_told: bool
) -> None:
    assert bool(reducing(make_job, *rounds(), text=text).findings) is is_told


BUFFERS = row("dp", "broadcast", 24e6)


def sent(forwards: int = 12, **more: Any) -> list[dict[str, Any]]:
    """What each rank broadcasts in its forward passes."""
    given: dict[str, Any] = {
        "forwards_count": forwards,
        "calls_count": forwards,
        "sent_bytes": forwards * 24e6,
    }
    given["sent_ratio"] = 1.0
    return [
        {"rank": r, "source_id": r, "place": 9, "attempt": 1, **given, **more} for r in range(4)
    ]


def broadcasting(
    make_job: MakeJob, of_ranks: list[dict[str, Any]], *rows: dict[str, Any], text: str = ""
) -> RuleOutcome:
    shares = {"all_reduce": 30, "broadcast": 10}
    made = facts(make_job, *healthy(), *(rows or [BUFFERS]), text=text, shares=shares)
    return RULE.run(replace(made, rows={**made.rows, "buffer_broadcasts": of_ranks}))


def test_buffers_sent_before_each_forward_pass_need_no_description(make_job: MakeJob) -> None:
    (found,) = broadcasting(make_job, sent()).findings
    assert "broadcasts 24 MB of buffers before each forward pass, 17 % of all" in found.summary
    assert found.impact.s_per_step == pytest.approx(0.010)  # 10 of 40 ms that are exposed
    assert "broadcast_buffers=False" in found.remedy[0]
    assert found.evidence[0].query == "buffer_broadcasts"
    assert found.evidence[0].rows
    accumulated = broadcasting(make_job, sent(48, sent_bytes=12 * 24e6)).findings
    assert "broadcasts 6 MB of buffers before each" in accumulated[0].summary


def test_who_sends_buffers_waits_elsewhere(make_job: MakeJob) -> None:
    """Rank 0 is done when it has sent; the others wait 10, 12 and 16 of their 40 ms for it."""
    made = facts(make_job, *healthy(), BUFFERS, text="")
    exposed = [
        {"rank": rank, "op": op, "exposed_comm_ns": ns}
        for rank, ms in enumerate((2, 10, 12, 16))
        for op, ns in (("broadcast", ms), ("all_reduce", 40 - ms))
    ]
    rows = {**made.rows, "buffer_broadcasts": sent(), "exposed_comm_by_op": exposed}
    (found,) = RULE.run(replace(made, rows=rows)).findings
    assert found.impact.s_per_step == pytest.approx(0.012)
    assert found.impact.high_s_per_step == pytest.approx(0.016)


@pytest.mark.parametrize(
    ("of_ranks", "rows"),
    [
        (sent(), [row("dp", "broadcast", 6.1e6)]),  # 4.95 % of 123.2 MB
        (sent(sent_ratio=0.89), [BUFFERS]),
        (sent(sent_bytes=None, sent_ratio=None), [BUFFERS]),
        (sent()[:3], [BUFFERS]),
        ([], [BUFFERS]),
        (sent(), [row("tp", "broadcast", 24e6)]),
        (sent(), [BUFFERS, row(None, "broadcast", 24e6)]),
    ],
    ids=["small", "elsewhere", "unsized", "a rank less", "none", "inputs", "two families"],
)
def test_what_else_is_broadcast_is_not_told_as_buffers(
    make_job: MakeJob, of_ranks: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> None:
    assert not broadcasting(make_job, of_ranks, *rows).findings


def test_just_enough_buffers(make_job: MakeJob) -> None:
    assert broadcasting(make_job, sent(), row("dp", "broadcast", 6.2e6)).findings
    assert broadcasting(make_job, sent(sent_ratio=0.9)).findings
    assert broadcasting(make_job, sent(), text="[parallelism]\ndp = 2\n").findings


def test_unknown_bytes_accuse_nobody(make_job: MakeJob) -> None:
    rows = [row("tp", "all_reduce", None), row("dp", "all_reduce", None)]
    assert not RULE.run(facts(make_job, *rows)).findings


def test_descriptions_are_typed() -> None:
    assert isinstance(parse_job(JOB.encode(), "job.toml"), JobDescription)


def gathered(gathering: int = 10, **more: Any) -> list[dict[str, Any]]:
    """What each rank gathers again after its ten updates: a third of what it gives, in a fifth."""
    given: dict[str, Any] = {
        "updates_count": 10,
        "gathering_count": gathering,
        "calls_count": 20 * gathering,
        "given_bytes": gathering * 6e6,
        "given_ratio": 1 / 3,
        "spent_ratio": 0.2,
        "span_ns": 25e6,
    }
    return [
        {"rank": r, "source_id": r, "place": 9, "attempt": 1, **given, **more} for r in range(4)
    ]


SHARDS = row("dp", "all_gather", 18e6)


def gathering(
    make_job: MakeJob, of_ranks: list[dict[str, Any]], *rows: dict[str, Any], text: str = ""
) -> RuleOutcome:
    shares = {"all_reduce": 10, "all_gather": 30}
    made = facts(make_job, *healthy(), *(rows or [SHARDS]), text=text, shares=shares)
    return RULE.run(replace(made, rows={**made.rows, "shard_gathers": of_ranks}))


def test_shards_gathered_again_after_each_backward_pass_need_no_description(
    make_job: MakeJob,
) -> None:
    (found,) = gathering(make_job, gathered()).findings
    assert "6 MB of shards a rank are gathered again after each backward pass" in found.summary
    assert "33 % of all that is given to gathers" in found.summary
    # A fifth of 30 ms that are exposed; all of the 25 within which it is done, at most.
    assert found.impact.s_per_step == pytest.approx(0.2 * 0.030)
    assert found.impact.high_s_per_step == pytest.approx(0.025)
    assert "6.00 ms a step are not hidden" in found.summary
    assert "full_tensor()" in found.remedy[0]
    assert found.evidence[0].query == "shard_gathers"
    assert found.evidence[0].rows
    # The capture may cut one; just as many bytes and updates as it takes.
    assert gathering(make_job, gathered(9)).findings
    assert gathering(make_job, gathered(2, updates_count=3, given_ratio=0.05)).findings


def test_a_host_gathers_and_copies_one_after_another(make_job: MakeJob) -> None:
    shares = {"all_reduce": 10, "all_gather": 30}
    made = facts(make_job, *healthy(), SHARDS, text="", shares=shares, measured_on="host")
    (found,) = RULE.run(replace(made, rows={**made.rows, "shard_gathers": gathered()})).findings
    assert found.impact.s_per_step == pytest.approx(0.025)
    assert "25.0 ms a step go into it" in found.summary


@pytest.mark.parametrize(
    ("of_ranks", "rows"),
    [
        ([], [SHARDS]),
        (gathered()[:3], [SHARDS]),
        (gathered(8), [SHARDS]),  # every so many steps
        ([*gathered()[:3], *gathered(1)[3:]], [SHARDS]),
        (gathered(2, updates_count=2), [SHARDS]),
        (gathered(given_ratio=0.049), [SHARDS]),
        (gathered(given_bytes=None, given_ratio=None), [SHARDS]),
        (gathered(spent_ratio=None), [SHARDS]),
        (gathered(), [row("tp", "all_gather", 18e6)]),
    ],
    ids=["none", "a rank less", "rare", "a rank", "few", "small", "unsized", "no time", "inputs"],
)
def test_what_else_is_gathered_is_not_told(
    make_job: MakeJob, of_ranks: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> None:
    outcome = gathering(make_job, of_ranks, *rows)
    assert not outcome.findings
    assert "job description" in outcome.not_checked[0].needs


@pytest.mark.parametrize(
    ("wrapper", "remedy"),
    [
        ("FSDP2", "set_requires_gradient_sync(False)"),
        ("FullyShardedDataParallel", "no_sync()"),
    ],
)
def test_where_fsdp_reduces_after_each_pass_its_own_remedy_is_told(
    make_job: MakeJob, wrapper: str, remedy: str
) -> None:
    scattered = {**row("dp", "reduce_scatter", GRADIENTS)}
    made = facts(make_job, scattered, text="", shares={"reduce_scatter": 40})
    of_rounds = [{**r, "wrapper": wrapper} for r in rounds()]
    (found,) = RULE.run(replace(made, rows={**made.rows, "gradient_rounds": of_rounds})).findings
    assert f"forward passes of {wrapper}" in found.summary
    assert "has the memory to keep whole gradients" in found.summary
    assert remedy in found.remedy[0]
    assert "memory for whole gradients" in found.remedy[0]
    assert found.impact.s_per_step == pytest.approx(0.040 * 3 / 4)

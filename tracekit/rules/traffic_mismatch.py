"""
What it means
    The job does not send what its layout needs: more bytes, operations that the layout has no use
    for, none where there must be some, or through the network what should stay on NVLink.

How it shows
    Bytes that a rank sends in a steady step, by kind of group and operation, beside what follows
    from the job description. *Oversized*: 1.25 times the most that any known way to implement the
    layout sends. *Extra* and *missing*: 5 % of all bytes, in a family that the description rules
    out or demands. *Misplaced*: groups that fit an NVLink domain span several hosts. *Repeated*,
    where a description does not say how many bytes gradients have: on every rank, in three or more
    updates, each of several forward passes of DistributedDataParallel or FSDP to one step of one
    optimizer is followed by reductions of as many bytes as after the others, within a tenth, or,
    where sizes are not known, by half as many calls or more (query gradient_rounds). *Buffers*: 5 %
    of all bytes, and nearly all that is broadcast, is broadcast at the start of forward passes of
    DistributedDataParallel (query buffer_broadcasts). *Gathers*: on every rank, after the backward
    passes of three or more updates and of all but one, shards of FSDP2 are gathered again, outside
    its own ranges and the optimizer's step: 5 % of what is given to gathers over the same
    communicators (query shard_gathers).

Why it hurts
    Bytes take time where nothing hides them. Gradients reduced in 32 bits instead of 16 take
    twice the time; a reduction after every microbatch instead of every step takes it m times.

Remedy
    By what is oversized: reduce gradients in 16 bits, accumulate with ``no_sync()``, do not send
    buffers that no replica changes (``broadcast_buffers=False``), give each
    rank its order in the launcher so that tensor-parallel neighbours share a host. Where the
    description is wrong, correct it: everything else that is expected follows from it.

When this is wrong
    Where a field was not given, something was assumed: then this is a note that names the field.
    Models with layers of several kinds, heads of their own or frozen parts send other amounts than
    a plain transformer. Steps of an accumulation that end in no synchronisation look as if it were
    missing. Hosts are taken for machines only where each has as many ranks as a node has GPUs.
    A reduction after each round is needed where gradients of a round are used before the update,
    as some ways to clip or to measure noise do, or where two models of one size share an optimizer.
    Whole parameters are needed after each update where another program takes them over, as those
    that sample from a policy do.
    FSDP keeps whole gradients where it does not reduce them, and a job may lack that memory.
    Buffers that replicas change, such as running means, drift apart where they are not sent.
    Without a GPU reductions take time from computing, of which only copies of gradients are in the
    cost.

Source
    Diagnosis 3.8; ZeRO (2020) and Megatron-LM (2021, 2022) for what each layout sends.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from msgspec import Struct

from tracekit.findings import Evidence, Finding, Impact, Price, Scope, Severity
from tracekit.rules.base import Facts, Row, Rule, RuleOutcome
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import listed, safe, seconds, share

if TYPE_CHECKING:
    from tracekit.job import JobDescription

NEEDS = "the job's layout and model in a job description"
CAPTURE = "tracekit job RUN -o job.toml   then correct it and give it with --job"
ROUNDS = "gradient_rounds"
BUFFERS = "buffer_broadcasts"
GATHERS = "shard_gathers"
WHOLE_GRADIENTS = ", where each rank has the memory to keep whole gradients until then"
ACCUMULATING = {
    "DistributedDataParallel": ("", "accumulate with no_sync() in all but the last microbatch"),
    "FullyShardedDataParallel": (
        WHOLE_GRADIENTS,
        "accumulate with no_sync() in all but the last microbatch, where the memory for whole "
        "gradients is there",
    ),
    "FSDP2": (
        WHOLE_GRADIENTS,
        "set_requires_gradient_sync(False) in all but the last microbatch, where the memory for "
        "whole gradients is there",
    ),
}
"""By wrapper, as gradient_rounds calls it: what it takes to reduce once, and how."""
STATED = ("tp", "cp", "ep")
"""Families whose size the traces show without doubt: others share their groups or pair up."""
NEVER = ("broadcast", "barrier", "gather", "scatter", "reduce", "recv", "unknown")
"""Operations that frameworks use beside every layout."""


class TrafficMismatchThresholds(Thresholds):
    """When traffic is not what the layout needs."""

    min_oversize_ratio: float = threshold(
        1.25, "over the most that any known implementation sends; equal within 5 % is confirmed"
    )
    min_bytes_ratio: float = threshold(
        0.05, "of all bytes of a step: norms, losses and counters are far smaller"
    )
    min_double_ratio: float = threshold(
        1.8, "over what is expected, of bytes or calls: twice as many, less what is not counted"
    )
    max_double_ratio: float = threshold(2.2, "likewise: more is not for twice the bits alone")
    min_rounds_count: int = threshold(2, "forward passes to an update: of one there is no other")
    min_updates_count: int = threshold(3, "updates of a rank whose rounds are told")
    min_round_bytes_ratio: float = threshold(
        0.9, "of the most that a round of its update reduces: another model has other gradients"
    )
    min_round_calls_ratio: float = threshold(
        0.5, "the same of calls, where sizes are not known: a loss and a norm are two more"
    )
    min_buffers_ratio: float = threshold(
        0.9, "of what a rank broadcasts, in forward passes: the rest is no buffers"
    )
    misplaced_ratio: float = threshold(
        0.5, "of its exposed time that NVLink would save, where nobody says how fast the links are"
    )


class Mismatch(Struct, frozen=True):
    """One thing about one family that is not as the layout has it."""

    what: str
    """oversized, extra, missing, misplaced, contradicted, repeated, buffers or gathers."""
    says: str
    row: Row
    """Of the family."""
    saved_ratio: float = 0.0
    """Share of the operation's exposed time that would be gone without it."""
    value: float = 0.0
    unit: str = "bytes"
    expected: float | None = None
    assumed: tuple[str, ...] = ()
    remedy: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    """Of ``query``, where they are shown."""
    query: str = "traffic"
    basis: str = "sizes in the traces against the job description"
    most_saved_ratio: float = 0.0
    """As ``saved_ratio``, at most; where that is more."""
    copies_ns: float = 0.0
    """Of a step, what ranks compute for it: saved like its communication."""
    span_ns: float = 0.0
    """Of a step, the time within which all of it was done: so much may be saved, and is where the
    host does it, which gathers, copies and sums up one after another."""

    @property
    def kind(self) -> str:
        """Of the family's groups."""
        return str(self.row["group_kind"])


def evaluate(facts: Facts, limits: TrafficMismatchThresholds) -> RuleOutcome:
    """One finding for each family of groups that does not send what it should."""
    rows = facts.of("traffic")
    if not any(row["calls_per_step"] for row in rows):
        return facts.lacking("collectives in steady steps", "profile five or more steps")
    needless = [
        *_repeated(facts, rows, limits),
        *_buffers(facts, rows, limits),
        *_gathers(facts, rows, limits),
    ]
    if facts.description is None or all(
        getattr(facts.description.parallelism, d) is None for d in ("tp", "pp", "dp", "ep", "cp")
    ):
        if not needless:
            return facts.lacking(NEEDS, CAPTURE)
        return RuleOutcome(findings=tuple(_finding(facts, limits, [m]) for m in needless))
    contradicted = _contradicted(facts, rows)
    wrong = {m.kind for m in contradicted}
    mismatches = [
        *contradicted,
        *(m for row in rows if (m := _oversized(row, rows, limits)) and m.kind not in wrong),
        *(m for m in _extra_and_missing(facts, rows, limits) if m.kind not in wrong),
        *(m for row in rows if (m := _misplaced(facts, row, limits)) and m.kind not in wrong),
        *needless,
    ]
    if not mismatches and all(row["expected_bytes"] is None for row in rows):
        from tracekit.expect import expect

        unknown = expect(facts.description).unknown
        what = f"{NEEDS}: {listed(unknown[:6])}" if unknown else "sizes of messages in the traces"
        return facts.lacking(what, CAPTURE)
    by_kind: dict[tuple[str, str], list[Mismatch]] = defaultdict(list)
    for mismatch in mismatches:
        by_kind[mismatch.kind, mismatch.what].append(mismatch)
    return RuleOutcome(
        findings=tuple(_finding(facts, limits, several) for several in by_kind.values())
    )


def _described(facts: Facts) -> JobDescription:
    assert facts.description is not None  # noqa: S101  # evaluate has looked
    return facts.description


def _total(rows: Sequence[Row]) -> float:
    """Bytes of a mean rank and step, as far as known."""
    return sum(float(row["bytes_per_step"] or 0.0) for row in rows)


def _assumed(row: Row) -> tuple[str, ...]:
    """Fields that the expectation took for want of being given."""
    parts = str(row["basis"] or "").split("; ")
    return tuple(p.removesuffix(" assumed") for p in parts if p.endswith(" assumed"))


def _named(row: Row) -> str:
    return f"{safe(str(row['group_kind']))} {str(row['op']).replace('_', '-')}"


def _contradicted(facts: Facts, rows: Sequence[Row]) -> list[Mismatch]:
    """Families whose groups have another size than the description says."""
    parallelism = _described(facts).parallelism
    mismatches = []
    for kind in STATED:
        said = getattr(parallelism, kind)
        alike = [
            r for r in rows if r["group_kind"] == kind and r["group_size"] and r["ranks_count"]
        ]
        if said is None or not alike or kind == "cp":
            continue
        seen = max(int(r["group_size"]) for r in alike)
        if seen != said:
            says = (
                f"The job description says {kind} = {said}; the traces show {kind} groups of "
                f"{seen} ranks."
            )
            mismatches.append(
                Mismatch("contradicted", says, alike[0], 0.0, float(seen), "count", float(said),
                         remedy=("correct the job description: what is expected rests on it",))
            )  # fmt: skip
    return mismatches


def _oversized(row: Row, rows: Sequence[Row], limits: TrafficMismatchThresholds) -> Mismatch | None:
    seen, most = row["bytes_per_step"], row["expected_most_bytes"]
    expected = row["expected_bytes"]
    if not seen or not most or not expected or seen < limits.min_oversize_ratio * most:
        return None
    if seen - most < limits.min_bytes_ratio * _total(rows):
        return None
    ratio = seen / expected
    why, remedy = _why_oversized(row, ratio, limits)
    says = (
        f"The {_named(row)} sends {_bytes(seen)} a rank and step, expected {_bytes(expected)} "
        f"({ratio:.2f}x){why}."
    )
    return Mismatch(
        what="oversized",
        says=says,
        row=row,
        saved_ratio=1 - most / seen,
        value=float(seen),
        expected=float(expected),
        assumed=_assumed(row),
        remedy=remedy,
    )


_WIDE = {"float", "float32", "double", "float64"}


def _why_oversized(
    row: Row, ratio: float, limits: TrafficMismatchThresholds
) -> tuple[str, tuple[str, ...]]:
    calls, wanted = row["calls_per_step"], row["expected_calls"]
    if (
        str(row["dtype"] or "").lower() in _WIDE
        and limits.min_double_ratio <= ratio <= limits.max_double_ratio
    ):
        return (
            f": its elements are {safe(str(row['dtype']))}",
            ("reduce in 16 bits: Megatron without --accumulate-allreduce-grads-in-fp32, FSDP "
             "MixedPrecision(reduce_dtype=torch.bfloat16)",),
        )  # fmt: skip
    if row["group_kind"] == "dp" and calls and wanted and calls >= limits.min_double_ratio * wanted:
        return "", ("synchronise once a step: no_sync() in all but the last microbatch",)
    return "", ("compare the sizes of its messages with the model: tracekit query RUN traffic",)


def _repeated(
    facts: Facts, rows: Sequence[Row], limits: TrafficMismatchThresholds
) -> list[Mismatch]:
    """Reductions after each of several forward passes to one update, on every rank; not where it is
    known how many bytes they should have."""
    rounds = facts.of(ROUNDS)
    fewest = min((int(row["rounds_count"]) for row in rounds), default=0)
    if fewest < limits.min_rounds_count or {int(row["rank"]) for row in rounds} != set(facts.ranks):
        return []
    if not all(_is_repeating(row, limits) for row in rounds):
        return []
    reductions = _unexpected(rows, "all_reduce", "reduce_scatter")
    if not reductions:
        return []
    wrapper = str(rounds[0]["wrapper"])
    condition, remedy = ACCUMULATING[wrapper]
    repeated = Mismatch(
        what="repeated",
        says=f"Gradients are reduced after each of {fewest} forward passes of {wrapper} to one "
        f"step of the optimizer; once, after the last, is enough{condition}.",
        row=_largest(reductions),
        saved_ratio=1 - 1 / fewest,
        value=float(fewest),
        unit="count",
        expected=1.0,
        remedy=(remedy,),
        rows=tuple(rounds),
        query=ROUNDS,
        basis="what follows each forward pass, on every rank",
        most_saved_ratio=1.0,  # the rounds need not be alike
        copies_ns=_copies_ns(facts, rounds),
    )
    return [repeated]


def _buffers(
    facts: Facts, rows: Sequence[Row], limits: TrafficMismatchThresholds
) -> list[Mismatch]:
    """What DistributedDataParallel broadcasts before its forward passes, on every rank, where that
    is much and no description says that something is to be broadcast."""
    of_ranks = facts.of(BUFFERS)
    broadcasts = [row for row in _unexpected(rows, "broadcast") if row["bytes_per_step"]]
    if {int(row["rank"]) for row in of_ranks} != set(facts.ranks) or len(broadcasts) != 1:
        return []
    (row,) = broadcasts
    per_step, total = float(row["bytes_per_step"]), _total(rows)
    is_sent = all(float(r["sent_ratio"] or 0.0) >= limits.min_buffers_ratio for r in of_ranks)
    if not is_sent:
        return []
    if per_step < max(limits.min_bytes_ratio * total, 1.0):
        return []
    sent = _bytes(float(of_ranks[0]["sent_bytes"]) / int(of_ranks[0]["forwards_count"]))
    buffers = Mismatch(
        what="buffers",
        says=f"DistributedDataParallel broadcasts {sent} of buffers before each forward pass, "
        f"{share(per_step / total)} of all bytes that a rank sends.",
        row=row,
        saved_ratio=1.0,
        value=per_step,
        expected=limits.min_bytes_ratio * total,
        remedy=("broadcast_buffers=False, where no replica changes them (masks, tables)",),
        rows=tuple(of_ranks),
        query=BUFFERS,
        basis="broadcasts inside the range of the forward pass, on every rank",
    )
    return [buffers]


def _gathers(
    facts: Facts, rows: Sequence[Row], limits: TrafficMismatchThresholds
) -> list[Mismatch]:
    """What is gathered of the shards of FSDP2 after each backward pass, on every rank, where that
    is much and no description says how much is to be gathered."""
    of_ranks = facts.of(GATHERS)
    gathers = _unexpected(rows, "all_gather")
    if {int(row["rank"]) for row in of_ranks} != set(facts.ranks) or not gathers:
        return []
    if not all(_is_gathering(row, limits) for row in of_ranks):
        return []
    first = of_ranks[0]
    per_update = float(first["given_bytes"]) / int(first["gathering_count"])
    spans = [
        float(row["span_ns"]) * _updates_ratio(facts, int(row["updates_count"])) for row in of_ranks
    ]
    again = Mismatch(
        what="gathers",
        says=f"{_bytes(per_update)} of shards a rank are gathered again after each backward pass "
        "of FSDP2, outside the optimizer's step, as full_tensor(), norms of whole parameters or a "
        f"state dict do: {share(first['given_ratio'])} of all that is given to gathers.",
        row=_largest(gathers),
        saved_ratio=median(float(row["spent_ratio"]) for row in of_ranks),
        value=per_update,
        remedy=(
            "norms of shards and one reduction of their squares, in place of full_tensor() on each "
            "parameter; whole tensors only every so many steps",
        ),
        rows=tuple(of_ranks),
        query=GATHERS,
        basis="gathers outside the ranges of FSDP2, on every rank",
        most_saved_ratio=max(float(row["spent_ratio"]) for row in of_ranks),
        span_ns=median(spans),  # whole tensors are copied and summed up between their gathers
    )
    return [again]


def _is_gathering(row: Row, limits: TrafficMismatchThresholds) -> bool:
    """Whether a rank gathers shards again after each of its updates, the last or first aside."""
    updates = int(row["updates_count"])
    if updates < limits.min_updates_count or int(row["gathering_count"]) < updates - 1:
        return False
    if row["given_ratio"] is None or row["spent_ratio"] is None:
        return False
    return bool(row["given_ratio"] >= limits.min_bytes_ratio)


def _copies_ns(facts: Facts, rounds: Sequence[Row]) -> float:
    """What the median rank copies for its reductions in a mean steady step."""
    # The capture cuts the first update: it is not counted, and has copies like the others.
    updates = min(int(row["updates_count"]) for row in rounds) + 1
    per_update = median(float(row["copies_ns"] or 0.0) for row in rounds)
    return per_update * _updates_ratio(facts, updates)


def _updates_ratio(facts: Facts, updates: int) -> float:
    """Updates of a steady step, one at most."""
    steps = len(facts.steps.keys)
    return min(1.0, updates / steps) if steps else 0.0


def _unexpected(rows: Sequence[Row], *operations: str) -> list[Row]:
    """What steps send by these operations, but for tensors of stated families; nothing where a
    description says how many bytes any of it should have."""
    found = [
        row
        for row in rows
        if row["op"] in operations and row["calls_per_step"] and row["group_kind"] not in STATED
    ]
    return [] if any(row["expected_bytes"] is not None for row in found) else found


def _largest(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: (row["bytes_per_step"] or 0.0, row["calls_per_step"]))


def _is_repeating(row: Row, limits: TrafficMismatchThresholds) -> bool:
    """Whether each round of a rank's updates reduces what the others do, for one optimizer."""
    if row["updates_count"] < limits.min_updates_count:
        return False
    if row["steps_count"] > row["updates_count"]:
        return False  # each of several optimizers may have a model, and a round, of its own
    if row["least_bytes_ratio"] is not None:
        return bool(row["least_bytes_ratio"] >= limits.min_round_bytes_ratio)
    return bool(row["least_calls_ratio"] >= limits.min_round_calls_ratio)


def _extra_and_missing(
    facts: Facts, rows: Sequence[Row], limits: TrafficMismatchThresholds
) -> list[Mismatch]:
    """Operations that the description rules out, and those that it demands and nobody did."""
    total = _total(rows)
    least = limits.min_bytes_ratio * total
    unplanned = [
        r for r in rows
        if r["group_kind"] not in (None, "world", "edp", "embedding", "dp_replicate")
        and r["op"] not in NEVER
        and r["expected_bytes"] is None and r["basis"] is None
        and float(r["bytes_per_step"] or 0.0) >= max(least, 1.0)
    ]  # fmt: skip
    extra = [
        r for r in unplanned
        if not (
            _stands_in(facts, r, rows) or _may_join_replicas(facts, r)
            or any(_reduces_for(facts, r, other) for other in rows)
        )
    ]  # fmt: skip
    # Groups that nobody could name may do what seems to be missing; so may ranks without a trace.
    is_whole = not facts.missing_ranks and all(r["group_kind"] is not None for r in rows)
    missing = [
        r for r in rows
        if not r["calls_per_step"] and (r["expected_bytes"] or 0.0) >= max(least, 1.0) and is_whole
        and not any(
            _stands_in(facts, other, [r]) or _reduces_for(facts, other, r) for other in unplanned
        )
    ]  # fmt: skip
    mismatches = [_extra(facts, r) for r in extra]
    return mismatches + [_missing(r, extra) for r in missing]


def _stands_in(facts: Facts, row: Row, rows: Sequence[Row]) -> bool:
    """Whether its groups may be those of a family as large that shows no traffic of its own.

    Where experts are spread over all replicas, one communicator is both the experts' and the
    data-parallel one, and has one name.
    """
    sizes = _described(facts).parallelism
    return any(
        r["op"] == row["op"]
        and r["group_kind"] != row["group_kind"]
        and not r["calls_per_step"]
        and getattr(sizes, str(r["group_kind"]), None) == row["group_size"]
        for r in rows
    )


def _reduces_for(facts: Facts, row: Row, other: Row) -> bool:
    """Whether an all-reduce is the other's reduce-scatter: gloo has none, and PyTorch reduces all
    of it instead."""
    is_gloo = "gloo" in (_described(facts).backend or "")
    ops = (row["op"], other["op"])
    is_same = row["group_kind"] == other["group_kind"] and not other["calls_per_step"]
    return is_gloo and is_same and ops == ("all_reduce", "reduce_scatter")


def _may_join_replicas(facts: Facts, row: Row) -> bool:
    """Whether it may be what replicas of the shards reduce among themselves (HSDP).

    Behaviour tells a group of part of the data-parallel ranks, and not whether these share out the
    weights or hold the same. The description rules replicas out by ``dp_replicate = 1``.
    """
    sizes, size = _described(facts).parallelism, row["group_size"]
    if row["group_kind"] != "dp" or row["op"] != "all_reduce" or not sizes.dp or not size:
        return False
    is_part = 1 < size < sizes.dp and sizes.dp % size == 0
    return is_part and sizes.dp_replicate in (None, size)


def _extra(facts: Facts, row: Row) -> Mismatch:
    kind, parallelism = str(row["group_kind"]), _described(facts).parallelism
    size, stage = getattr(parallelism, kind, None), parallelism.zero_stage
    if kind == "dp" and (size or 0) > 1:
        why = f"ZeRO stage {stage} has no use for it" if stage is not None else "no use is known"
        settles = ("parallelism.zero_stage",)
    else:
        why = f"the job description says {kind} = {size}" if size else f"{kind} is not given"
        settles = (f"parallelism.{kind}",)
    says = f"The {_named(row)} sends {_bytes(row['bytes_per_step'])} a rank and step: {why}."
    is_given = size is not None if kind != "dp" else stage is not None
    return Mismatch(
        what="extra",
        says=says,
        row=row,
        value=float(row["bytes_per_step"]),
        assumed=() if is_given else settles,
        remedy=("correct the job description, or find what sends it",),
    )


def _missing(row: Row, extra: Sequence[Row]) -> Mismatch:
    kind = str(row["group_kind"])
    instead = sorted({str(r["op"]).replace("_", "-") for r in extra if r["group_kind"] == kind})
    says = (
        f"The traces show no {_named(row)}, of which this layout needs "
        f"{_bytes(row['expected_bytes'])} a rank and step"
        + (f"; {listed(instead)} is there instead." if instead else ".")
    )
    return Mismatch(
        what="missing",
        says=says,
        row=row,
        expected=float(row["expected_bytes"]),
        assumed=_assumed(row),
        remedy=("correct the job description, or capture a step in which the groups synchronise",),
    )


def _misplaced(facts: Facts, row: Row, limits: TrafficMismatchThresholds) -> Mismatch | None:
    """A family that fits the NVLink domain and whose groups span several machines."""
    kind, spread = row["group_kind"], row["hosts_count"]
    if kind not in STATED or row["expected_domain"] != "nvlink" or (spread or 1) < 2:
        return None
    hardware = _described(facts).hardware
    per_host = set(Counter(facts.job.hosts.values()).values())
    if hardware.gpus_per_node is None or per_host != {hardware.gpus_per_node}:
        return None  # pods are no machines
    if (hardware.nvlink_domain or 0) > hardware.gpus_per_node:
        return None  # a rack of NVLink
    if kind == "tp" and any(r["kind"] == "tp" for r in facts.of("nccl_groups")):
        return None  # tensor-group-spans-hosts knows it from NCCL itself
    slow, fast = hardware.nic_bytes_per_s, hardware.nvlink_bytes_per_s
    ratio = 1 - slow / fast if slow and fast and slow < fast else limits.misplaced_ratio
    says = (
        f"The {_named(row)} crosses {int(spread)} hosts a group: its groups of "
        f"{row['group_size']} would fit one."
    )
    return Mismatch(
        what="misplaced",
        says=says,
        row=row,
        saved_ratio=ratio,
        value=float(spread),
        unit="count",
        expected=1.0,
        remedy=("launch so that the ranks of a group share a host; see parallelism.order",),
    )


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.3g} {unit}"
        value /= 1000
    return ""


# ---------------------------------------------------------------- what it costs


def _exposed_ns(facts: Facts, row: Row) -> tuple[float, float]:
    """Exposed time of a mean steady step that this family's operation takes: of the median rank,
    and of the one that bounds it, which is the same but where one rank sends to all.

    The operation's share of all exposed communication, and of that its family's share of bytes, or
    of calls where no bytes are known.
    """
    of_op: dict[int, float] = defaultdict(float)
    every: dict[int, float] = defaultdict(float)
    for exposed in facts.of("exposed_comm_by_op"):
        ns = float(exposed["exposed_comm_ns"] or 0.0)
        every[int(exposed["rank"])] += ns
        if exposed["op"] == row["op"]:
            of_op[int(exposed["rank"])] += ns
    means = facts.steps.rank_means
    shares = [
        of_op[rank] / ns * means[rank].exposed_comm
        for rank, ns in every.items()
        if ns > 0 and rank in means
    ]
    of_op_rows = [r for r in facts.of("traffic") if r["op"] == row["op"]]
    is_sized = any(r["bytes_per_step"] for r in of_op_rows)
    measure = "bytes_per_step" if is_sized else "calls_per_step"
    alike = sum(float(r[measure] or 0.0) for r in of_op_rows)
    part = float(row[measure] or 0.0) / alike if alike else 0.0
    if not shares:
        return 0.0, 0.0
    if row["op"] != "broadcast":
        return median(shares) * part, median(shares) * part
    # Who sends goes on when it has sent, and waits for the others elsewhere.
    receivers = sorted(shares)[1:] or shares
    return median(receivers) * part, max(receivers) * part


def _finding(
    facts: Facts, limits: TrafficMismatchThresholds, several: Sequence[Mismatch]
) -> Finding:
    worst = max(several, key=lambda m: (m.value, str(m.row["op"])))
    assumed = sorted({name for m in several for name in m.assumed})
    steps = facts.steps
    parts = [(*_exposed_ns(facts, m.row), m) for m in several]
    is_in_turn = worst.span_ns > 0 and not facts.has_gpu  # all of one kind are, or none
    cost_ns = sum(
        m.span_ns if is_in_turn else (ns + m.copies_ns) * m.saved_ratio for ns, _, m in parts
    )
    most_ns = sum(
        max((most + m.copies_ns) * max(m.saved_ratio, m.most_saved_ratio), m.span_ns)
        for _, most, m in parts
    )
    impact = Impact()
    if cost_ns > 0 and steps.step_ns > 0:
        impact = facts.impact(Price(cost_ns, "recorded time", 0.0, most_ns))
    cap = Severity.NOTE if assumed else Severity.MAJOR
    settle = f" Give {listed(assumed)} in the job description to settle it." if assumed else ""
    copies = ", copies of gradients among them" if any(m.copies_ns for m in several) else ""
    took = "go into it" if is_in_turn else "are not hidden"
    cost = f" {seconds(cost_ns / 1e9)} a step {took}{copies}." if impact.s_per_step else ""
    scope = Scope(groups=(worst.kind,))
    return facts.finding(
        scope,
        " ".join(m.says for m in several) + cost + settle,
        tuple(_evidence(facts, m, limits) for m in several),
        by=["host ranges"],
        basis=worst.basis,
        impact=impact if not assumed else Impact(),
        cap=cap,
        place=f"{worst.kind}-{worst.what}",
        confirm=(f"tracekit query RUN {worst.query}", "tracekit expect --job job.toml"),
        remedy=tuple(dict.fromkeys(r for m in several for r in m.remedy)),
    )


def _evidence(facts: Facts, mismatch: Mismatch, limits: TrafficMismatchThresholds) -> Evidence:
    limit = mismatch.expected
    if mismatch.what == "oversized":
        limit = limits.min_oversize_ratio * float(mismatch.row["expected_most_bytes"])
    name = {
        "contradicted": f"members of {mismatch.kind} groups",
        "misplaced": f"hosts of a {mismatch.kind} group",
        "repeated": "forward passes to an update that are followed by a reduction",
        "buffers": "buffers, bytes a rank and step",
        "gathers": "shards gathered again, bytes of a rank and update",
    }.get(mismatch.what, f"{_named(mismatch.row)}, bytes a rank and step")
    return Evidence(
        name,
        mismatch.value,
        mismatch.unit,
        threshold=limit,
        query=mismatch.query,
        rows=facts.places(mismatch.rows),
    )


RULE = Rule(
    name="traffic-mismatch",
    summary="The job sends other traffic than its layout needs.",
    owner="framework",
    thresholds=TrafficMismatchThresholds(),
    queries=("traffic", "step_breakdown", "exposed_comm_by_op", "nccl_groups"),
    optional={
        ROUNDS: "whether gradients are reduced more often than once an update",
        BUFFERS: "whether buffers are sent before each forward pass",
        GATHERS: "whether shards are gathered again after each backward pass",
    },
    evaluate=evaluate,
    cap=Severity.MAJOR,
    needs=NEEDS,
)

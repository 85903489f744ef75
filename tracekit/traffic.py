"""What a layout needs, beside what the query ``traffic`` saw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from tracekit.port_traffic import across_ports, says_layout

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.expect.expectation import Expectation, TrafficRow
    from tracekit.job import JobDescription

Row = Mapping[str, Any]
Key = tuple[str | None, str]

SETTLED_RATIO = 0.05
"""A choice is taken for settled where what was seen lies so near to it (confirmed: 3.8)."""
UNKNOWN = "the job description lacks sizes"
"""Basis of an operation that the layout needs, of bytes that the description does not give."""
OPTIONAL = ("embedding", "edp")
"""Not missed where it is not seen: a model need not tie its embeddings, and the experts' gradients
may travel in groups that are not told apart."""


class Expected(Struct, frozen=True):
    """What one kind of group and operation should do on a mean rank in a step."""

    calls: float | None
    sent: float | None
    most: float | None = None
    """The most that any choice of implementation sends."""
    choices: tuple[tuple[float, str], ...] = ()
    """Other amounts that the description allows, and what would make them so."""
    domain: str | None = None
    assumed: tuple[str, ...] = ()
    """Fields that were taken for want of being given."""

    def scaled(self, ratio: float) -> Expected:
        """The same, of a part."""
        return replace(
            self,
            calls=None if self.calls is None else self.calls * ratio,
            sent=None if self.sent is None else self.sent * ratio,
            most=None if self.most is None else self.most * ratio,
            choices=tuple((sent * ratio, words) for sent, words in self.choices),
        )

    def nearest(self, seen: float | None) -> tuple[float | None, str]:
        """The amount that was seen within 5 %, and the choice that makes it so ("": none).

        What fits no choice stands beside the first amount, which the description states.
        """
        if self.sent is None or not seen:
            return self.sent, ""
        amounts = [(self.sent, ""), *self.choices]
        best = min(amounts, key=lambda a: (abs(math.log(max(a[0], 1.0) / seen)), a[1]))
        return best if abs(seen / max(best[0], 1.0) - 1) <= SETTLED_RATIO else amounts[0]


def with_expected(rows: pa.Table, job: JobDescription | None) -> pa.Table:
    """Rows of the query ``traffic`` with the expected columns, and a row for what is missing; or
    rows of ``port_traffic`` with theirs.

    A missing operation has 0 calls. Without sizes of the parallel dimensions in the job
    description nothing is expected.
    """
    import pyarrow as pa

    if "expected_host_bytes" in rows.column_names:
        return pa.Table.from_pylist(across_ports(rows.to_pylist(), job), rows.schema)
    if "expected_bytes" not in rows.column_names or not says_layout(job):
        return rows
    content = beside(rows.to_pylist(), job)
    return pa.Table.from_pylist(content, rows.schema)


def beside(seen: Sequence[Row], job: JobDescription | None) -> list[dict[str, Any]]:
    """The rows of the query with what the description implies; the same rows where it is mute."""
    if job is None or not says_layout(job):
        return [dict(row) for row in seen]
    expectation = settled(job, seen)
    families = {k: s for k, s in expectation.sizes.items() if k != "vpp" and s > 1}
    expected = _expected(expectation, seen)
    missing = dict(expected)
    content = []
    for row in seen:
        key = (_family(row, families, expectation), str(row["op"]))
        wanted = expected.get(key)
        missing.pop(key, None)
        content.append({**row, **_columns(row["bytes_per_step"], wanted)})
    attempts = sorted({row["attempt"] for row in seen})
    for (kind, op), wanted in sorted(missing.items(), key=lambda i: str(i[0])):
        if kind in OPTIONAL or not attempts:
            continue
        content += [
            {
                **dict.fromkeys(("group_size", "largest_bytes", "dtype", "hosts_count")),
                "group_kind": kind,
                "op": op,
                "calls_per_step": 0.0,
                "bytes_per_step": 0.0,
                "attempt": attempt,
                "ranks_count": 0,
                **_columns(0.0, wanted),
            }
            for attempt in attempts
        ]
    return content


def settled(job: JobDescription, seen: Sequence[Row]) -> Expectation:
    """The expectation; where the ZeRO stage is not given, of the stage that fits best.

    A stage that was found by what is seen proves nothing about the data-parallel operations, so
    it stays a field that was assumed.
    """
    from tracekit.expect import expect

    expectation = expect(job)
    ops = {str(r["op"]) for r in seen if r["group_kind"] == "dp" and (r["bytes_per_step"] or 0) > 0}
    if job.parallelism.zero_stage is not None or not ops & {"all_gather", "reduce_scatter"}:
        return expectation
    import msgspec

    def of(stage: int) -> Expectation:
        parallelism = msgspec.structs.replace(job.parallelism, zero_stage=stage)
        return expect(msgspec.structs.replace(job, parallelism=parallelism))

    best = min((1, 2, 3), key=lambda stage: (_misfit(of(stage), seen), stage))
    chosen = of(best)
    for index, row in enumerate(chosen.traffic):
        if row.group_kind in ("dp", "edp", "dp_replicate"):
            chosen.traffic[index] = replace(row, assumed=(*row.assumed, "parallelism.zero_stage"))
    chosen.assumptions.append(f"ZeRO stage {best}: it fits the traffic best")
    return chosen


def _misfit(expectation: Expectation, seen: Sequence[Row]) -> float:
    """How far the data-parallel bytes lie from the expectation, in factors of e."""
    sent = {r["op"]: r["bytes_per_step"] or 0.0 for r in seen if r["group_kind"] == "dp"}
    total = 0.0
    for key, wanted in _expected(expectation, seen).items():
        if key[0] == "dp" and wanted.sent:
            near = wanted.nearest(sent.get(key[1]))[0] or 1.0
            total += abs(math.log(max(sent.get(key[1], 0.0), 1.0) / near))
    return total


def _columns(seen: float | None, wanted: Expected | None) -> dict[str, Any]:
    if wanted is None:
        return dict.fromkeys(
            (
                *("expected_calls", "expected_bytes", "observed_ratio"),
                *("expected_most_bytes", "expected_domain", "basis"),
            )
        )
    sent, words = wanted.nearest(seen)
    is_known = seen is not None and sent is not None and sent > 0
    assumed = [f"{name} assumed" for name in wanted.assumed]
    if wanted.sent is None:
        words, assumed = UNKNOWN, []
    return {
        "expected_calls": wanted.calls,
        "expected_bytes": sent,
        "observed_ratio": (seen or 0.0) / (sent or 1.0) if is_known else None,
        "expected_most_bytes": wanted.most,
        "expected_domain": wanted.domain,
        "basis": "; ".join([*([words] if words else []), *assumed]) or None,
    }


def _family(row: Row, families: Mapping[str, int], expectation: Expectation) -> str | None:
    """The kind of the group; where it is not known, the only family of that size.

    Pairs of ranks pass for a pipeline: in a job without one they are the ring of a context group.
    """
    if row["group_kind"] == "pp" and "pp" not in families and "cp" in families:
        return "cp"
    if row["group_kind"] is not None:
        return str(row["group_kind"])
    sizes = {**families, "dp": families.get("dp", 1) * families.get("cp", 1)}
    for traffic in expectation.traffic:
        if traffic.group_kind in ("dp", "dp_replicate"):
            sizes[traffic.group_kind] = traffic.group_size
    fitting = [k for k, size in sizes.items() if size == row["group_size"] and size > 1]
    return fitting[0] if len(fitting) == 1 else None


def _expected(expectation: Expectation, seen: Sequence[Row]) -> dict[Key, Expected]:
    """What a mean rank does in a step, by kind of group and operation."""
    result: dict[Key, Expected] = {}
    splits_tp = any(r["group_kind"] == "tp" and r["op"] == "reduce_scatter" for r in seen)
    kinds = {r["group_kind"] for r in seen}
    apart: dict[str, list[Expected]] = {}
    for row in expectation.traffic:
        wanted = _of(row)
        if row.group_kind == "pp" and row.op == "send":
            # A middle stage sends to both sides; the two ends of the pipeline send to one.
            stages = expectation.sizes["pp"] * expectation.sizes["vpp"]
            wanted = wanted.scaled((stages - 1) / stages)
        if row.group_kind == "tp" and row.op == "all_reduce" and splits_tp:
            result["tp", "all_gather"], result["tp", "reduce_scatter"] = _halves(wanted)
            continue
        if row.group_kind in OPTIONAL and row.group_kind not in kinds:
            # Of the embedding's pair only the two ends of the pipeline are members.
            share = 2 / expectation.sizes["pp"] if row.group_kind == "embedding" else 1.0
            apart.setdefault(row.op, []).append(wanted.scaled(share))
        result[row.group_kind, row.op] = wanted
    for op, extras in apart.items():
        # Groups that only behaviour tells are all called dp: their traffic may be in it.
        sums = [sum(c) for n in (1, 2) for c in combinations([e.sent or 0.0 for e in extras], n)]
        whole = result.get(("dp", op))
        if whole is not None and whole.sent is not None:
            more = tuple(
                (whole.sent + gradients, "other gradients counted in") for gradients in sums
            )
            most = (whole.most or whole.sent) + max(sums)
            result["dp", op] = replace(whole, choices=(*whole.choices, *more), most=most)
    return result


def _of(row: TrafficRow) -> Expected:
    spread = row.range_bytes
    return Expected(
        calls=row.calls_per_step,
        sent=row.bytes_per_step,
        most=spread[1] if spread else None,
        choices=tuple((c.bytes_per_step, c.words) for c in row.choices),
        domain=row.domain,
        assumed=row.assumed,
    )


def _halves(wanted: Expected) -> tuple[Expected, Expected]:
    """Sequence parallelism: each all-reduce is a gather and a scatter of its bytes.

    The backward may gather the saved inputs again (Korthikanti et al. 2022): half as much more.
    """
    half = replace(wanted.scaled(0.5), calls=wanted.calls)
    if half.sent is None:
        return half, half
    again = (*half.choices, (1.5 * half.sent, "saved inputs gathered again"))
    again = (*again, (2 * half.sent, "saved inputs gathered again, activations recomputed"))
    return replace(half, choices=again, most=2 * half.sent), half

"""What a layout needs, beside what the query ``traffic`` saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracekit.expect import expect

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.expect.plan import Expectation
    from tracekit.job import JobDescription

Key = tuple[str | None, str]


def with_expected(rows: pa.Table, job: JobDescription | None) -> pa.Table:
    """Rows of the query ``traffic`` with the expected columns, and a row for what is missing.

    A missing operation has 0 calls. Not missed: the embedding's all-reduce, since a model need not
    tie its embeddings, and that of the experts' gradients, whose group is not told apart. Without
    sizes in the job description nothing is expected.
    """
    import pyarrow as pa

    if job is None or "expected_bytes" not in rows.column_names:
        return rows
    p = job.parallelism
    if all(getattr(p, d) is None for d in ("tp", "pp", "dp", "ep", "cp")):
        return rows
    found = expect(job)
    seen: list[dict[str, Any]] = rows.to_pylist()
    expected = _expected(found, seen)
    families = {k: s for k, s in found.sizes.items() if k != "vpp" and s > 1}
    content = []
    missing = dict(expected)
    for row in seen:
        key = (_family(row, families), str(row["op"]))
        calls, sent = missing.pop(key, (None, None))
        content.append(row | _beside(row["bytes_per_step"], calls, sent))
    attempts = sorted({row["attempt"] for row in seen})
    for (kind, op), (calls, sent) in sorted(missing.items(), key=lambda i: str(i[0])):
        if kind in ("embedding", "edp") or not attempts:
            continue
        content += [
            {
                "group_kind": kind,
                "op": op,
                "calls_per_step": 0.0,
                "bytes_per_step": 0.0,
                "attempt": attempt,
                "ranks_count": 0,
                **_beside(0.0, calls, sent),
            }
            for attempt in attempts
        ]
    return pa.Table.from_pylist(content, rows.schema)


def _beside(seen: float | None, calls: float | None, sent: float | None) -> dict[str, float | None]:
    is_known = seen is not None and sent is not None and sent > 0
    return {
        "expected_calls": calls,
        "expected_bytes": sent,
        "observed_ratio": (seen or 0.0) / (sent or 1.0) if is_known else None,
    }


def _family(row: Mapping[str, Any], families: Mapping[str, int]) -> str | None:
    """The kind of the group; where it is not known, the only family of that size.

    Pairs of ranks pass for a pipeline: in a job without one they are the ring of a context group.
    """
    if row["group_kind"] == "pp" and "pp" not in families and "cp" in families:
        return "cp"
    if row["group_kind"] is not None:
        return str(row["group_kind"])
    fitting = [k for k, size in families.items() if size == row["group_size"]]
    return fitting[0] if len(fitting) == 1 else None


def _expected(
    found: Expectation, seen: Sequence[Mapping[str, Any]]
) -> dict[Key, tuple[float | None, float | None]]:
    """Calls and bytes that a mean rank sends in a step, by kind of group and operation."""
    result: dict[Key, tuple[float | None, float | None]] = {}
    splits_tp = any(r["group_kind"] == "tp" and r["op"] == "reduce_scatter" for r in seen)
    for row in found.traffic:
        calls, sent = row.calls_per_step, row.bytes_per_step
        if row.group_kind == "pp" and row.op == "send":
            # A middle stage sends to both sides; the two ends of the pipeline send to one.
            stages = found.sizes["pp"] * found.sizes["vpp"]
            ratio = (stages - 1) / stages
            calls = None if calls is None else calls * ratio
            sent = None if sent is None else sent * ratio
        if row.group_kind == "tp" and row.op == "all_reduce" and splits_tp:
            # Sequence parallelism: each all-reduce becomes a gather and a scatter of its bytes.
            half = None if sent is None else sent / 2
            result["tp", "all_gather"] = result["tp", "reduce_scatter"] = (calls, half)
            continue
        result[row.group_kind, row.op] = (calls, sent)
    return result

"""What a layout makes cross the NICs of each host, beside what the query ``port_traffic`` saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tracekit.expect.crossing import Amount
    from tracekit.expect.expectation import Expectation
    from tracekit.job import JobDescription

Row = Mapping[str, Any]

DIMENSIONS = ("tp", "pp", "dp", "ep", "cp", "dp_replicate")
NO_LAYOUT = "no layout: job.toml's [parallelism] and [model]"
NO_PLACES = "which ranks run on the host: job.toml's [[rank]] host, or hardware.gpus_per_node"
"""What an expectation lacks."""


class _Share(NamedTuple):
    """What crosses a host, by way, and what that rests on."""

    by_way: Mapping[str, Amount]
    basis: str


def says_layout(job: JobDescription | None) -> bool:
    """Whether the description gives any size of a parallel dimension."""
    return job is not None and any(getattr(job.parallelism, d) is not None for d in DIMENSIONS)


def across_ports(rows: Sequence[Row], job: JobDescription | None) -> list[dict[str, Any]]:
    """The rows with what the layout makes cross each host, or what that lacks as their basis.

    NICs are taken to share their host's traffic evenly. Where nobody knows which ranks run on a
    host, they are those of a mean block of ``hardware.gpus_per_node`` neighbours.
    """
    if job is None or not says_layout(job):
        return [{**row, "basis": NO_LAYOUT} for row in rows]
    from tracekit.expect import expect

    expectation = expect(job)
    known: dict[tuple[int, ...], _Share | str] = {}
    content = []
    for row in rows:
        ranks = tuple(row["ranks"] or ())
        if ranks not in known:
            known[ranks] = _share(expectation, job, ranks)
        share = known[ranks]
        if isinstance(share, str):
            content.append({**row, "basis": share})
        else:
            content.append({**row, **_columns(row, share, job.hardware.nics_per_node)})
    return content


def _columns(row: Row, share: _Share, nics_count: int | None) -> dict[str, Any]:
    amount = share.by_way[row["direction"]]
    seen = row["host_bytes_per_step"]
    is_whole = nics_count is None or row["ports_count"] == nics_count
    basis = share.basis
    if not is_whole:
        basis += f"; {row['ports_count']} of {nics_count} NICs were read"
    return {
        "expected_bytes": amount.expected / (nics_count or row["ports_count"]),
        "expected_host_bytes": amount.expected,
        "expected_least_bytes": amount.least,
        "expected_most_bytes": amount.most,
        "observed_ratio": (
            seen / amount.expected
            if is_whole and seen is not None and amount.expected > 0
            else None
        ),
        "basis": basis,
    }


def _share(expectation: Expectation, job: JobDescription, ranks: Sequence[int]) -> _Share | str:
    """What crosses a host; in words what is missing where that cannot be said."""
    from tracekit.expect import crossing
    from tracekit.expect.crossing import Amount

    blocks: list[Sequence[int]] = [ranks]
    where = "its ranks are known"
    if not ranks:
        size, world = job.hardware.gpus_per_node, _world(expectation, job)
        if size is None:
            return NO_PLACES
        blocks = [range(at, min(at + size, world)) for at in range(0, world, size)]
        where = f"the mean of {len(blocks)} hosts of {size} neighbouring ranks"
    found = [crossing(expectation, block) for block in blocks]
    unknown = sorted({kind for one in found for kind in one.unknown})
    if unknown:
        lacks = ", ".join(expectation.unknown) or "sizes"
        return f"bytes of {', '.join(unknown)} are not known: job.toml lacks {lacks}"
    kinds = list(dict.fromkeys(kind for one in found for kind in one.kinds))
    assumed = sorted({
        name for row in expectation.traffic
        if f"{row.group_kind} {row.op}" in kinds for name in row.assumed
    })  # fmt: skip
    words = [f"{', '.join(kinds) or 'nothing'} across hosts", where]
    return _Share(
        {
            way: Amount(
                sum(a.expected for a in amounts) / len(amounts),
                min(a.least for a in amounts),
                max(a.most for a in amounts),
            )
            for way, amounts in (
                ("sent", [one.sent for one in found]),
                ("received", [one.received for one in found]),
            )
        },
        "; ".join([*words, *(f"{name} assumed" for name in assumed)]),
    )


def _world(expectation: Expectation, job: JobDescription) -> int:
    sizes = expectation.sizes
    return job.world_size or sizes["tp"] * sizes["cp"] * sizes["pp"] * sizes["dp"]

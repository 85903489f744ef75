"""What rules over GPU counters share: whose GPU it is, how it is named, what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tracekit.findings import Candidates, Evidence, EvidenceRow, Scope
from tracekit.rules.base import Facts, Row, RuleOutcome, lacking
from tracekit.wording import safe, some

CAPTURE = "tracekit capture --what dcgm"
NEEDS = "GPU counters (DCGM, nvidia-smi or XID logs)"
COUNTERS = "gpu_counters"
THROTTLE = "gpu_throttle"
GROWTH = "gpu_growth"
EVENTS = "gpu_events"

XIDS: Mapping[int, str] = {
    48: "uncorrectable memory error",
    62: "internal halt",
    63: "memory row to be replaced",
    64: "memory row could not be replaced",
    74: "NVLink error",
    79: "fell off the bus",
    92: "many corrected memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "its firmware (GSP) does not answer",
    120: "its firmware (GSP) failed",
    121: "chip-to-chip link error",
    136: "link training failed",
    140: "unrecovered memory error",
    143: "initialisation failed",
    167: "fatal PCIe timeout",
    171: "uncorrectable memory error (DRAM)",
    172: "uncorrectable memory error (SRAM)",
    **dict.fromkeys(range(144, 151), "NVLink error"),
}
"""XIDs that speak of hardware. 13, 31, 43 are the program's; 45 and 137 follow from others."""
LINK_XIDS = frozenset({74, 121, 136, *range(144, 151)})
PCIE_XIDS = frozenset({167})
MEMORY_XIDS = frozenset(XIDS) - LINK_XIDS - PCIE_XIDS


def lacking_counters(facts: Facts, rule: str, needs: str) -> RuleOutcome:
    """The outcome of a rule that lacks some counters, or all."""
    has_any = any(facts.of(q) for q in (COUNTERS, THROTTLE, GROWTH, EVENTS))
    return lacking(rule, needs if has_any else NEEDS, CAPTURE)


def name_of(row: Row) -> str:
    """The GPU in a sentence: ``GPU 5 of gpu-11``, ``GPU 00000000:9b:00.0``, ``GPU-5269...``."""
    if row["gpu_index"] is not None:
        name = f"GPU {row['gpu_index']}"
    elif row["pci"] is not None:
        name = f"GPU {row['pci']}"
    else:
        name = safe(str(row["gpu_id"]))
    return f"{name} of {safe(row['host'])}" if row["host"] else name


def subject(rows: Sequence[Row]) -> str:
    """The GPUs that a finding is about, with their ranks where those are known."""
    first = rows[0]
    if len(rows) == 1:
        rank = f" (rank {first['rank']})" if first["rank"] is not None else ""
        return name_of(first) + rank
    return f"{len(rows)} GPUs ({some([name_of(r) for r in rows], 3)})"


def scope_of(facts: Facts, rows: Iterable[Row]) -> Scope:
    """GPUs, their hosts, and the ranks that are known to use them."""
    listed = list({r["gpu_id"]: r for r in rows}.values())
    ranks = sorted({int(r["rank"]) for r in listed if r["rank"] is not None})
    sources = sorted({str(r["rank_source"]) for r in listed if r["rank_source"]})
    return Scope(
        ranks=tuple(ranks),
        hosts=tuple(sorted({r["host"] for r in listed if r["host"]})),
        devices=tuple(sorted(str(r["gpu_id"]) for r in listed)),
        identity_source=", ".join(sources) or None,
    )


def candidates_of(rows: Iterable[Row]) -> Candidates:
    """The ranks of the host, where nothing says which of them uses the GPU."""
    listed = [r for r in rows if r["rank"] is None]
    ranks = sorted({int(n) for r in listed for n in r["host_ranks"] or ()})
    if not ranks:
        return Candidates()
    return Candidates(
        ranks=tuple(ranks),
        hosts=tuple(sorted({r["host"] for r in listed if r["host"]})),
        why="no file says which of the host's ranks uses this GPU (an NCCL log would)",
    )


def places(facts: Facts, rows: Iterable[Row]) -> tuple[EvidenceRow, ...]:
    """Where the samples stand, three at most."""
    found = dict.fromkeys(
        (int(r["source_id"]), int(r["place"]))
        for r in rows
        if r["source_id"] is not None and r["place"] is not None
    )
    return tuple(
        EvidenceRow(source=facts.sources.get(s, f"source {s}"), place=str(p))
        for s, p in list(found)[:3]
    )


def by_gpu(facts: Facts, query: str, key: str) -> dict[str, dict[str, Row]]:
    """Rows of a query by GPU, then by one column (counter or event)."""
    found: dict[str, dict[str, Row]] = {}
    for row in facts.of(query):
        found.setdefault(str(row["gpu_id"]), {})[str(row[key])] = row
    return found


def finding_where(scope: Scope) -> str:
    """The last part of a finding's id: its rank, its only GPU, its only host, or all."""
    if len(scope.ranks) == 1:
        return str(scope.ranks[0])
    if len(scope.devices) == 1:
        return scope.devices[0].replace(" ", "-")
    return ",".join(scope.hosts) if len(scope.hosts) == 1 else "several"


def current_events(facts: Facts, xids: frozenset[int]) -> list[Row]:
    """XIDs of these numbers while the job ran; with their time unknown, only without traces."""
    return [
        row
        for row in facts.of(EVENTS)
        if row["xid"] in xids
        and (row["is_in_window"] or (row["is_in_window"] is None and not facts.ranks))
    ]


def clock_of(facts: Facts, rank: int) -> tuple[Evidence, ...]:
    """The clock of a rank's GPU beside its busy peers', where counters and a file tell both."""
    for row in facts.of(COUNTERS):
        if row["counter"] == "sm_clock" and row["rank"] == rank:
            ratio = row["busy_peer_ratio"]
            ratio = row["peer_ratio"] if ratio is None else ratio
            if ratio is not None:
                return (
                    Evidence(
                        name="clock over its peers', median moment",
                        value=float(ratio),
                        unit="ratio",
                        threshold=0.95,
                        query=COUNTERS,
                        rows=places(facts, [row]),
                    ),
                )
    return ()

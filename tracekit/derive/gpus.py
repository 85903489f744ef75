"""Which GPU a counter is about, and whose rank uses it.

Counter files name a GPU by UUID, PCI address or NVML index, each in its own way; one file that
states two of them joins the others. A rank's GPU is known from job.toml, or from NCCL's log, which
has PCI address and NVML index of each process: whose the process is the log proves, or the trace of
the same process (host and pid) states. An ordinal is never taken for an NVML index, and a local
rank neither: where nothing says whose a GPU is, nobody is named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracekit.derive.hosts import canonical

if TYPE_CHECKING:
    import duckdb

    from tracekit.derive.sources import Source


@dataclass(eq=False)
class _Gpu:
    """One physical GPU: every name that any file gives it."""

    host: str | None
    uuids: set[str] = field(default_factory=set)
    pcis: set[str] = field(default_factory=set)
    indices: set[int] = field(default_factory=set)
    models: set[str] = field(default_factory=set)


def gpu_rows(
    con: duckdb.DuckDBPyConnection,
    sources: Iterable[Source],
    ranks: Sequence[Mapping[str, Any]],
    attempts: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The rows of ``gpu``: one a name that the samples use, for each attempt.

    ``gpu_id`` is the same for all names of one GPU: its UUID, else host and PCI address, else
    host and NVML index.
    """
    owners = {s.source_id: s.host for s in sources}
    known = _described(con, owners)
    members = _members(con, owners)
    numbers: list[int | None] = [int(a["attempt"]) for a in attempts] or [None]
    names = _sample_names(con, owners)
    rows = []
    for attempt in numbers:
        by_device = {
            str(r["device_id"]): (int(r["rank"]), r)
            for r in ranks
            if r["attempt"] == attempt and r["device_id"] is not None
        }
        on_host: dict[str, set[int]] = defaultdict(set)
        for r in ranks:
            if r["attempt"] == attempt and r["host"] is not None:
                on_host[r["host"]].add(int(r["rank"]))
        logged = _logged(members, [r for r in ranks if r["attempt"] == attempt])
        for node, host, device_id, index in names:
            gpu = _find(known, host, device_id, index)
            rank, source = _rank_of(gpu, by_device, logged, on_host)
            rows.append(
                {
                    "attempt": attempt,
                    "node": node,
                    "host": host,
                    "device_id": device_id,
                    "nvml_index": index,
                    "gpu_id": _id(gpu),
                    "uuid": _only(gpu.uuids),
                    "pci": _only(gpu.pcis),
                    "gpu_index": _only(gpu.indices),
                    "model": _only(gpu.models),
                    "rank": rank,
                    "rank_source": source,
                    "host_ranks": sorted(on_host.get(gpu.host or "", ())) or None,
                }
            )
    return rows


def _only(values: set[Any]) -> Any:
    return next(iter(values)) if len(values) == 1 else None


def _id(gpu: _Gpu) -> str:
    uuid, pci, index = _only(gpu.uuids), _only(gpu.pcis), _only(gpu.indices)
    if uuid is not None:
        return str(uuid)
    place = f"{gpu.host} " if gpu.host else ""
    if pci is not None:
        return f"{place}{pci}"
    return f"{place}GPU {index}" if index is not None else f"{place}GPU ?"


@dataclass
class _Known:
    """The GPUs that counter files describe, by each of their names."""

    by_uuid: dict[str, _Gpu] = field(default_factory=dict)
    by_pci: dict[tuple[str | None, str], _Gpu] = field(default_factory=dict)
    by_index: dict[tuple[str | None, int], list[_Gpu]] = field(default_factory=dict)


def _described(con: duckdb.DuckDBPyConnection, owners: Mapping[int, str | None]) -> _Known:
    """Joined over files by UUID, or host and PCI address; an index alone joins nothing."""
    rows = con.execute(
        "SELECT DISTINCT source_id, node, uuid, pci, nvml_index, model FROM device "
        "WHERE ordinal IS NULL ORDER BY source_id, uuid, pci, nvml_index, node, model"
    ).fetchall()
    known = _Known()
    # Those with an address first: an index is looked up among them.
    for source_id, node, uuid, pci, index, model in sorted(rows, key=lambda r: not (r[2] or r[3])):
        if source_id not in owners:
            continue
        host = canonical(node) if node else owners[source_id]
        gpu = known.by_uuid.get(uuid) if uuid else None
        gpu = gpu or (known.by_pci.get((host, pci)) if pci else None)
        if gpu is None and not uuid and not pci:
            same = known.by_index.get((host, index), [])
            gpu = same[0] if len(same) == 1 else None
        gpu = gpu or _Gpu(host)
        gpu.host = gpu.host or host
        for value, names in ((uuid, gpu.uuids), (pci, gpu.pcis), (model, gpu.models)):
            if value:
                names.add(value)
        if uuid:
            known.by_uuid[uuid] = gpu
        if pci:
            known.by_pci[gpu.host, pci] = gpu
        if index is not None:
            gpu.indices.add(index)
            # Two files of unknown machines may each have a GPU 0: an index joins within a host.
            same = known.by_index.setdefault((gpu.host, index), []) if gpu.host else []
            if gpu not in same:
                same.append(gpu)
    return known


def _sample_names(
    con: duckdb.DuckDBPyConnection, owners: Mapping[int, str | None]
) -> list[tuple[str | None, str | None, str | None, int | None]]:
    """Node, host, device_id and NVML index, as samples and events name GPUs."""
    rows = con.execute(
        "SELECT DISTINCT source_id, node, device_id, nvml_index FROM gpu_sample "
        "UNION SELECT DISTINCT source_id, NULL, device_id, NULL FROM log_event "
        "WHERE device_id IS NOT NULL AND code LIKE 'xid-%'"
    ).fetchall()
    found = {
        (node, canonical(node) if node else owners[source_id], device_id, index)
        for source_id, node, device_id, index in rows
        if source_id in owners
    }
    return sorted(
        found, key=lambda n: (n[1] or "", n[2] or "", -1 if n[3] is None else n[3], n[0] or "")
    )


def _find(known: _Known, host: str | None, device_id: str | None, index: int | None) -> _Gpu:
    whole = device_id.split("/", 1)[0] if device_id else None
    if whole is not None and whole.startswith(("GPU-", "MIG-")):
        return known.by_uuid.get(whole) or _Gpu(host, uuids={whole})
    if whole is not None:
        return known.by_pci.get((host, whole)) or _Gpu(host, pcis={whole})
    same = known.by_index.get((host, index), []) if index is not None else []
    if len(same) == 1:
        return same[0]
    return _Gpu(host, indices={index} if index is not None else set())


_Logged = tuple[int, str | None, str | None, int | None]
"""World rank, host, PCI address and NVML index of a GPU, as NCCL logged it."""


def _members(
    con: duckdb.DuckDBPyConnection, owners: Mapping[int, str | None]
) -> list[tuple[int | None, str | None, int | None, str | None, int | None]]:
    """World rank (where the log proves it), host, pid, PCI address and NVML index."""
    rows = con.execute(
        "SELECT DISTINCT source_id, world_rank, node, pid, pci, nvml_index FROM nccl_comm "
        "WHERE pci IS NOT NULL OR nvml_index IS NOT NULL"
    ).fetchall()
    return [
        (rank, canonical(node) if node else owners.get(source_id), pid, pci, index)
        for source_id, rank, node, pid, pci, index in rows
    ]


def _logged(
    members: Iterable[tuple[int | None, str | None, int | None, str | None, int | None]],
    ranks: Sequence[Mapping[str, Any]],
) -> list[_Logged]:
    """By the world rank that a log proves; else by the process, whose rank its trace states.

    A process is a host and a pid; one that drives several ranks tells nothing.
    """
    processes: dict[tuple[str, int], set[int]] = defaultdict(set)
    for row in ranks:
        if row.get("host") is not None and row.get("pid") is not None:
            processes[row["host"], int(row["pid"])].add(int(row["rank"]))
    found: list[_Logged] = []
    for rank, host, pid, pci, index in members:
        if rank is not None:
            found.append((int(rank), host, pci, index))
        elif host is not None and pid is not None:
            same = processes.get((host, int(pid)), set())
            found += [(r, host, pci, index) for r in same if len(same) == 1]
    return found


def _rank_of(
    gpu: _Gpu,
    by_device: Mapping[str, tuple[int, Mapping[str, Any]]],
    logged: Sequence[_Logged],
    on_host: Mapping[str, set[int]],
) -> tuple[int | None, str | None]:
    """The rank that uses the GPU, and where that is known from."""
    for uuid in sorted(gpu.uuids):
        if uuid in by_device:
            return by_device[uuid][0], "job_toml"
    for pci in sorted(gpu.pcis):
        if pci in by_device and by_device[pci][1]["host"] == gpu.host:
            return by_device[pci][0], "job_toml"
    found = {
        rank
        for rank, host, pci, index in logged
        if (host is None or host == gpu.host or rank in on_host.get(gpu.host or "", ()))
        and ((pci is not None and pci in gpu.pcis) or (pci is None and index in gpu.indices))
        and rank in on_host.get(gpu.host or "", {rank})
    }
    return (found.pop(), "log") if len(found) == 1 else (None, None)

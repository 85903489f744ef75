"""Which GPU a counter is about, and whose rank uses it.

Counter files name a GPU by UUID, PCI address or NVML index, each in its own way; one file that
states two of them joins the others. A rank's GPU is known from job.toml, or from NCCL's log, which
has PCI address and NVML index of each process: whose the process is the log proves, or the trace of
the same process (host and pid) states. An ordinal is never taken for an NVML index, and a local
rank neither: where nothing says whose a GPU is, nobody is named.

Which machine a file is of is known from its host. Files that name none are machines of their own:
each may have a GPU 0 and one at 1b:00.0. An address joins them only where none of them can be
another's neighbour: where no two of them were sampled at the same time. What was read before and
after (before/smi.txt and after/smi.txt) is of one machine, unless its GPUs differ.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from tracekit.derive.placement.hosts import canonical
from tracekit.derive.placement.sources import is_comparable, is_overlapping
from tracekit.ingest.traces.names import rank_of_name

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tracekit.derive.placement.sources import Source


class _Gpu(Struct, eq=False):
    """One physical GPU: every name that any file gives it."""

    host: str | None
    path: str | None = None
    """The file that alone speaks of it, where nothing names its machine."""
    uuids: set[str] = field(default_factory=set)
    pcis: set[str] = field(default_factory=set)
    indices: set[int] = field(default_factory=set)
    models: set[str] = field(default_factory=set)


def gpu_rows(
    con: duckdb.DuckDBPyConnection,
    samples: pa.Table,
    sources: Iterable[Source],
    ranks: Sequence[Mapping[str, Any]],
    attempts: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The rows of ``gpu``: one a name that the samples use (``Given.gpu_names``), for each attempt.

    ``gpu_id`` is the same for all names of one GPU: its UUID, else host and PCI address, else
    host and NVML index; with its file where nothing tells machines apart.
    """
    sources = list(sources)
    owners = {s.source_id: s.host for s in sources}
    sampled, addresses = _sample_names(con, samples, owners)
    paths = {s.source_id: s.path for s in sources}
    known = _Known(paths, _is_one_machine(addresses, sources), _twins(con, sources))
    _described(con, owners, known)
    members = _members(con, owners)
    of_the_whole = _of_the_whole(con, owners)
    numbers: list[int | None] = [int(a["attempt"]) for a in attempts] or [None]
    names = [(name, known.find(name)) for name in sampled]
    files_of = {gpu: file for (_, _, file, _, _), gpu in names if file is not None}
    ids = _ids([gpu for _, gpu in names])
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
        logged = _logged(members, [r for r in ranks if r["attempt"] == attempt]) or of_the_whole
        for (node, host, source_id, device_id, index), gpu in names:
            rank, source = _rank_of(gpu, by_device, logged, on_host)
            if rank is None and device_id is None and index is None and gpu in files_of:
                rank, source = _rank_in_name(paths[files_of[gpu]], attempt, ranks)
            rows.append(
                {
                    "attempt": attempt,
                    "node": node,
                    "host": host,
                    "own_source_id": source_id,
                    "device_id": device_id,
                    "nvml_index": index,
                    "gpu_id": ids[id(gpu)],
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


def _ids(gpus: Sequence[_Gpu]) -> dict[int, str]:
    """What each GPU is called: no two the same."""
    named: dict[str, list[_Gpu]] = defaultdict(list)
    for gpu in {id(g): g for g in gpus}.values():
        named[_id(gpu)].append(gpu)
    ids = {}
    for name, same in named.items():
        for gpu in same:
            is_clear = len(same) == 1 or gpu.path is None
            ids[id(gpu)] = name if is_clear else f"{name} of {gpu.path}"
    return ids


_Name = tuple[str | None, str | None, int | None, str | None, int | None]
"""Node, host, source_id (where no host is known, or nothing names the GPU), device_id and NVML
index, as samples and events name a GPU."""
_UUIDS = ("GPU-", "MIG-")
"""How a UUID begins; other names of a device are addresses."""
_Owner = str | int | None
"""A host; the source_id of a file whose host nobody knows; None: the one machine of all such."""


class _Known(Struct):
    """The GPUs that counter files describe, by each of their names."""

    paths: Mapping[int, str]
    is_one_machine: bool
    """Whether an address is one GPU in all files without a host."""
    twins: Mapping[int, int]
    """Of a file read after something the one read before, where they are of one machine."""
    by_uuid: dict[str, _Gpu] = field(default_factory=dict)
    by_pci: dict[tuple[_Owner, str], _Gpu] = field(default_factory=dict)
    by_index: dict[tuple[_Owner, int], list[_Gpu]] = field(default_factory=dict)
    others: dict[tuple[_Owner, int | None], _Gpu] = field(default_factory=dict)
    """Those that samples name by an index only, or not at all."""

    def owner(self, host: str | None, source_id: int | None) -> _Owner:
        """Whose GPUs a file speaks of."""
        return host if host is not None else self.twins.get(source_id or 0, source_id)

    def machine(self, owner: _Owner) -> _Owner:
        """Within what an address is one GPU."""
        return None if self.is_one_machine and isinstance(owner, int) else owner

    def new(self, owner: _Owner) -> _Gpu:
        """A GPU that no name means so far."""
        return _Gpu(None, self.paths[owner]) if isinstance(owner, int) else _Gpu(owner)

    def find(self, name: _Name) -> _Gpu:
        """The GPU that samples mean by a name."""
        _, host, source_id, device_id, index = name
        owner = self.owner(host, source_id)
        whole = device_id.split("/", 1)[0] if device_id else ""
        if whole.startswith(_UUIDS):
            gpu = self.by_uuid.get(whole) or self.by_uuid.setdefault(whole, _Gpu(host))
            gpu.uuids.add(whole)
            gpu.host = gpu.host or host
            return gpu
        if whole:
            key = (self.machine(owner), whole)
            gpu = self.by_pci.get(key) or self.by_pci.setdefault(key, self.new(owner))
            gpu.pcis.add(whole)
            return gpu
        same = self.by_index.get((owner, index), []) if index is not None else []
        if len(same) == 1:
            return same[0]
        if index is None and isinstance(source_id, int):
            # Another file of the same machine may speak of another GPU.
            return self.others.setdefault((source_id, None), _Gpu(host, self.paths[source_id]))
        gpu = self.others.get((owner, index)) or self.new(owner)
        gpu.indices |= {index} if index is not None else set()
        return self.others.setdefault((owner, index), gpu)


def _is_one_machine(addresses: Iterable[tuple[int, str]], sources: Iterable[Source]) -> bool:
    """Whether files without a host that sample GPUs by address may be of one machine.

    They are taken to be, as the parts of a log and the kernel's messages beside it are, unless two
    that name one address were written at the same time, or nobody knows when.
    """
    by_id = {s.source_id: s for s in sources}
    named: dict[str, list[Source]] = defaultdict(list)
    for source_id, pci in addresses:
        named[pci].append(by_id[source_id])
    for same in named.values():
        ordered = sorted(same, key=lambda s: (s.start_ns is not None, s.start_ns or 0, s.order))
        reach = ordered[0]
        for source in ordered[1:]:
            if not is_comparable(reach, source) or is_overlapping(reach, source):
                return False
            if (source.end_ns or 0) >= (reach.end_ns or 0):
                reach = source
    return True


_WHEN = re.compile(r"(?<![a-z])(?:(before|pre)|(after|post))(?![a-z])", re.I)


def _twins(con: duckdb.DuckDBPyConnection, sources: Iterable[Source]) -> dict[int, int]:
    """Files without a host whose paths differ in ``before`` and ``after`` alone: the later one's
    and the earlier one's number. One machine's, unless they overlap or call other GPUs by one name.
    """
    read: dict[str, dict[bool, list[Source]]] = defaultdict(lambda: defaultdict(list))
    for source in sources:
        said = [*_WHEN.finditer(source.path)] if source.host is None else []
        if len(said) == 1:
            read[_WHEN.sub("*", source.path)][said[0][1] is not None].append(source)
    pairs = {
        after.source_id: before.source_id
        for both in read.values()
        for before in both[True]
        for after in both[False]
        if len(both[True]) == len(both[False]) == 1
        and is_comparable(before, after)
        and (before.end_ns or 0) <= (after.start_ns or 0)
    }
    if not pairs:
        return {}
    rows = con.execute(
        "SELECT source_id, nvml_index, uuid, pci, model FROM device WHERE nvml_index IS NOT NULL"
    ).fetchall()
    called = {(source_id, index): names for source_id, index, *names in rows}
    return {
        after: before
        for after, before in pairs.items()
        if not any(
            a is not None and b is not None and a != b
            for (source_id, index), names in called.items()
            if source_id == after
            for a, b in zip(names, called.get((before, index), names), strict=True)
        )
    }


def _described(
    con: duckdb.DuckDBPyConnection, owners: Mapping[int, str | None], known: _Known
) -> None:
    """Joined over files by UUID, or host and PCI address; an index alone joins nothing."""
    rows = con.execute(
        "SELECT DISTINCT source_id, node, uuid, pci, nvml_index, model FROM device "
        "WHERE ordinal IS NULL ORDER BY source_id, uuid, pci, nvml_index, node, model"
    ).fetchall()
    # Those with an address first: an index is looked up among them.
    for source_id, node, uuid, pci, index, model in sorted(rows, key=lambda r: not (r[2] or r[3])):
        if source_id not in owners:
            continue
        host = canonical(node) if node else owners[source_id]
        owner = known.owner(host, source_id)
        gpu = known.by_uuid.get(uuid) if uuid else None
        gpu = gpu or (known.by_pci.get((known.machine(owner), pci)) if pci else None)
        if gpu is None and not uuid and not pci:
            same = known.by_index.get((owner, index), [])
            gpu = same[0] if len(same) == 1 else None
        gpu = gpu or known.new(owner)
        gpu.host = gpu.host or host
        for value, names in ((uuid, gpu.uuids), (pci, gpu.pcis), (model, gpu.models)):
            if value:
                names.add(value)
        if uuid:
            known.by_uuid[uuid] = gpu
        if pci:
            known.by_pci[known.machine(gpu.host or owner), pci] = gpu
        if index is not None:
            gpu.indices.add(index)
            # Two files of unknown machines may each have a GPU 0: an index joins within a machine.
            same = known.by_index.setdefault((gpu.host or owner, index), [])
            if gpu not in same:
                same.append(gpu)


def _sample_names(
    con: duckdb.DuckDBPyConnection, samples: pa.Table, owners: Mapping[int, str | None]
) -> tuple[list[_Name], set[tuple[int, str]]]:
    """How samples and events name GPUs; and which files without a host sample which addresses."""
    named = ("source_id", "node", "device_id", "nvml_index")
    sampled = zip(*(samples[name].to_pylist() for name in named), strict=True)
    logged = con.execute(
        # A log of several machines says in each line whose it is.
        "SELECT DISTINCT source_id, list_filter(fields, lambda f : starts_with(f, 'host='))"
        "[1][6:], device_id, NULL FROM log_event WHERE device_id IS NOT NULL AND code LIKE 'xid-%'"
    ).fetchall()
    rows = [*((*row, True) for row in sampled), *((*row, False) for row in logged)]
    names: set[_Name] = set()
    addresses: set[tuple[int, str]] = set()
    for source_id, node, device_id, index, is_sampled in rows:
        if source_id not in owners:
            continue
        host = canonical(node) if node else owners[source_id]
        is_own = host is None or (device_id is None and index is None)
        names.add((node, host, source_id if is_own else None, device_id, index))
        whole = device_id.split("/", 1)[0] if device_id else ""
        if host is None and is_sampled and whole and not whole.startswith(_UUIDS):
            addresses.add((source_id, whole))
    ordered = sorted(
        names,
        key=lambda n: (n[1] or "", n[3] or "", -1 if n[4] is None else n[4], n[0] or "", n[2] or 0),
    )
    return ordered, addresses


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
    logged: list[_Logged] = []
    for rank, host, pid, pci, index in members:
        if rank is not None:
            logged.append((int(rank), host, pci, index))
        elif host is not None and pid is not None:
            same = processes.get((host, int(pid)), set())
            logged += [(r, host, pci, index) for r in same if len(same) == 1]
    return logged


def _of_the_whole(
    con: duckdb.DuckDBPyConnection, owners: Mapping[int, str | None]
) -> list[_Logged]:
    """The same from the communicator of the whole job, where the logs show that it is that.

    Every communicator has all its members in the logs (so no part of the job is missing), and the
    largest holds every GPU that any of them has. Frameworks make that one of all ranks in order.
    """
    rows = con.execute(
        "SELECT DISTINCT source_id, node, comm_hash, group_rank, group_size, pci, nvml_index "
        "FROM nccl_comm"
    ).fetchall()
    members: dict[str, dict[int, set[tuple[str | None, str | None, int | None]]]] = {}
    sizes: dict[str, set[int]] = defaultdict(set)
    for source_id, node, comm, rank, size, pci, index in rows:
        if comm is None or rank is None or size is None or (pci is None and index is None):
            return []
        host = canonical(node) if node else owners.get(source_id)
        members.setdefault(comm, {}).setdefault(rank, set()).add((host, pci, index))
        sizes[comm].add(size)
    for comm, ranks in members.items():
        is_clear = len(sizes[comm]) == 1 and all(len(gpus) == 1 for gpus in ranks.values())
        size = max(sizes[comm])
        is_whole = len(ranks) == size and min(ranks) == 0 and max(ranks) == size - 1
        if not is_clear or not is_whole:
            return []
    every = {gpu for ranks in members.values() for gpus in ranks.values() for gpu in gpus}
    whole = [
        {rank: next(iter(gpus)) for rank, gpus in ranks.items()}
        for ranks in members.values()
        if len(ranks) == len(every)
    ]
    if not whole or any(w != whole[0] for w in whole) or len(set(whole[0].values())) < len(every):
        return []
    return [(rank, *gpu) for rank, gpu in sorted(whole[0].items())]


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
    ranks = {
        rank
        for rank, host, pci, index in logged
        if (host is None or host == gpu.host or rank in on_host.get(gpu.host or "", ()))
        and ((pci is not None and pci in gpu.pcis) or (pci is None and index in gpu.indices))
        and rank in on_host.get(gpu.host or "", {rank})
    }
    return (ranks.pop(), "log") if len(ranks) == 1 else (None, None)


def _rank_in_name(
    path: str, attempt: int | None, ranks: Sequence[Mapping[str, Any]]
) -> tuple[int | None, str | None]:
    """The rank that the name of a file of one GPU names (``rank3.csv``), where there is such."""
    rank = rank_of_name(re.split(r"[/!\\]", path)[-1])
    own = {int(r["rank"]) for r in ranks if r["attempt"] == attempt}
    return (rank, "name") if rank is not None and (not own or rank in own) else (None, None)

"""Which logs and counters are one job's: NCCL's and other records' own word for it.

Most of these files do not name their job, and files of one job may have nothing in common, so only
what cannot be one job is told apart:

- communicators of which every member is in the files, and no file has a member of both: whoever
  wrote the one never spoke to whoever wrote the other;
- other releases of NCCL without a common communicator: NCCL refuses to mix them;
- communicators of more ranks than the traces' world has;
- times that lie half a year apart, as for traces; and a day, where the hosts are others too.

Runs of nccl-tests, whole or broken off, measure machines and are no job: they are compared, and
contradict nobody. The kernel's messages go back to a machine's start, which says nothing of the
job's time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct, field

from tracekit.derive.placement import timer_jobs
from tracekit.derive.placement.attempts import MAX_JOB_GAP_NS, ambiguous, eras
from tracekit.derive.placement.hosts import canonical
from tracekit.derive.placement.sources import RANK_KINDS, USABLE, Source
from tracekit.derive.stage import relations
from tracekit.ingest.base import stated_host

if TYPE_CHECKING:
    from tracekit.derive.stage import Given

READS = (
    "comm_call", "comm_snapshot", "gpu_sample", "host_sample", "job_step", "nccl_comm",
    "nccl_event", "net_sample", "storage_sample",
)  # fmt: skip
"""The tables that are asked."""

MAX_HOST_GAP_NS = 86400 * 10**9
"""Counters of a job are taken on all its hosts at a time: files of other hosts whose times lie a
day apart are of different jobs. Of the same hosts they may be two looks at one."""

MAX_JOBS = 256
"""Jobs in one call; more are named and none can be chosen."""

_NODED = (
    "gpu_sample", "host_sample", "net_sample", "storage_sample", "comm_call", "comm_snapshot",
    "nccl_comm",
)  # fmt: skip
"""Tables whose rows name machines; the others' stand with their files."""
_SAMPLED = ("gpu_sample", "host_sample", "net_sample", "storage_sample")
_NAMES_IN = {"gpu_sample": "gpu_sample_name"}
"""Tables of which only the names in them are looked through (``Given.gpu_names``)."""
_MEMBER = "source_id, comm_hash, group_rank, group_size, nccl_version, node, pid"
_DATED = (*_SAMPLED, "comm_call", "comm_snapshot", "job_step")


class _Part(Struct, eq=False):
    """Files that are of one job for certain."""

    sources: list[Source] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    is_hosted: bool = True
    """Whether ``hosts`` are all."""
    pids: set[tuple[str, int]] = field(default_factory=set)
    versions: set[str] = field(default_factory=set)
    largest: int = 0
    """Ranks of its largest communicator."""
    is_closed: bool = False
    """Whether all members of all its communicators are in its files."""
    eras: set[int] = field(default_factory=set)
    days: set[int] = field(default_factory=set)

    def sign(self) -> _Sign:
        """What of it another job's may contradict."""
        return _Sign(
            self.is_closed,
            frozenset(self.versions if self.largest > 1 else ()),
            frozenset(self.eras),
            frozenset(self.days),
        )


class _Sign(NamedTuple):
    """What tells parts apart; many parts have the same."""

    is_closed: bool
    versions: frozenset[str]
    eras: frozenset[int]
    days: frozenset[int]


def choose(given: Given, sources: Sequence[Source]) -> None:
    """Leave out the logs and counters of other jobs than the one that is diagnosed.

    That is the traces' (a note says what is left out), else the one that ``given.attempt``
    numbers; without it AmbiguousInputError names the candidates.
    """
    used = [s for s in sources if s.is_used]
    is_timed = any(s.kind == timer_jobs.KIND for s in sources)
    logs = [
        s
        for s in sources
        if s.kind not in (*RANK_KINDS, timer_jobs.KIND) and s.status in USABLE and not s.is_left_out
    ]
    if len(logs) + len(used) < 2 or not logs or not set(READS) & set(given.filled):
        return
    benches = {row[0] for row in _rows(given, ["nccl_event"], "source_id", "code = 'bench'")}
    parts = _parts(given, logs, benches)
    mine = _Part(used)
    for source in used:
        if source.host_name:
            mine.pids |= {(canonical(source.host_name), pid) for pid in source.pids}
        mine.hosts |= {canonical(name) for name in (source.host, source.host_name) if name}
    _date([*parts, mine], [*_dated(given, [s for s in logs if s.source_id not in benches]), *used])
    if used or is_timed:
        _beside_traces(mine, parts, given.notes)
    else:
        _among_themselves(parts, given.attempt, given.notes)


def _rows(given: Given, tables: Sequence[str], columns: str, where: str = "true") -> list[Any]:
    """Different rows of the tables that hold any, together."""
    filled = [name for name in tables if name in given.filled]
    if not filled:
        return []
    brief = {_NAMES_IN[name]: given.gpu_names for name in filled if name in _NAMES_IN}
    text = " UNION ".join(
        f"SELECT DISTINCT {columns} FROM {name} WHERE {where}"  # noqa: S608 - our own words
        for name in (_NAMES_IN.get(name, name) for name in filled)
    )
    with relations(given.con, **brief):
        return given.con.execute(f"{text} ORDER BY ALL").fetchall()


def _dated(given: Given, logs: Sequence[Source]) -> list[Source]:
    """Files whose rows say when they were; a copied file's own date says nothing."""
    if not eras(logs):
        return []
    undated = _rows(given, _SAMPLED, "source_id", "time_source = 'mtime'")
    telling = set(_rows(given, _DATED, "source_id")) - set(undated)
    return [s for s in logs if (s.source_id,) in telling]


def _parts(given: Given, logs: Sequence[Source], benches: set[int]) -> list[_Part]:
    """The files, joined where they share a communicator, their bytes or the word of job.toml."""
    leader = {s.source_id: s.source_id for s in logs}

    def find(source_id: int) -> int:
        while leader[source_id] != source_id:
            leader[source_id] = leader[leader[source_id]]
            source_id = leader[source_id]
        return source_id

    members = [row for row in _rows(given, ["nccl_comm"], _MEMBER) if row[0] in leader]
    records = _rows(given, ["comm_call", "comm_snapshot"], "source_id, comm_hash")
    first: dict[object, int] = {}
    keys: list[tuple[int, object]] = [
        (source_id, ("comm", comm))
        for source_id, comm, *_ in (*members, *records)
        if comm is not None and source_id in leader
    ]
    keys += [(s.source_id, ("bytes", s.sha256)) for s in logs if s.sha256]
    keys += [(s.source_id, ("given", s.forced_attempt)) for s in logs if s.forced_attempt]
    for source_id, key in keys:
        leader[find(source_id)] = find(first.setdefault(key, source_id))
    parts: dict[int, _Part] = defaultdict(_Part)
    nodes: dict[int, list[str]] = defaultdict(list)
    for source_id, node in _rows(given, _NODED, "source_id, node"):
        nodes[source_id] += [node] if node else []
    for source in logs:
        part = parts[find(source.source_id)]
        part.sources.append(source)
        named = {canonical(n) for n in nodes.get(source.source_id, ())}
        host = source.host or stated_host(source.host_name)
        named |= {canonical(host)} if host else set()
        part.hosts |= named
        part.is_hosted = part.is_hosted and bool(named)
    seen: dict[tuple[int, object], set[int]] = defaultdict(set)
    sizes: dict[tuple[int, object], set[int | None]] = defaultdict(set)
    for source_id, comm, rank, size, version, node, pid in members:
        part = parts[find(source_id)]
        if source_id in benches:
            continue
        if version is not None:
            part.versions.add(version)
        if node is not None and pid is not None:
            part.pids.add((canonical(node), int(pid)))
        # Old releases log no id: of two files such communicators are never the same.
        key = (find(source_id), comm if comm is not None else (source_id, size))
        sizes[key].add(size)
        if rank is not None:
            seen[key].add(rank)
    whole: dict[int, bool] = {}
    for key, stated in sizes.items():
        size = next(iter(stated)) if len(stated) == 1 else None
        whole[key[0]] = whole.get(key[0], True) and size is not None and len(seen[key]) == size
        parts[key[0]].largest = max(parts[key[0]].largest, size or 0)
    for key, is_whole in whole.items():
        # One process that talks to itself is whole in every job.
        parts[key].is_closed = is_whole and parts[key].largest > 1
    return list(parts.values())


def _date(parts: Sequence[_Part], dated: Sequence[Source]) -> None:
    """Number the times of the parts: by half a year, and by a day where the hosts are others."""
    owner = {id(s): part for part in parts for s in part.sources}
    for index, era in enumerate(eras(dated)):
        for source in era:
            owner[id(source)].eras.add(index)
    days = [{owner[id(s)] for s in day} for day in eras(dated, MAX_HOST_GAP_NS)]
    hosts = [set().union(*(part.hosts for part in day)) for day in days]
    for index, day in enumerate(days):
        others = set().union(*(h for i, h in enumerate(hosts) if i != index))
        # A day one of whose machines nobody knows may be another day's as well.
        if all(p.is_hosted for p in day) and hosts[index].isdisjoint(others):
            for part in day:
                part.days.add(index)


def _clash(a: _Sign, b: _Sign) -> str | None:
    """Why two parts cannot be of one job; None where they can."""
    if a.is_closed and b.is_closed:
        return "NCCL logs show whole jobs that share no communicator"
    if _differ(a.versions, b.versions):
        return "NCCL logs name other releases and share no communicator"
    if _differ(a.eras, b.eras):
        return f"more than {MAX_JOB_GAP_NS // (86400 * 10**9)} days lie between them"
    if _differ(a.days, b.days):
        return "they are of other hosts, and more than a day lies between them"
    return None


def _differ(a: frozenset[Any], b: frozenset[Any]) -> bool:
    return bool(a and b and a.isdisjoint(b))


def _jobs(parts: Sequence[_Part]) -> tuple[list[list[_Part]], str | None]:
    """The candidates and why they are several; what may be of any of them is in none."""
    signs: list[set[_Sign]] = []
    first_fit: list[int] = []
    why: str | None = None
    for part in parts:
        sign = part.sign()
        clashes = [next((c for o in job if (c := _clash(sign, o))), None) for job in signs]
        why = next((c for c in clashes if c), why)
        first_fit.append(clashes.index(None) if None in clashes else len(signs))
        if first_fit[-1] < len(signs):
            signs[first_fit[-1]].add(sign)
        else:
            signs.append({sign})
        if len(signs) > MAX_JOBS:
            break
    if len(signs) < 2:
        return [], None
    # What contradicts nobody went to the first; now it goes where hosts or folders say, if they do.
    jobs: list[list[_Part]] = [[] for _ in signs]
    rest = []
    for part, index in zip(parts, first_fit, strict=False):
        others = (o for i, job in enumerate(signs) if i != index for o in job)
        if any(_clash(part.sign(), other) for other in others):
            jobs[index].append(part)
        else:
            rest.append(part)
    for part in rest:
        alike = [_likeness(part, job) for job in jobs]
        if alike.count(max(alike)) == 1:
            jobs[alike.index(max(alike))].append(part)
    return jobs, why


def _likeness(part: _Part, job: Iterable[_Part]) -> tuple[bool, bool]:
    folders = {s.folder for s in part.sources}
    return (
        any(part.hosts & other.hosts for other in job),
        any(folders & {s.folder for s in other.sources} for other in job),
    )


def _among_themselves(parts: Sequence[_Part], attempt: int | None, notes: list[str]) -> None:
    jobs, why = _jobs(parts)
    if why is None:
        return
    files = [sorted((s for p in job for s in p.sources), key=lambda s: s.order) for job in jobs]
    files.sort(key=lambda job: job[0].order)
    for number, job in enumerate(files, 1):
        for source in job:
            source.attempt = number
            source.is_left_out = number != attempt
    if attempt is None or not 1 <= attempt <= len(files) <= MAX_JOBS:
        raise ambiguous(why, [[job] for job in files])
    others = [s for job in files for s in job if s.is_left_out]
    more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
    notes.append(f"{others[0].path}{more} is of another job and left out: {why}")


def _beside_traces(mine: _Part, parts: Sequence[_Part], notes: list[str]) -> None:
    """The traces are the job: what contradicts them is of another."""
    worlds = {s.world_size for s in mine.sources if s.world_size is not None}
    parts_left = []
    for part in parts:
        clash = _clash(mine.sign(), part.sign())
        if worlds and part.largest > max(worlds):
            clash = f"a communicator of {part.largest} ranks, and the traces' job has {max(worlds)}"
        if clash is None:
            parts_left.append(part)
        else:
            _leave_out(part, clash, notes)
    jobs, why = _jobs(parts_left)
    if why is None:
        return
    alike = [
        (any(mine.pids & p.pids for p in job), any(mine.hosts & p.hosts for p in job))
        for job in jobs
    ]
    is_clear = alike.count(max(alike)) == 1
    for job, likeness in zip(jobs, alike, strict=True):
        if not is_clear or likeness != max(alike):
            for part in job:
                _leave_out(part, f"{why}, and only one job can be the traces'", notes)


def _leave_out(part: _Part, why: str, notes: list[str]) -> None:
    for source in part.sources:
        source.is_left_out = True
    more = f" (and {len(part.sources) - 1} more)" if len(part.sources) > 1 else ""
    notes.append(f"{part.sources[0].path}{more} is left out as another job's: {why}")

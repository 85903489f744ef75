"""Which port leads to which host and rank: the job description first, then what the files say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tracekit.derive.placement.hosts import canonical

if TYPE_CHECKING:
    import duckdb

    from tracekit.derive.placement.sources import Source
    from tracekit.job import JobDescription

_T = TypeVar("_T")


class _End(NamedTuple):
    """The host at the far end of a port (or the port's own host)."""

    host: str
    host_source: str
    nic: str | None = None
    rank: int | None = None


def port_rows(
    con: duckdb.DuckDBPyConnection,
    sources: Iterable[Source],
    ranks: Sequence[Mapping[str, Any]],
    attempts: Sequence[Mapping[str, Any]],
    job: JobDescription | None,
) -> list[dict[str, Any]]:
    """The rows of ``port``: each port of net_sample, for each attempt.

    A port that nobody maps keeps its row with a null host: that it leads nowhere known is a fact
    that the report states. A node that is itself a host of the job owns its ports.
    """
    owners = {s.source_id: s for s in sources}
    seen: dict[tuple[str | None, str], str | None] = {}
    given = _given(job)
    spelled: dict[tuple[str | None, str], set[_End | None]] = defaultdict(set)
    listed = con.execute(
        "SELECT DISTINCT node, port, source_id, node_source FROM net_sample WHERE port IS NOT NULL"
    ).fetchall()
    for node, port, source_id, node_source in sorted(listed, key=str):
        if source_id not in owners:
            continue
        owner = owners[source_id]
        seen.setdefault((node if node is not None else owner.host, port), owner.host_source)
        if node is not None and node_source == "name":
            spelled[node, port].add(_spelled(node, port, owner.path, given))
    stated = _stated(con, owners, {canonical(r["host"]) for r in ranks if r["host"]})
    numbers: list[int | None] = [int(a["attempt"]) for a in attempts] or [None]
    rows = []
    for attempt in numbers:
        on_host: dict[str, list[int]] = defaultdict(list)
        for rank in ranks:
            if rank["attempt"] == attempt and rank["host"] is not None:
                on_host[rank["host"]].append(int(rank["rank"]))
        for (node, port), node_source in seen.items():
            end = (
                _far_end(node, port, given)
                or _only(spelled.get((node, port), ()))
                or _far_end(node, port, stated)
            )
            is_own = end is None and node is not None and canonical(node) in on_host
            if is_own and node is not None:
                end = _End(canonical(node), node_source or "name")
            elif end is not None:
                is_own = _own_name(node, port, end, given, stated) == end.host
            members = sorted(on_host.get(end.host, ())) if end else []
            rank_of = end.rank if end and end.rank is not None else None
            if rank_of is None and len(members) == 1:
                rank_of = members[0]
            rows.append(
                {
                    "attempt": attempt,
                    "node": node,
                    "port": port,
                    "host": end.host if end else None,
                    "host_source": end.host_source if end else None,
                    "nic": end.nic if end else None,
                    "rank": rank_of,
                    "ranks": members or None,
                    "is_on_host": is_own if end else None,
                }
            )
    return sorted(rows, key=lambda r: (r["attempt"] or 0, r["node"] or "", r["port"]))


_Ends = Mapping[tuple[str | None, str], _End]


def _far_end(node: str | None, port: str, ends: _Ends) -> _End | None:
    """By node and port; by the port alone where the samples do not name their node."""
    if node is not None:
        return ends.get((canonical(node), port))
    named = {end for (_, name), end in ends.items() if name == port}
    return named.pop() if len(named) == 1 else None


def _own_name(node: str | None, port: str, end: _End, *said: _Ends) -> str | None:
    """The machine that counts; where the samples do not name it, whose port leads to this end."""
    if node is not None:
        return canonical(node)
    return _only({n for ends in said for (n, at), e in ends.items() if (at, e) == (port, end)})


def _spelled(node: str, port: str, path: str, given: _Ends) -> _End | None:
    """The end of a port whose node is what begins a file's name, where the description's node is
    more of that name: nobody can tell from ``leaf01-of-x.txt`` where the node's name ends."""
    parts = [part.lower() for part in path.replace("\\", "/").split("/")]
    ends = {
        end
        for (name, at), end in given.items()
        if name is not None
        and at == port
        and len(name) > len(node)
        and name.startswith(canonical(node))
        and any(p.startswith(name) and not p[len(name) : len(name) + 1].isalnum() for p in parts)
    }
    return _only(ends)


def _only(ends: Collection[_T | None]) -> _T | None:
    """The one there is; None of none and of several."""
    return next(iter(ends)) if len(ends) == 1 else None


def _given(job: JobDescription | None) -> _Ends:
    if job is None:
        return {}
    hosts = {e.rank: canonical(e.host) for e in job.rank if e.host}
    ends: dict[tuple[str | None, str], _End] = {}
    for entry in job.port:
        host = canonical(entry.host) if entry.host else hosts.get(entry.rank or 0)
        if entry.host is None and entry.rank is None:
            continue
        if host is not None:
            ends[canonical(entry.node), entry.port] = _End(host, "job_toml", entry.nic, entry.rank)
    return ends


def _stated(
    con: duckdb.DuckDBPyConnection, known: Mapping[int, Source], hosts: Collection[str]
) -> _Ends:
    """What LLDP, port maps and collectors say; a port that is said to lead to two hosts is out.

    A host's neighbour is a switch, and so is a leaf's at an uplink: a neighbour's name counts only
    where it is one of ``hosts`` or of a machine whose GPUs were sampled.
    """
    ends: dict[tuple[str | None, str], set[_End]] = defaultdict(set)
    rows = con.execute(
        "SELECT source_id, node, port, peer_host, nic, link_source, "
        "coalesce(is_peer_host, TRUE) FROM link WHERE port IS NOT NULL AND peer_host IS NOT NULL"
    ).fetchall()
    machines = set(hosts)
    if any(not is_host and canonical(host) not in hosts for _, _, _, host, *_, is_host in rows):
        sampled = con.execute("SELECT DISTINCT source_id, node FROM gpu_sample").fetchall()
        names = [node or known[at].host for at, node in sampled if at in known]
        machines.update(canonical(name) for name in names if name)
    for source_id, node, port, host, nic, source, is_host in rows:
        if source_id in known and (is_host or canonical(host) in machines):
            key = (canonical(node) if node is not None else None, port)
            ends[key].add(_End(canonical(host), source or "file", nic))
    return {key: next(iter(far_ends)) for key, far_ends in ends.items() if len(far_ends) == 1}

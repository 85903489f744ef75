"""``derive``: from the source tables of a run to its derived tables."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tracekit.correction import Correction
from tracekit.derive import (
    activity,
    communicators,
    correlation,
    counter_clock,
    gpus,
    hosts,
    periods,
    ports,
    ranks,
    timer_jobs,
)
from tracekit.derive import attempts as at
from tracekit.derive import clocks as clock_offsets
from tracekit.derive.calls import read_calls
from tracekit.derive.infer import contradictions
from tracekit.derive.layout import DIMENSIONS, Kind, coordinates, group_kinds
from tracekit.derive.matching import group_table, match, match_table, read_groups
from tracekit.derive.pipeline import derive_pipeline, fill_coordinates
from tracekit.derive.readings import Clocks
from tracekit.derive.sources import RANK_KINDS, USABLE, Source, read_sources
from tracekit.derive.steps import derive_steps
from tracekit.schema import REGISTRY_VERSION, table
from tracekit.values import MAX_RANKS

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tracekit.job import JobDescription

READS = (
    "annotation",
    "collective",
    "device",
    "gpu_op",
    "gpu_sample",
    "host_op",
    "link",
    "log_event",
    "nccl_comm",
    "net_sample",
    "pipeline_timer",
    "process",
    "process_group",
    "source",
)
"""The source tables that ``derive`` reads."""

_ENCODED = {"cuda_runtime": (1000, 10), "hip_runtime": (10_000_000, 100_000)}
"""Keys whose runtimes state a version as one number, and what its major and minor count."""

_VERSION_KEYS = {
    "torch": "torch_version",
    "pytorch": "torch_version",
    "cuda": "cuda_version",
    "cuda_runtime": "cuda_version",
    "rocm": "cuda_version",
    "hip": "cuda_version",
    "hip_runtime": "cuda_version",
    "nccl": "nccl_version",
    "rccl": "nccl_version",
    "driver": "driver_version",
    "framework": "framework",
}


def derive(
    con: duckdb.DuckDBPyConnection,
    job: JobDescription | None = None,
    *,
    attempt: int | None = None,
    window_ns: tuple[int | None, int | None] | None = None,
    notes: list[str] | None = None,
    filled: Collection[str] = READS,
    folders: Mapping[int, str] | None = None,
) -> dict[str, pa.Table]:
    """The derived tables of a run, each with exactly the registry's stored columns and types.

    ``con`` holds the source tables that ``READS`` names (stored columns only), possibly empty.
    Tables that ``filled`` does not name are known to be empty: what needs their rows is not asked.
    ``folders`` says by source what its relative path is relative to (default: where we are).
    ``attempt`` chooses among candidates where the files cannot be one attempt; ``window_ns``
    (start, end; either may be None; ns on the files' own clocks) leaves out the traces that it
    does not touch. Traces that are left out, and second copies of one, have no row in
    ``source_context``: no view shows their rows. What a reader of a report should know is
    appended to ``notes``, in words.

    Raises AmbiguousInputError where the files cannot be one attempt of one job, naming the
    candidates.
    """
    import pyarrow as pa

    remarks = notes if notes is not None else []
    sources = read_sources(con)
    if "device" in filled:
        _apply_devices(con, sources)
    remarks += _not_believed(sources)
    ranks.apply_job(sources, job, remarks, folders or {})
    _choose_used(sources, window_ns, remarks)
    found = _place(sources, attempt, remarks)
    timers = None
    if "pipeline_timer" in filled:
        timers = timer_jobs.choose(con, sources, attempt)
    sources = [s for s in sources if not s.is_left_out]
    aliases = hosts.resolve(sources, job, remarks)
    clocks = hosts.assign_clocks(sources, job)
    used = [s for s in sources if s.is_used]
    attempt_rows = [_run_row(a, job, remarks) for a in found]
    context = _step_context(used)
    worlds = {row["attempt"]: row["world_size"] for row in attempt_rows}
    groups = read_groups(con, context) if "process_group" in filled else {}
    hashed = communicators.resolve(con, context, groups)
    groups = {a: [hashed.applied(a, g) for g in listed] for a, listed in groups.items()}
    matched = match(read_calls(con, context, hashed.table()), worlds, groups)
    steps = derive_steps(con, context)
    inferred = periods.infer_steps(con, context, steps, matched)
    if inferred is not None:
        steps = pa.concat_tables([steps, inferred])
        matched.calls = matched.calls.with_steps(periods.call_steps(matched, inferred))
    aligned = clock_offsets.alignments(matched, used)
    offsets = {key: alignment.offsets for key, alignment in aligned.items()}
    corrections = clock_offsets.corrections(offsets, sources)
    matched.calls = matched.calls.moved(corrections)
    errors = {o.clock_id: o.error_ns or 0 for listed in offsets.values() for o in listed}
    sizes = _sizes(job)
    kinds = _not_contradicted(group_kinds(matched, sizes), sizes)
    rank_rows = _rank_rows(used, job)
    coordinates(rank_rows, matched, kinds)
    matches = match_table(matched, errors)
    has_messages = not {"send", "recv"}.isdisjoint(matched.calls.op_names)
    operations = derive_pipeline(
        con,
        context,
        steps,
        job,
        remarks,
        rank_rows,
        corrections,
        matches if has_messages else None,
        filled,
        has_messages,
        timers,
    )
    fill_coordinates(rank_rows, operations)
    rows: dict[str, list[dict[str, Any]]] = {
        "source_context": [
            _context_row(s, corrections.get(s.source_id, Correction()))
            for s in sorted(sources, key=lambda s: s.source_id)
        ],
        "rank": rank_rows,
        "host": hosts.host_rows(sources),
        "host_alias": aliases,
        "clock": clocks,
        "clock_offset": clock_offsets.offset_rows(offsets, used),
        "clock_pair": clock_offsets.pair_rows(aligned, matched),
        "run": attempt_rows,
    }
    rows |= {name: [] for name in ("gpu", "port", "activity_period", "activity_step")}
    rows |= {name: [] for name in ("counter_step", "network_correlation", "counter_clock")}
    if "gpu_sample" in filled or "log_event" in filled:
        rows["gpu"] = gpus.gpu_rows(con, sources, rank_rows, attempt_rows)
    if "net_sample" in filled:
        rows["port"] = ports.port_rows(con, sources, rank_rows, attempt_rows, job)
    moved_table = clock_offsets.moved_steps(steps, corrections)
    host_of = {(r["attempt"], r["rank"]): r["host"] for r in rank_rows}
    epoch = {c["clock_id"] for c in clocks if c["basis"] == "epoch"}
    hosts_of = {s.source_id: s.host for s in sources if s.clock_id in epoch}
    times = Clocks({s: c for s, c in corrections.items() if s in hosts_of}, hosts_of)
    if not used and "gpu_sample" in filled:
        rows |= activity.activity_tables(con, times)
    if "net_sample" in filled:
        rows |= correlation.counter_tables(
            con,
            times,
            moved_table,
            rows["port"],
            lambda origin_ns: counter_clock.traffic(matched, host_of, origin_ns),
            rows["activity_step"],
        )
    remarks += [counter_clock.remark(r) for r in rows["counter_clock"] if r["verdict"] == "off"]
    tables = {name: _arrow(name, content) for name, content in rows.items()}
    tables["collective_match"] = matches
    tables["comm_group"] = group_table(matched, kinds)
    tables["pipeline_op"] = operations
    tables["step"] = moved_table
    if job is not None:
        remarks += contradictions(con, tables, job)
    return tables


def _arrow(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    import pyarrow as pa

    schema = table(name).arrow_schema()
    return pa.table([pa.array([r.get(f.name) for r in rows], f.type) for f in schema], schema)


def _not_contradicted(kinds: dict[str, Kind], sizes: dict[str, int]) -> dict[str, Kind]:
    """The kinds of groups, less those guessed from behaviour that the job does not have.

    Where dp is 1, an all-reduce of two stages' embeddings is nobody's data parallelism.
    """
    absent = {d for d in ("tp", "dp", "ep") if sizes.get(d) == 1}
    return {g: k for g, k in kinds.items() if k[1] != "behaviour" or k[0] not in absent}


def _step_context(used: list[Source]) -> pa.Table:
    import pyarrow as pa

    columns = ("source_id", "attempt", "rank", "capture_id", "clock_id")
    return pa.table({c: pa.array([getattr(s, c) for s in used], pa.int32()) for c in columns})


# --- which sources count, and where they belong -------------------------------------------------


def _not_believed(sources: Iterable[Source]) -> list[str]:
    claims = [s for s in sources if s.claimed_world is not None]
    if not claims:
        return []
    more = f" and {len(claims) - 1} more" if len(claims) > 1 else ""
    return [
        f"{claims[0].path}{more}: a world of {claims[0].claimed_world:,} ranks is not believed "
        f"(limit {MAX_RANKS:,})"
    ]


def _choose_used(
    sources: list[Source], window_ns: tuple[int | None, int | None] | None, notes: list[str]
) -> None:
    """Mark the ranks' own traces that are usable, selected, and given once."""
    seen: dict[str, Source] = {}
    for source in sources:
        if source.kind not in RANK_KINDS or source.status not in USABLE:
            continue
        if window_ns is not None and not _touches(source, window_ns):
            source.is_left_out = True
            continue
        twin = seen.setdefault(source.sha256, source) if source.sha256 else source
        if twin is source:
            source.is_used = True
        else:
            source.is_left_out = True
            notes.append(f"{source.path} holds the same bytes as {twin.path}: counted once")
    _leave_out_other_exports(sources, notes)


def _leave_out_other_exports(sources: list[Source], notes: list[str]) -> None:
    """Of several exports of one capture, all but the one that holds most.

    A report may be exported more than once, with payloads and without: the same process began at
    the same nanosecond. Equal pids alone are equal in every container.
    """
    same: dict[tuple[object, ...], list[Source]] = defaultdict(list)
    for source in sources:
        if source.is_used and source.kind == "nsys" and source.pids and source.start_ns:
            same[source.host_name, source.pids, source.start_ns].append(source)
    for group in same.values():
        best = min(
            group,
            key=lambda s: (
                s.status != "ok",
                s.file_rank is None,
                s.world_size is None,
                -(s.rows_count or 0),
                s.order,
            ),
        )
        for source in group:
            if source is not best:
                source.is_used, source.is_left_out = False, True
                notes.append(
                    f"{source.path} is another export of the capture in {best.path}: counted once"
                )


def _touches(source: Source, window_ns: tuple[int | None, int | None]) -> bool:
    start, end = window_ns
    if source.start_ns is None or source.end_ns is None:
        return False
    return (end is None or source.start_ns <= end) and (start is None or source.end_ns >= start)


def _place(sources: list[Source], attempt: int | None, notes: list[str]) -> list[list[at.Group]]:
    """Give the used sources their attempts and captures; returns the attempts."""
    groups: dict[int | None, at.Group] = defaultdict(list)
    for source in sources:
        if source.is_used:
            groups[source.forced_attempt].append(source)
        else:
            source.attempt = source.forced_attempt
    why: str | None = None
    broken: dict[int, str] = {}
    placed: list[tuple[int | None, list[list[at.Group]]]] = []
    for forced, group in sorted(groups.items(), key=lambda g: (g[0] is None, g[0] or 0)):
        parts = [group] if forced is not None else at.partition(group)
        if len(parts) > 1:
            why = at.conflict(group)
        for part in parts:
            clash = at.conflict(part, is_given=forced is not None)
            if clash is not None:
                broken[part[0].source_id] = clash
                placed.append((forced, [[part]]))
                continue
            ranks.assign_missing(part, notes)
            captures = at.captures(part)
            placed.append((forced, [captures] if forced else at.split_attempts(captures)))
    found = at.number_attempts(placed)
    chosen = found if why is None else [a for a in found if a[0][0].attempt == attempt]
    if not chosen and why is not None:
        raise at.ambiguous(why, found)
    for each in chosen:
        if each[0][0].source_id in broken:
            raise at.ambiguous(broken[each[0][0].source_id], [each])
    if why is None and len(found) > 1:
        notes.append(
            f"{len(found)} attempts: between captures ranks became other processes or moved to "
            "other hosts; nothing is compared across them"
        )
    for source in (s for a in found if a not in chosen for c in a for s in c):
        source.is_used, source.is_left_out = False, True
    return chosen


def _context_row(source: Source, correction: Correction) -> dict[str, Any]:
    return {
        "source_id": source.source_id,
        "attempt": source.attempt,
        "capture_id": source.capture_id,
        "clock_id": source.clock_id,
        "rank": source.rank,
        "rank_source": source.rank_source,
        "host": source.host,
        "host_source": source.host_source,
        **correction._asdict(),
    }


# --- ranks and runs -----------------------------------------------------------------------------


def _apply_devices(con: duckdb.DuckDBPyConnection, sources: list[Source]) -> None:
    """Per source: the physical id and the model of the one device that it uses.

    The id is null where several are used; the model also where they differ. A source that marks
    no device as used has the model that all its devices share, and the id if it has but one.
    """
    rows = con.execute(
        "SELECT source_id, ordinal, coalesce(uuid, pci), model, is_used FROM device"
    ).fetchall()
    listed: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for source_id, *device in rows:
        listed[source_id].append(tuple(device))
    for source in sources:
        devices = listed.get(source.source_id, [])
        devices = [d for d in devices if d[3]] or devices
        ordinals, ids, models = ({d[i] for d in devices} - {None} for i in range(3))
        source.device_id = min(ids, default=None) if len(ordinals) == 1 else None
        source.gpu_model = models.pop() if len(models) == 1 else None


def _sizes(job: JobDescription | None) -> dict[str, int]:
    """Sizes of the parallel dimensions that the job description gives."""
    if job is None:
        return {}
    given = {name: getattr(job.parallelism, name) for name in DIMENSIONS}
    return {name: size for name, size in given.items() if size is not None}


def _rank_rows(used: list[Source], job: JobDescription | None) -> list[dict[str, Any]]:
    given = {e.rank: e.device for e in job.rank if e.device} if job is not None else {}
    members: dict[tuple[int, int], list[Source]] = defaultdict(list)
    for source in used:
        members[source.attempt or 0, source.rank or 0].append(source)
    rows = []
    for (attempt, rank), group in sorted(members.items()):
        group.sort(key=lambda s: (s.capture_id or 0, s.order))
        first = group[0]
        pids = frozenset().union(*(s.pids for s in group))
        local = {s.local_rank for s in group if s.local_rank is not None}
        rows.append(
            {
                "attempt": attempt,
                "rank": rank,
                "rank_source": first.rank_source,
                "source_id": first.source_id,
                "pid": next(iter(pids)) if len(pids) == 1 else None,
                "host": first.host,
                "host_source": first.host_source,
                "local_rank": local.pop() if len(local) == 1 else None,
                "device_id": given.get(rank, first.device_id),
                "device_model": first.gpu_model,
                "captures_count": len(group),
            }
        )
    return rows


def _run_row(
    captures: list[at.Group],
    job: JobDescription | None,
    notes: list[str],
) -> dict[str, Any]:
    members = sorted((s for c in captures for s in c), key=lambda s: s.order)
    world = {s.world_size for s in members if s.world_size is not None}
    names = {s.job_name for s in members if s.job_name}
    models = {s.gpu_model for s in members}
    start, end = _extent(members)
    row: dict[str, Any] = {
        "attempt": members[0].attempt,
        "job_name": (job.name if job else None) or (names.pop() if len(names) == 1 else None),
        "job_id": job.id if job else None,
        "start_ns": start,
        "end_ns": end,
        "world_size": min(world, default=None),
        "world_size_source": "file" if world else None,
        "ranks_count": len({s.rank for s in members}),
        "gpu_model": models.pop() if len(models) == 1 else None,
        "registry_version": REGISTRY_VERSION,
        **_versions(members, notes),
    }
    if job is not None and job.world_size is not None:
        if world and job.world_size not in world:
            notes.append(
                f"job description: world_size {job.world_size}, the traces state {min(world)}"
            )
        row |= {"world_size": job.world_size, "world_size_source": "job_toml"}
    if job is not None and job.framework is not None:
        row["framework"] = job.framework
    row["signature"] = _signature(row, job)
    return row


def _extent(members: Iterable[Source]) -> tuple[int | None, int | None]:
    """First start and last end, of windows that share a zero."""
    timed = [s for s in members if s.start_ns is not None and s.end_ns is not None]
    epoch = [s for s in timed if s.time_basis == "epoch"]
    if not epoch and len({s.clock_id for s in timed}) > 1:
        return None, None
    chosen = epoch or timed
    return (
        min((s.start_ns for s in chosen if s.start_ns is not None), default=None),
        max((s.end_ns for s in chosen if s.end_ns is not None), default=None),
    )


def _versions(members: Iterable[Source], notes: list[str]) -> dict[str, str | None]:
    stated: dict[str, set[str]] = defaultdict(set)
    for source in members:
        for item in source.versions:
            key, _, value = item.partition("=")
            key, value = key.strip().lower().removesuffix("_version"), value.strip()
            column = _VERSION_KEYS.get(key)
            if key in _ENCODED and value.isdecimal():
                major, minor = _ENCODED[key]
                value = f"{int(value) // major}.{int(value) % major // minor}"
            if column and value and value.lower() != "unknown":
                stated[column].add(value)
    found: dict[str, str | None] = {}
    for column, values in sorted(stated.items()):
        found[column] = next(iter(values)) if len(values) == 1 else None
        if len(values) > 1:
            notes.append(f"the traces disagree on {column}: {', '.join(sorted(values)[:4])}")
    return found


def _signature(row: dict[str, Any], job: JobDescription | None) -> str:
    """Hash of what makes two runs comparable: layout, model, batch, size, GPU."""
    facts: dict[str, object] = {"world_size": row["world_size"], "gpu": row["gpu_model"]}
    if job is not None:
        for section in (job.parallelism, job.schedule, job.model, job.batch):
            facts[type(section).__name__] = repr(section)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

"""``derive``: from the source tables of a run to its derived tables, stage by stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from tracekit.correction import Correction
from tracekit.derive import (
    activity,
    communicators,
    correlation,
    counter_clock,
    gpu_summary,
    gpus,
    history,
    inferred_steps,
    step_numbers,
)
from tracekit.derive import clocks as clock_offsets
from tracekit.derive import ports as port_ends
from tracekit.derive.calls import read_calls
from tracekit.derive.infer import contradictions
from tracekit.derive.layout import DIMENSIONS, Kind, coordinates, group_kinds
from tracekit.derive.matching import (
    Matched,
    Numbering,
    group_table,
    match,
    match_table,
    read_groups,
)
from tracekit.derive.pipeline import derive_pipeline, fill_coordinates
from tracekit.derive.placement import log_jobs
from tracekit.derive.placement.place import Placed, place
from tracekit.derive.placement.sources import Source
from tracekit.derive.readings import Clocks
from tracekit.derive.stage import Done, Given, Stage, arrow
from tracekit.derive.steps import derive_steps
from tracekit.schema import table

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tracekit.job import JobDescription


class Called(Struct, frozen=True):
    """Which calls are one collective, on their files' own clocks."""

    matched: Matched


def match_calls(given: Given, done: Done) -> Called:
    """The calls of collectives, matched over ranks."""
    placed = done.of(Placed)
    listed = read_groups(given.con, placed.context) if "process_group" in given.filled else {}
    hashed = communicators.resolve(given.con, placed.context, listed)
    groups = {a: [hashed.applied(a, g) for g in known] for a, known in listed.items()}
    worlds = {row["attempt"]: row["world_size"] for row in placed.run.to_pylist()}
    calls = read_calls(given.con, placed.context, hashed.table())
    return Called(match(calls, worlds, groups, given.number))


class Stepped(Struct, frozen=True):
    """The training steps, and the calls with theirs, on their files' own clocks."""

    steps: pa.Table
    matched: Matched


def find_steps(given: Given, done: Done) -> Stepped:
    """Steps that traces mark, and those of traces that repeat themselves without marks."""
    import pyarrow as pa

    context, matched = done.of(Placed).context, done.of(Called).matched
    steps = derive_steps(given.con, context)
    inferred = inferred_steps.infer_steps(given.con, context, steps, matched)
    if inferred is None:
        return Stepped(steps, matched)
    calls = matched.calls.with_steps(step_numbers.call_steps(matched, inferred))
    return Stepped(pa.concat_tables([steps, inferred]), replace(matched, calls=calls))


class Aligned(Struct, frozen=True):
    """How the clocks are put right; from here on times are the job's."""

    corrections: Mapping[int, Correction]
    clocks: Clocks
    matched: Matched
    errors_ns: Mapping[int, int]
    """Of each clock."""
    source_context: pa.Table
    clock_offset: pa.Table
    clock_pair: pa.Table
    step: pa.Table


def align(given: Given, done: Done) -> Aligned:
    """The clocks' offsets, from who cannot have left before others had entered."""
    placed, stepped = done.of(Placed), done.of(Stepped)
    aligned = clock_offsets.alignments(stepped.matched, placed.used)
    offsets = {key: alignment.offsets for key, alignment in aligned.items()}
    corrections = clock_offsets.corrections(offsets, placed.sources)
    epoch = {c["clock_id"] for c in placed.clock.to_pylist() if c["basis"] == "epoch"}
    hosts_of = {s.source_id: s.host for s in placed.sources if s.clock_id in epoch}
    measured = [o for listed in offsets.values() for o in listed if o.error_ns is not None]
    compared = {clock for o in measured for clock in (o.clock_id, o.reference_id)}
    clock_of = {s.source_id: s.clock_id for s in placed.sources if s.clock_id is not None}
    same = {s: -1 if clock in compared else clock for s, clock in clock_of.items()}
    calls = stepped.matched.calls.moved(corrections)
    context = [
        _context_row(s, corrections.get(s.source_id, Correction()))
        for s in sorted(placed.sources, key=lambda s: s.source_id)
    ]
    return Aligned(
        corrections=corrections,
        clocks=Clocks({s: c for s, c in corrections.items() if s in hosts_of}, hosts_of, same),
        matched=replace(stepped.matched, calls=calls),
        errors_ns={o.clock_id: o.error_ns or 0 for listed in offsets.values() for o in listed},
        source_context=arrow("source_context", context),
        clock_offset=arrow("clock_offset", clock_offsets.offset_rows(offsets, placed.used)),
        clock_pair=clock_offsets.pair_table(aligned, stepped.matched),
        step=clock_offsets.moved_steps(stepped.steps, corrections),
    )


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


class LaidOut(Struct, frozen=True):
    """What each communicator is for, and the ranks with the places that follow from it."""

    ranks: list[dict[str, Any]]
    comm_group: pa.Table
    collective_match: pa.Table


def lay_out(given: Given, done: Done) -> LaidOut:
    """The parallel layout, from the communicators' names and behaviour."""
    aligned = done.of(Aligned)
    sizes = _sizes(given.job)
    kinds = _not_contradicted(group_kinds(aligned.matched, sizes), sizes)
    ranks = _rank_rows(done.of(Placed).used, given.job)
    coordinates(ranks, aligned.matched, kinds)
    return LaidOut(
        ranks,
        comm_group=group_table(aligned.matched, kinds),
        collective_match=match_table(aligned.matched, aligned.errors_ns),
    )


def _not_contradicted(kinds: dict[str, Kind], sizes: dict[str, int]) -> dict[str, Kind]:
    """The kinds of groups, less those guessed from behaviour that the job does not have.

    Where dp is 1, an all-reduce of two stages' embeddings is nobody's data parallelism.
    """
    absent = {d for d in ("tp", "dp", "ep") if sizes.get(d) == 1}
    return {g: k for g, k in kinds.items() if k[1] != "behaviour" or k[0] not in absent}


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


class Piped(Struct, frozen=True):
    """The operations of pipelines, and the ranks with the stages that they show."""

    pipeline_op: pa.Table
    rank: pa.Table


def find_operations(given: Given, done: Done) -> Piped:
    """The microbatches of pipelines."""
    placed, aligned, laid = done.of(Placed), done.of(Aligned), done.of(LaidOut)
    names = set(aligned.matched.calls.op_names)
    has_messages = not names.isdisjoint(("send", "recv"))
    operations = derive_pipeline(
        given.con,
        placed.context,
        done.of(Stepped).steps,
        given.job,
        given.notes,
        laid.ranks,
        aligned.corrections,
        laid.collective_match if has_messages or "send_recv" in names else None,
        given.filled,
        has_messages,
        placed.timers,
    )
    return Piped(operations, arrow("rank", fill_coordinates(laid.ranks, operations)))


class Summed(Struct, frozen=True):
    """What the samples of GPUs come to."""

    gpu_counter_summary: pa.Table


def sum_up(given: Given, done: Done) -> Summed:
    """The counters of GPUs, file by file."""
    corrections = done.of(Aligned).corrections
    return Summed(gpu_summary.on_the_jobs_clock(given.gpu_counters, corrections))


class Gpus(Struct, frozen=True):
    """Whose each sampled GPU is."""

    gpu: pa.Table


def find_gpus(given: Given, done: Done) -> Gpus:
    """The GPUs that counters and the kernel's messages name."""
    placed, ranks = done.of(Placed), done.of(Piped).rank.to_pylist()
    attempts = placed.run.to_pylist()
    rows = gpus.gpu_rows(given.con, given.gpu_names, placed.sources, ranks, attempts)
    return Gpus(arrow("gpu", rows))


class Ports(Struct, frozen=True):
    """Where each sampled port leads."""

    port: pa.Table


def find_ports(given: Given, done: Done) -> Ports:
    """The ports that network counters name."""
    placed, ranks = done.of(Placed), done.of(Piped).rank.to_pylist()
    attempts = placed.run.to_pylist()
    rows = port_ends.port_rows(given.con, placed.sources, ranks, attempts, given.job)
    return Ports(arrow("port", rows))


class Active(Struct, frozen=True):
    """The rhythm of the counters."""

    activity_period: pa.Table
    activity_step: pa.Table
    counter_statement: pa.Table


def find_activity(given: Given, done: Done) -> Active:
    """Steps that only counters show: nothing where there are traces."""
    tables: dict[str, list[dict[str, Any]]] = {}
    if not done.of(Placed).used:
        placed = done.of(Placed)
        basis_of = {c["clock_id"]: c["basis"] for c in placed.clock.to_pylist()}
        bases = {s.source_id: basis_of.get(s.clock_id) or "none" for s in placed.sources}
        hosts = {s.source_id: s.host for s in placed.sources}
        tables = activity.of_any_clock(given.con, done.of(Aligned).clocks, bases, hosts)
    return Active(*(arrow(n, tables.get(n, [])) for n in activity.WRITES))


class Correlated(Struct, frozen=True):
    """Network counters at the boundaries of steps."""

    counter_step: pa.Table
    network_correlation: pa.Table
    counter_clock: pa.Table


def correlate(given: Given, done: Done) -> Correlated:
    """Which counters of the network go with slow steps."""
    aligned, active = done.of(Aligned), done.get(Active)
    host_of = {(r["attempt"], r["rank"]): r["host"] for r in done.of(Piped).rank.to_pylist()}
    tables = correlation.counter_tables(
        given.con,
        aligned.clocks,
        aligned.step,
        done.of(Ports).port.to_pylist(),
        lambda origin_ns: counter_clock.traffic(aligned.matched, host_of, origin_ns),
        active.activity_step.to_pylist() if active is not None else [],
    )
    given.notes.extend(
        counter_clock.remark(r) for r in tables["counter_clock"] if r["verdict"] == "off"
    )
    return Correlated(**{name: arrow(name, rows) for name, rows in tables.items()})


class Told(Struct, frozen=True):
    """What training logs tell of the whole job."""

    logged_step: pa.Table
    job_episode: pa.Table


def tell(given: Given, done: Done) -> Told:
    """The job's history, from its training logs."""
    ids = [s.source_id for s in done.of(Placed).sources]
    steps, rows = history.history(given.con, ids, done.of(Aligned).corrections, given.notes)
    return Told(steps, arrow("job_episode", rows))


STAGES = (
    Stage(
        place,
        reads=("annotation", "device", "pipeline_timer", "process", "source", *log_jobs.READS),
        writes=("run", "host", "host_alias", "clock"),
    ),
    Stage(match_calls, reads=("collective", "process_group")),
    Stage(find_steps, reads=("annotation", "collective", "gpu_op", "source")),
    Stage(align, writes=("source_context", "clock_offset", "clock_pair", "step")),
    Stage(lay_out, writes=("comm_group", "collective_match")),
    Stage(
        find_operations,
        reads=("annotation", "collective", "gpu_op", "host_op", "pipeline_timer", "process_group"),
        writes=("pipeline_op", "rank"),
    ),
    Stage(sum_up, reads=("gpu_sample",), writes=("gpu_counter_summary",), needs=("gpu_sample",)),
    Stage(
        find_gpus,
        reads=("device", "gpu_sample", "log_event", "nccl_comm", "process"),
        writes=("gpu",),
        needs=("gpu_sample", "log_event"),
    ),
    Stage(
        find_ports,
        reads=("link", "net_sample", "gpu_sample"),
        writes=("port",),
        needs=("net_sample",),
    ),
    Stage(
        find_activity,
        reads=("gpu_sample", "net_sample", "device"),
        writes=activity.WRITES,
        needs=("gpu_sample", "net_sample"),
    ),
    Stage(
        correlate,
        reads=("net_sample",),
        writes=("counter_step", "network_correlation", "counter_clock"),
        needs=("net_sample",),
    ),
    Stage(
        tell,
        reads=("job_step", "log_event", "source"),
        writes=("logged_step", "job_episode"),
        needs=("job_step",),
    ),
)
"""In order; a stage's function takes the results of those above it. ``contradictions`` follows."""

READS = tuple(sorted({name for stage in STAGES for name in stage.reads}))
"""The source tables that ``derive`` reads."""


def derive(
    con: duckdb.DuckDBPyConnection,
    job: JobDescription | None = None,
    *,
    attempt: int | None = None,
    notes: list[str] | None = None,
    filled: Collection[str] = READS,
    folders: Mapping[int, str] | None = None,
    number: Numbering | None = None,
) -> dict[str, pa.Table]:
    """The derived tables of a run, each with exactly the registry's stored columns and types.

    ``con`` holds the source tables that ``READS`` names (stored columns only), possibly empty.
    Tables that ``filled`` does not name are known to be empty: what needs their rows is not asked.
    ``folders`` says by source what its relative path is relative to (default: where we are).
    ``attempt`` chooses among candidates where the files cannot be one attempt. Traces that are
    left out, and second copies of one, have no row in ``source_context``: no view shows their
    rows. What a reader of a report should know is appended to ``notes``, in words. ``number`` has
    the calls of communicators numbered elsewhere, with the same answer.

    Raises AmbiguousInputError where the files cannot be one attempt of one job, naming the
    candidates.
    """
    given = Given(
        con, job, attempt, filled, folders or {}, notes if notes is not None else [], number
    )
    done = Done()
    tables: dict[str, pa.Table] = {}
    for stage in STAGES:
        if stage.needs and not any(name in filled for name in stage.needs):
            tables |= {name: table(name).arrow_schema().empty_table() for name in stage.writes}
            continue
        result = stage.run(given, done)
        done.add(result)
        tables |= {name: getattr(result, name) for name in stage.writes}
    if job is not None:
        given.notes.extend(contradictions(con, tables, job))
    return tables

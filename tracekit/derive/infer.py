"""The job description that the traces show, each field with where it came from."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import duckdb
    import pyarrow as pa

    from tracekit.job import JobDescription

MESH = {
    "tp": "tp",
    "tensor": "tp",
    "tensor_parallel": "tp",
    "pp": "pp",
    "pipeline": "pp",
    "dp": "dp",
    "data": "dp",
    "data_parallel": "dp",
    "batch": "dp",
    "fsdp": "dp_shard",
    "dp_shard": "dp_shard",
    "shard": "dp_shard",
    "dp_replicate": "dp_replicate",
    "replicate": "dp_replicate",
    "ddp": "dp_replicate",
    "ep": "ep",
    "expert": "ep",
    "cp": "cp",
    "context": "cp",
}
"""DeviceMesh dimension names (``mesh_tp``) -> dimension, or part of dp. PyTorch names a mesh's
dimension as the program does: torchtitan, Accelerate and Lightning have names of their own."""

_MEGATRON = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP": "dp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
}
"""Megatron-LM's group descriptions, the names of its globals -> dimension."""

_PURPOSES = {
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
    "MODEL_PARALLEL_GROUP": "mp",
    "EMBEDDING_GROUP": "embedding",
    "POSITION_EMBEDDING_GROUP": "embedding",
    "MESH_DP_SHARD_CP": "dp",
    "MESH_DP_CP": "dp",
    "MESH_LOSS": "dp",
    "MESH_DP_SHARD_MOD_EP": "edp",
    "MESH_DP_SHARD_IN_EP": "edp",
    "MESH_EFSDP": "edp",
}
"""Groups whose size is no dimension's: they span two, or a part of one. mp is tp with pp."""

_DIMENSIONS = ("tp", "pp", "dp", "ep", "cp")


def group_dimension(*names: str | None) -> str | None:
    """The parallel dimension that a process group's name or description states, or None.

    ``dp_shard`` and ``dp_replicate`` are parts of dp and returned as such.
    """
    for name in names:
        if not name:
            continue
        known = _MEGATRON.get(name.strip().upper().lstrip("_"))
        if known is not None:
            return known
        mesh = re.fullmatch(r"(?:device_)?mesh_([a-z_]+)", name.strip().lower())
        if mesh is not None and mesh[1] in MESH:
            return MESH[mesh[1]]
    return None


def group_purpose(*names: str | None) -> str | None:
    """What a group of this name is for: its dimension, or what joins parts of several.

    Shards are data parallel as a whole group is; what replicas of shards do is another traffic.
    """
    for name in names:
        known = _PURPOSES.get(name.strip().upper().lstrip("_")) if name else None
        if known is not None:
            return known
    dimension = group_dimension(*names)
    return "dp" if dimension == "dp_shard" else dimension


def infer_job(
    con: duckdb.DuckDBPyConnection,
    derived: Mapping[str, pa.Table],
    job: JobDescription | None = None,
) -> tuple[JobDescription, dict[str, str]]:
    """What the user says and the traces show, and per field where it came from, in words.

    ``derived`` is the result of ``derive`` on the same connection; the last attempt is told. The
    user's word wins; where the traces contradict it, the description's ``notes`` say so. Sizes are
    inferred only where every source that names a group agrees and the sizes fit the world; else
    they stay unknown and the provenance says why. The provenance has the keys that ``job.to_toml``
    takes.
    """
    import msgspec

    from tracekit.job import Hardware, JobDescription, Parallelism, RankEntry, merge_jobs

    run = max(derived["run"].to_pylist(), key=lambda r: r["attempt"], default=None)
    if run is None:
        return job or JobDescription(), {}
    chosen = run["attempt"]
    ranks = [r for r in derived["rank"].to_pylist() if r["attempt"] == chosen]
    context = [c for c in derived["source_context"].to_pylist() if c["attempt"] == chosen]
    member_ids = [c["source_id"] for c in context if c["rank"] is not None]
    said: dict[str, str] = {}
    world = run["world_size"]
    stated_world = world if run["world_size_source"] == "file" else None
    sizes = _sizes(con, member_ids, world, said)
    entries = tuple(
        RankEntry(
            rank=r["rank"],
            host=None if r["host_source"] == "job_toml" else r["host"],
            device=r["device_id"],
        )
        for r in ranks
    )
    inferred = JobDescription(
        name=run["job_name"],
        world_size=stated_world,
        backend=_backend(con, member_ids, said),
        framework=run["framework"],
        parallelism=msgspec.convert(sizes, Parallelism),
        hardware=Hardware(gpu=run["gpu_model"], gpus_per_node=_per_node(ranks, world, said)),
        rank=entries,
    )
    said.setdefault("name", "inferred from the traces")
    said["world_size"] = "inferred from the traces' own world size"
    said["framework"] = "inferred from the traces"
    said["hardware.gpu"] = "inferred from the traces' device properties"
    for row in ranks:
        place = f"rank.{row['rank']}"
        said[f"{place}.rank"] = f"inferred from {_WHERE.get(row['rank_source'], 'the traces')}"
        said[f"{place}.host"] = f"inferred from {_WHERE.get(row['host_source'], 'the traces')}"
        said[f"{place}.device"] = "inferred from the trace's device properties"
    if job is None:
        return inferred, _relevant(inferred, said)
    merged = merge_jobs(msgspec.structs.replace(inferred, files=("the traces",)), job)
    merged = msgspec.structs.replace(merged, files=job.files)
    return merged, _relevant(merged, {**said, **_given(job)})


SUPERSEDED = "; the later is used"
"""How a note of ``merge_jobs`` about two descriptions ends."""


def contradictions(
    con: duckdb.DuckDBPyConnection, derived: Mapping[str, pa.Table], job: JobDescription
) -> list[str]:
    """What the user's description says and the traces (or two descriptions) deny, in words.

    The user's word stands, so a reader must know. The world size is compared where it is decided.
    """
    from tracekit.expect.hardware import gpu_named

    seen, _ = infer_job(con, derived)
    notes = [note for note in job.notes if note.endswith(SUPERSEDED)]
    pairs = [
        (f"parallelism.{d}", getattr(job.parallelism, d), getattr(seen.parallelism, d))
        for d in (*_DIMENSIONS, "dp_replicate")
    ]
    pairs.append(
        ("hardware.gpus_per_node", job.hardware.gpus_per_node, seen.hardware.gpus_per_node)
    )
    said, shown = (gpu_named(described.hardware.gpu) for described in (job, seen))
    if said is not None and shown is not None:
        pairs.append(("hardware.gpu", said.name, shown.name))
    return notes + [
        f"job description: {place} {mine}, the traces show {theirs}"
        for place, mine, theirs in pairs
        if mine is not None and theirs is not None and mine != theirs
    ]


_WHERE = {
    "file": "the file itself",
    "name": "the file's name",
    "assigned": "nothing: assigned in order of paths",
    "job_toml": "job.toml",
}


def _given(job: JobDescription) -> dict[str, str]:
    from tracekit.job import places

    where = ", ".join(job.files)
    return dict.fromkeys(places(job), f"given in {where}" if where else "given")


def _relevant(job: JobDescription, said: dict[str, str]) -> dict[str, str]:
    """Without the origins of what is unknown, but for the reasons why it is."""
    from tracekit.job import places

    known = set(places(job))
    return {
        place: words
        for place, words in said.items()
        if place in known or not words.startswith(("inferred", "given"))
    }


def _sizes(
    con: duckdb.DuckDBPyConnection,
    member_ids: list[int],
    world: int | None,
    said: dict[str, str],
) -> dict[str, int]:
    """Sizes of the dimensions that the process groups name without contradiction."""
    rows = con.execute(
        """
        SELECT DISTINCT description, name, group_size FROM process_group
        WHERE list_contains(?, source_id) AND group_size > 0
        """,
        [member_ids],
    ).fetchall()
    seen_sizes: dict[str, set[int]] = defaultdict(set)
    names: dict[str, str] = {}
    for description, name, size in sorted(rows, key=repr):
        dimension = group_dimension(description, name)
        if dimension in (*_DIMENSIONS, "dp_shard", "dp_replicate"):
            seen_sizes[dimension].add(size)
            names.setdefault(dimension, next(n for n in (description, name) if n))
    single = {d: next(iter(s)) for d, s in seen_sizes.items() if len(s) == 1}
    for dimension, several in sorted(seen_sizes.items()):
        if len(several) > 1:
            text = " and ".join(map(str, sorted(several)[:4]))
            said[f"parallelism.{dimension}"] = f"groups named {names[dimension]} have {text} ranks"
    if "dp" not in seen_sizes and {"dp_shard", "dp_replicate"} & set(single):
        parts = [d for d in ("dp_replicate", "dp_shard") if d in single]
        if all(d in single for d in parts if d in seen_sizes):
            # What torchtitan calls fsdp goes over the ranks of a context group as well.
            is_joint = names.get("dp_shard", "").strip().lower().endswith("mesh_fsdp")
            shared = single.get("cp", 1) if is_joint else 1
            shards, rest = divmod(single.get("dp_shard", 1), shared)
            if not rest:
                single["dp"] = shards * single.get("dp_replicate", 1)
            names["dp"] = " x ".join(names[d] for d in parts)
    sizes = {d: single[d] for d in (*_DIMENSIONS, "dp_replicate") if d in single}
    if (
        "dp" not in sizes
        or single.get("dp_shard", 1) == 1
        or sizes["dp"] % sizes.get("dp_replicate", 1)
    ):
        sizes.pop("dp_replicate", None)  # of shards that are not known, or of whole models
    for dimension in sizes:
        said[f"parallelism.{dimension}"] = f"inferred from process group {names[dimension]}"
    return _fitting(sizes, world, said)


def _fitting(sizes: dict[str, int], world: int | None, said: dict[str, str]) -> dict[str, int]:
    """Nothing where the sizes cannot make up the world (ep lies within the others)."""
    product = 1
    for dimension in ("tp", "pp", "dp", "cp"):
        product *= sizes.get(dimension, 1)
    if world is None or world % product == 0:
        return sizes
    text = " x ".join(f"{d}{sizes[d]}" for d in ("tp", "pp", "dp", "cp") if d in sizes)
    for dimension in sizes:
        said[f"parallelism.{dimension}"] = f"{text} does not divide the world of {world} ranks"
    return {}


def _backend(
    con: duckdb.DuckDBPyConnection, member_ids: list[int], said: dict[str, str]
) -> str | None:
    rows = con.execute(
        """
        SELECT DISTINCT backend FROM source
        WHERE list_contains(?, source_id) AND backend IS NOT NULL AND backend != ''
        """,
        [member_ids],
    ).fetchall()
    if len(rows) == 1:
        said["backend"] = "inferred from the traces' distributedInfo"
        return str(rows[0][0])
    if rows:
        said["backend"] = "the traces disagree"
    return None


def _per_node(ranks: list[dict[str, Any]], world: int | None, said: dict[str, str]) -> int | None:
    """GPUs a node, where every rank of the world was seen and every host has as many."""
    hosts = Counter(r["host"] for r in ranks)
    is_complete = world is not None and len(ranks) == world and None not in hosts
    has_gpus = any(r["device_model"] for r in ranks)
    if not is_complete or not has_gpus or len(set(hosts.values())) != 1:
        return None
    said["hardware.gpus_per_node"] = "inferred from the ranks of each host"
    return next(iter(hosts.values()))

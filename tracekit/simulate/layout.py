"""Who works with whom: the parallel dimensions, the ranks' order and the process groups."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property

from tracekit.errors import UsageError

SHARDING = ("ddp", "zero1", "zero2", "zero3", "fsdp")
_SCHEDULE_WORDS = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved": "interleaved-1f1b",
    "zbh1": "zb-h1",
}
_MEGATRON_NAMES = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP_WITH_CP",
    "edp": "EXPERT_DATA_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "mp": "MODEL_PARALLEL_GROUP",
    "embedding": "EMBEDDING_GROUP",
}
_TITAN_NAMES = {
    "tp": "mesh_tp",
    "cp": "mesh_cp",
    "ep": "mesh_ep",
    "dp": "mesh_dp_shard_cp",
    "replicate": "mesh_dp_replicate",
    "edp": "mesh_dp_shard_mod_ep",
    "pp": "mesh_pp",
    "mp": "mesh_model",
    "embedding": "mesh_embedding",
}


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallel dimensions; ranks count tp fastest, then cp, ep, dp, and pp slowest.

    Megatron (tp-cp-ep-dp-pp) and torchtitan (pp, dp_replicate, dp_shard, cp, tp, slowest first)
    agree on that order; they differ in the groups' names and in ``replicate``.
    """

    world_size: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    replicate: int = 1
    """Replicas of the shards (HSDP); data parallel size is replicate times shard."""
    sharding: str = "ddp"
    is_sequence_parallel: bool = False
    schedule: str = "1f1b"
    chunks: int = 1
    microbatches: int = 1
    style: str = "megatron"
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        product = self.tp * self.pp * self.cp
        if self.world_size % product:
            raise UsageError(
                f"{self.world_size} ranks cannot be tp {self.tp} x pp {self.pp} x cp {self.cp}",
                hint=f"--ranks must be a multiple of {product}",
            )
        if self.dp % self.ep or self.dp % self.replicate:
            raise UsageError(
                f"data parallel size {self.dp} is no multiple of ep {self.ep} and of the replicas "
                f"{self.replicate}",
                hint="give more --ranks",
            )

    @property
    def dp(self) -> int:
        """Data parallel size."""
        return self.world_size // (self.tp * self.pp * self.cp)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands in each dimension."""
        rest, tp = divmod(rank, self.tp)
        rest, cp = divmod(rest, self.cp)
        pp, dp = divmod(rest, self.dp)
        return {"tp": tp, "cp": cp, "dp": dp, "ep": dp % self.ep, "pp": pp}

    def rank(self, tp: int, cp: int, dp: int, pp: int) -> int:
        """The rank that stands there."""
        return ((pp * self.dp + dp) * self.cp + cp) * self.tp + tp

    def group(self, rank: int, role: str) -> tuple[int, ...]:
        """Members of one of a rank's groups, ascending; itself alone where it has none."""
        return self._groups.get((rank, role), (rank,))

    @cached_property
    def _groups(self) -> dict[tuple[int, str], tuple[int, ...]]:
        groups: dict[tuple[int, str], tuple[int, ...]] = {}
        keys: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        shard = self.dp // self.replicate
        for r in range(self.world_size):
            c = self.coordinates(r)
            tp, cp, dp, ep, pp = c["tp"], c["cp"], c["dp"], c["ep"], c["pp"]
            places = {
                "world": (),
                "tp": (cp, dp, pp),
                "cp": (tp, dp, pp),
                "pp": (tp, cp, dp),
                "dp": (tp, pp, dp // shard),
                "replicate": (tp, cp, pp, dp % shard),
                "ep": (tp, cp, pp, dp // self.ep),
                # Each set of shards has the experts too, where it has ranks enough.
                "edp": (tp, pp, ep, dp // shard if shard % self.ep == 0 else 0),
                "mp": (cp, dp),
            }
            if pp in (0, self.pp - 1) and self.pp > 1:
                places["embedding"] = (tp, cp, dp)
            for role, place in places.items():
                keys.setdefault((role, place), []).append(r)
        for (role, _), members in keys.items():
            for r in members:
                groups[r, role] = tuple(members)
        return groups

    @property
    def roles(self) -> tuple[str, ...]:
        """Families of groups that this layout makes, the world first."""
        roles = ["world"]
        for role, is_used in (
            ("tp", self.tp > 1),
            ("cp", self.cp > 1),
            ("ep", self.ep > 1),
            ("dp", self.dp * self.cp > self.replicate),
            ("replicate", self.replicate > 1),
            ("edp", self.ep > 1),
            ("pp", self.pp > 1),
            ("mp", self.tp * self.pp > 1 and self.dp > 1),
            ("embedding", self.pp > 1),
        ):
            if is_used:
                roles.append(role)
        return tuple(roles)

    def description(self, role: str) -> str:
        """What a group of a role is called."""
        if role == "world":
            return "default_pg"
        names = _MEGATRON_NAMES if self.style == "megatron" else _TITAN_NAMES
        return names.get(role, role.upper())

    @property
    def zero_stage(self) -> int:
        """ZeRO stage of the sharding."""
        return {"ddp": 0, "zero1": 1, "zero2": 2}.get(self.sharding, 3)


def parse(text: str, world_size: int) -> Layout:
    """A layout from words such as ``ddp``, ``fsdp``, ``tp8-pp4-m8``, ``tp2-sp-pp2-zbh1``.

    UsageError for a word that means nothing, with the list of those that do.
    """
    layout = Layout(world_size, name=text)
    values: dict[str, int | str | bool] = {}
    for word in re.split(r"[-,+]", text.lower()):
        sized = re.fullmatch(r"(tp|pp|cp|ep|vpp|hsdp|m)(\d{1,5})", word)
        if word in SHARDING:
            values["sharding"] = "fsdp" if word == "zero3" else word
        elif word in _SCHEDULE_WORDS:
            values["schedule"] = _SCHEDULE_WORDS[word]
        elif word == "sp":
            values["is_sequence_parallel"] = True
        elif word in ("titan", "torchtitan"):
            values["style"] = "torchtitan"
        elif word == "megatron":
            values["style"] = "megatron"
        elif sized and int(sized[2]) > 0:
            key = {"vpp": "chunks", "hsdp": "replicate", "m": "microbatches"}
            values[key.get(sized[1], sized[1])] = int(sized[2])
            if sized[1] == "hsdp":
                values["sharding"] = "fsdp"
        else:
            raise UsageError(
                f"layout {text!r}: {word!r} means nothing",
                hint="words: ddp zero1 zero2 fsdp hsdpN tpN sp ppN vppN gpipe 1f1b interleaved "
                "zbh1 cpN epN mN megatron titan",
            )
    pp = values.get("pp", 1)
    chunks = values.get("chunks", 1)
    if isinstance(chunks, int) and chunks > 1:
        values["schedule"] = "interleaved-1f1b"
    elif values.get("schedule") == "interleaved-1f1b":
        values["chunks"] = 2
    if "microbatches" not in values and isinstance(pp, int) and pp > 1:
        values["microbatches"] = 2 * pp
    result = replace(layout, **values)  # type: ignore[arg-type]
    if result.schedule == "interleaved-1f1b" and result.microbatches % result.pp:
        raise UsageError(
            f"layout {text!r}: an interleaved pipeline needs microbatches in multiples of pp",
            hint=f"add -m{2 * result.pp}",
        )
    return result

"""What two sides chose otherwise: layout, messages, NCCL's communicators, transports and choices,
versions and environment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tracekit.comparison.model import ConfigurationChange
from tracekit.comparison.sides import RunRows

UNNAMED = "an unknown group"


def configuration(
    baseline: Sequence[RunRows], candidate: Sequence[RunRows]
) -> tuple[ConfigurationChange, ...]:
    """What both sides say otherwise, or one says alone, by name. Layout and sizes come first.

    Of groups that nothing names only what both say: that one side's files tell less is no choice.
    """
    before, after = _said(baseline), _said(candidate)
    return tuple(
        ConfigurationChange(name=name, baseline=before.get(name), candidate=after.get(name))
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
        and (not name.endswith(UNNAMED) or (name in before and name in after))
    )


def _said(runs: Sequence[RunRows]) -> dict[str, str]:
    """Every choice that the files of a side show; what its runs do differently, together."""
    values: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        info = run.document.run
        if info.world_size is not None:
            values["world size"].add(str(info.world_size))
        if info.hosts:
            values["hosts"].add(str(len(info.hosts)))
        for row in run.of("traffic"):
            kind = row["group_kind"]
            group = f"a {kind} group" if kind else UNNAMED
            if row["group_size"] is not None:
                values[f"ranks of {group}"].add(str(row["group_size"]))
            if row["dtype"] is not None:
                values[f"elements of {row['op']} in {group}"].add(str(row["dtype"]))
        for row in run.of("nccl_comms"):
            if row["nccl_version"] is not None:
                values["NCCL"].add(str(row["nccl_version"]))
            if row["channels_count"] is not None:
                name = f"NCCL channels, {row['group_size']} ranks"
                values[name].add(str(row["channels_count"]))
        for row in run.of("nccl_choices"):
            name = (
                f"NCCL's choice for {row['op'] or 'an operation'} of {row['message_bytes']} bytes"
            )
            values[name].add(f"{row['algorithm']} {row['protocol']}")
        for name, way in _ways(run):
            values[name].add(way)
        said: dict[str, set[str]] = defaultdict(set)
        for row in run.of("environment"):
            said[_NAMED[row["kind"]].format(row["name"])].add(str(row["value"]))
        for name, stated in said.items():
            if not 1 < len(run.ranks) == len(stated):  # each rank its own, as its number: no choice
                values[name] |= stated
    return {name: ", ".join(sorted(stated)) for name, stated in values.items()}


def _ways(run: RunRows) -> Iterator[tuple[str, str]]:
    """Over what NCCL's ranks talk, within hosts and between them, and with which devices."""
    for row in run.of("nccl_topology"):
        nodes = row["from_node"], row["to_node"]
        where = "" if None in nodes else " in a host" if nodes[0] == nodes[1] else " between hosts"
        # The detail begins with how; a device's number and flags come after it.
        way = "/".join(filter(None, (row["transport"], str(row["detail"] or "").split("/")[0])))
        if row["is_gpudirect"] is not None and "Socket" not in way:
            way += f" {'with' if row['is_gpudirect'] else 'without'} GPUDirect"
        yield f"NCCL transport{where}", way
        yield f"NCCL channels of two ranks{where}", str(row["channels_count"])
        for nic in filter(None, str(row["nics"] or "").split(", ")):
            yield "network devices of NCCL", nic


_NAMED = {"version": "version of {}", "variable": "{}", "device": "{} of GPU"}
"""What the words of ``environment`` are called in a comparison."""

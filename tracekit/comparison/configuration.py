"""What two sides chose otherwise: layout, messages, NCCL's communicators and choices, versions and
environment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tracekit.comparison.model import ConfigurationChange
from tracekit.comparison.sides import RunRows


def configuration(
    baseline: Sequence[RunRows], candidate: Sequence[RunRows]
) -> tuple[ConfigurationChange, ...]:
    """What both sides say otherwise, or one says alone, by name. Layout and sizes come first."""
    before, after = _said(baseline), _said(candidate)
    return tuple(
        ConfigurationChange(name=name, baseline=before.get(name), candidate=after.get(name))
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
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
            kind = row["group_kind"] or "unknown"
            if row["group_size"] is not None:
                values[f"ranks of a {kind} group"].add(str(row["group_size"]))
            if row["dtype"] is not None:
                values[f"elements of {row['op']} in {kind}"].add(str(row["dtype"]))
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
        said: dict[str, set[str]] = defaultdict(set)
        for row in run.of("environment"):
            said[_NAMED[row["kind"]].format(row["name"])].add(str(row["value"]))
        for name, found in said.items():
            if not 1 < len(run.ranks) == len(found):  # each rank its own, as its number: no choice
                values[name] |= found
    return {name: ", ".join(sorted(found)) for name, found in values.items()}


_NAMED = {"version": "version of {}", "variable": "{}", "device": "{} of GPU"}
"""What the words of ``environment`` are called in a comparison."""

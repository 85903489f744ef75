"""``--set tp=4`` and ``--sweep nics=1,2,4,8``: a job description with some fields replaced."""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tracekit.errors import UsageError
from tracekit.job import JobDescription, merge_jobs, parse_job

ALIASES = {
    "nics": "hardware.nics_per_node",
    "gpu": "hardware.gpu",
    "nic": "hardware.nic_bytes_per_s",
    "schedule": "schedule.kind",
    "zero": "parallelism.zero_stage",
    "seq": "model.sequence",
}
MAX_POINTS = 1_000
"""Combinations that one sweep may have: they take about four seconds, and nobody reads more."""

_SECTIONS = ("parallelism", "schedule", "model", "batch", "hardware", "prices")


def _places() -> dict[str, str]:
    """Every way to name a field -> ``section.key``."""
    places: dict[str, str] = {"world_size": "world_size"}
    for section in _SECTIONS:
        kind = type(getattr(JobDescription(), section))
        for field in msgspec.structs.fields(kind):
            place = f"{section}.{field.encode_name}"
            places[place] = place
            places.setdefault(field.encode_name, place)
    return {**places, **ALIASES}


def _nearest(name: str, places: Mapping[str, str]) -> str:
    """What may have been meant: a field spelled like it, or those of the section that it names."""
    section, _, key = name.lower().rpartition(".")
    of_section = [
        p.removeprefix(f"{section}.") for p in places if section and p.startswith(f"{section}.")
    ]
    close = difflib.get_close_matches(key, of_section or list(places), n=1)
    if close:
        return f"did you mean {section + '.' if of_section else ''}{close[0]}?"
    if of_section:
        return f"{section} has {', '.join(of_section)}"
    return f"fields of {', '.join(_SECTIONS)}: tp, microbatches, layers, micro, nics, ..."


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def changed(job: JobDescription, settings: Sequence[tuple[str, str]]) -> JobDescription:
    """The description with fields replaced; UsageError names a field that does not exist."""
    places = _places()
    for name, text in settings:
        place = places.get(name)
        if place is None:
            raise UsageError(
                f"there is no field {name!r} in a job description that expect reads",
                hint=_nearest(name, places),
            )
        section, _, key = place.rpartition(".")
        head = f"[{section}]\n" if section else ""
        literal = json.dumps(_value(text))
        override = parse_job(f"{head}{key} = {literal}\n".encode(), f"--set {name}")
        notes = job.notes
        merged = merge_jobs(job, override)
        # Replacing is what was asked for: no contradiction.
        job = msgspec.structs.replace(merged, notes=notes, files=job.files)
    return job


def read_setting(text: str) -> tuple[str, str]:
    """``tp=4``."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise UsageError(f"--set: cannot read {text!r}", hint="--set tp=4")
    return name.strip(), value.strip()


def sweep(
    job: JobDescription, sweeps: Sequence[str]
) -> Iterator[tuple[dict[str, str], JobDescription]]:
    """Every combination of the swept values with its description; one without sweeps."""
    axes: list[list[tuple[str, str]]] = []
    for text in sweeps:
        name, equals, values = text.partition("=")
        listed = [v.strip() for v in values.split(",") if v.strip()]
        if not equals or not listed:
            raise UsageError(f"--sweep: cannot read {text!r}", hint="--sweep nics=1,2,4,8")
        axes.append([(name.strip(), v) for v in listed])
    points = 1
    for axis in axes:
        points *= len(axis)
    if points > MAX_POINTS:
        raise UsageError(
            f"--sweep: {points:,} combinations are too many (at most {MAX_POINTS:,})",
            hint="sweep fewer values, or in several calls",
        )
    for combination in itertools.product(*axes):
        yield dict(combination), changed(job, combination)

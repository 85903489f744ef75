"""A job description as a job.toml, with where each value came from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from tracekit.job.model import ENTRIES, SECTIONS, JobDescription, Section, keys_of
from tracekit.job.reading import shown


def to_toml(job: JobDescription, provenance: Mapping[str, str]) -> str:
    """The description as a job.toml that loads to the same content.

    Every line ends with where its value came from: ``provenance`` maps places such as
    ``parallelism.tp``, ``rank.3.host``, ``port.switch.lv0.host`` to words; what it does not name
    is "given". What is unknown is a commented-out line, so that a user sees what could be said.
    """
    lines = [
        "# Job description: correct it and keep it; give it with --job.",
        "# Each line says where its value came from; unknown ones are commented out.",
        "",
    ]
    lines += _section_lines(job, "", provenance, skip=(*SECTIONS, *ENTRIES))
    for name in SECTIONS:
        lines += ["", f"[{name}]", *_section_lines(getattr(job, name), f"{name}.", provenance)]
    for name, entry, place in _entries(job):
        lines += ["", f"[[{name}]]", *_section_lines(entry, place, provenance, unknown=False)]
    return "\n".join(lines) + "\n"


def places(job: JobDescription) -> Iterator[str]:
    """Where the description says something, as ``to_toml`` names it: ``parallelism.tp``."""
    parts: list[tuple[Section, str]] = [(job, "")]
    parts += [(getattr(job, name), f"{name}.") for name in SECTIONS]
    parts += [(entry, place) for _, entry, place in _entries(job)]
    for section, place in parts:
        for key, name in keys_of(type(section)).items():
            is_part = section is job and (key in SECTIONS or key in ENTRIES)
            if not is_part and getattr(section, name) is not None:
                yield place + key


def _entries(job: JobDescription) -> Iterator[tuple[str, Section, str]]:
    """Every [[entry]]: its table, itself, and the start of its places."""
    for rank in job.rank:
        yield "rank", rank, f"rank.{rank.rank}."
    for host in job.host:
        yield "host", host, f"host.{host.host}."
    for port in job.port:
        yield "port", port, f"port.{port.node}.{port.port}."
    for named in job.range:
        yield "range", named, f"range.{named.name}."
    for source in job.source:
        yield "source", source, f"source.{source.path}."


def _section_lines(
    section: Section,
    place: str,
    provenance: Mapping[str, str],
    *,
    skip: Sequence[str] = (),
    unknown: bool = True,
) -> Iterator[str]:
    for key, name in keys_of(type(section)).items():
        if key in skip:
            continue
        value = getattr(section, name)
        origin = provenance.get(place + key)
        if value is not None:
            yield f"{key} = {_toml(value)}  # {shown(origin or 'given', 200)}"
        elif unknown:
            reason = f"unknown: {shown(origin, 200)}" if origin else "unknown"
            yield f"# {key} = ?  # {reason}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON escapes are TOML's, but for lone surrogates, which UTF-8 input cannot hold.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(v) for v in value)}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    return value.isoformat() if isinstance(value, datetime) else repr(value)

"""Job descriptions from what a user has at hand: job.toml, or another program's configuration.

Recognised by content, never by name alone: DeepSpeed JSON, Megatron arguments (a command line,
or the dump in its log), torchtitan TOML, Hugging Face trainer arguments and model configuration,
Slurm (``scontrol show job``, ``sacct --json``), Kubernetes pods and jobs, ``nvidia-smi topo -m``,
an NCCL topology, and the meta file of pipeline timers.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence

import msgspec

from tracekit.errors import InputError
from tracekit.job import JobDescription, is_job_file, merge_jobs, parse_job, read_given
from tracekit.jobs_import import arguments, cluster, configs, topology
from tracekit.jobs_import.topology import read_topology
from tracekit.wording import safe

Reader = Callable[[str], JobDescription | None]

READERS: tuple[tuple[str, Reader], ...] = (
    ("DeepSpeed configuration", configs.deepspeed),
    ("Hugging Face model configuration", configs.huggingface_model),
    ("Hugging Face trainer arguments", configs.huggingface_trainer),
    ("torchtitan configuration", configs.torchtitan),
    ("Slurm job", cluster.slurm),
    ("Kubernetes object", cluster.kubernetes),
    ("GPU topology", topology.as_job),
    ("meta file of pipeline timers", configs.timer_meta),
    ("training arguments", arguments.read_arguments),
)
"""In the order in which they are asked; each answers None for what is not its own."""


def import_description(text: str, path: str) -> tuple[str, JobDescription]:
    """What a text is, and the job description that it gives. InputError where nobody knows."""
    for name, reader in READERS:
        try:
            description = reader(text)
        except msgspec.ValidationError as error:  # a value that no job has
            raise InputError(f"{path}: {name}: {safe(str(error))[:200]}") from None
        if description is not None:
            notes = tuple(f"{path}: {note}" for note in description.notes)
            return name, msgspec.structs.replace(description, files=(path,), notes=notes)
    raise InputError(
        f"{path}: no job description that is known",
        hint="job.toml; or " + ", ".join(name for name, _ in READERS),
    )


def load_description(path: str | os.PathLike[str]) -> JobDescription:
    """One description of any recognised kind. InputError names the path."""
    shown = os.fspath(path)
    data = read_given(path)
    if is_job_file(shown, data):
        return parse_job(data, shown)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    try:
        return import_description(text, shown)[1]
    except InputError:
        if not shown.lower().endswith(".toml"):
            raise
    return parse_job(data, shown)  # its errors name the line


def load_descriptions(paths: Sequence[str | os.PathLike[str]]) -> JobDescription:
    """Several as one: later files win, contradictions are in ``notes``."""
    return functools.reduce(merge_jobs, (load_description(p) for p in paths), JobDescription())


__all__ = [
    "READERS",
    "import_description",
    "load_description",
    "load_descriptions",
    "read_topology",
]

"""The job description, ``job.toml``: what a user says about a job, typed and checked.

Every field is optional: what is not given is inferred from the traces or reported as unknown.
Units are in the names (``_bytes_per_s``, ``_flops_per_s``); ``[[source]] interval`` is in
seconds. Paths are relative to the file that holds them and never lead outside its folder.

    name = "llama-ft"
    [parallelism]
    tp = 8
    [clocks]
    shared = true               # one machine's clock wrote all files
    [[rank]]
    rank = 0
    host = "gpu-11"
    [[range]]
    name = "prepare shards"     # what ranges of this name are for
    kind = "input"
    [[source]]
    path = "node1/*.json.gz"    # * stays in a folder, ** does not
    host = "gpu-12"
    [[source]]
    path = "gpu.csv"            # a table with headers of its own
    columns = { time = "t", gpu = "card", power = "P [mW]", sm_active = "busy [%]" }
    [[source]]
    path = "ports.csv"
    columns = { time = "t", host = "switch", port = "if", tx_bytes = "out [MB]" }
"""

from __future__ import annotations

from tracekit.job.merging import load_jobs, merge_jobs
from tracekit.job.model import (
    Hardware,
    JobDescription,
    Parallelism,
    Prices,
    RankEntry,
    SourceEntry,
)
from tracekit.job.paths import PathMatcher, said_of
from tracekit.job.reading import is_job_file, load_job, parse_job, place_of, read_given
from tracekit.job.writing import places, to_toml

__all__ = [
    "Hardware",
    "JobDescription",
    "Parallelism",
    "PathMatcher",
    "Prices",
    "RankEntry",
    "SourceEntry",
    "is_job_file",
    "load_job",
    "load_jobs",
    "merge_jobs",
    "parse_job",
    "place_of",
    "places",
    "read_given",
    "said_of",
    "to_toml",
]

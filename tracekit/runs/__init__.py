"""Building a run: files to shards (a map over files), then derive, then the manifest.

Idempotent by content: the key of a run hashes its sources' bytes, the job description, the
options and the versions; ingesting the same again changes nothing. Finished shards of an ingest
that was killed are found again and kept.
"""

from tracekit.runs.build import derive_again, ingest, is_up_to_date, staleness
from tracekit.runs.execute import Progress, sweep_dead_work, work_folder
from tracekit.runs.keys import job_digest, sources_digest
from tracekit.runs.plan import ShardTask, available_cpus, spread
from tracekit.runs.sources import (
    columns_of,
    explain,
    gather,
    has_reports,
    is_job_description,
    job_of,
)

__all__ = [
    "Progress",
    "ShardTask",
    "available_cpus",
    "columns_of",
    "derive_again",
    "explain",
    "gather",
    "has_reports",
    "ingest",
    "is_job_description",
    "is_up_to_date",
    "job_digest",
    "job_of",
    "sources_digest",
    "spread",
    "staleness",
    "sweep_dead_work",
    "work_folder",
]

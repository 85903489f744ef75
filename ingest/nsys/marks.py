"""What an export is known by, without the modules that read one."""

from __future__ import annotations

MAGIC = b"SQLite format 3\0"
SUFFIX = "_pqtdir"
"""What nsys adds to the name of a folder of Parquet files."""
MARKERS = (
    "StringIds.parquet",
    "META_DATA_EXPORT.parquet",
    "TARGET_INFO_SESSION_START_TIME.parquet",
)
"""Two of these make a folder an export."""

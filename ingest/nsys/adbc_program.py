"""The program that reads large tables with adbc-driver-sqlite: ``python -I`` on this file.

A process of its own, because this driver can neither be stopped nor be held to a length: what a
damaged file makes of it ends here. It imports nothing of tracekit, so that it starts quickly, and
is given its work on standard input: first a line of JSON with its limits, then a line of JSON with
each statement. It answers with an Arrow stream and ``DONE``. At any trouble it ends, with a status
and no word, since words might quote the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import IO, Any

DONE = b"."
"""Follows the end of each stream: one that breaks off at a batch looks whole to Arrow."""
DAMAGED, WRONG_TYPE, NO_DRIVER = 3, 4, 5
"""Statuses: SQLite gives no more rows; a column changed its type; the driver cannot be loaded."""


def main() -> int:
    """Answer statements until standard input ends; the status of the process."""
    setup = json.loads(sys.stdin.readline())
    sys.path[:] = setup["path"]
    _limit(setup["cpu_s"], setup["memory_bytes"])
    # Nothing that a library prints may come between the bytes of a stream.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        import adbc_driver_manager as manager
        import adbc_driver_sqlite as driver
        import pyarrow as pa
    except (ImportError, OSError):
        return NO_DRIVER
    try:
        with (
            driver.connect(setup["uri"]) as database,
            manager.AdbcConnection(database) as connection,
        ):
            for pragma in ("trusted_schema = OFF", "cell_size_check = ON"):
                with manager.AdbcStatement(connection) as statement:
                    statement.set_sql_query(f"PRAGMA {pragma}")
                    statement.execute_update()
            for line in sys.stdin:
                with manager.AdbcStatement(connection) as statement:
                    statement.set_options(
                        **{driver.StatementOptions.BATCH_ROWS.value: str(setup["batch_rows"])}
                    )
                    statement.set_sql_query(json.loads(line))
                    _answer(pa, statement, out)
    except (manager.Error, pa.ArrowException, OSError, MemoryError) as error:
        return WRONG_TYPE if "Type mismatch" in str(error) else DAMAGED
    return 0


def _answer(pa: Any, statement: Any, out: IO[bytes]) -> None:
    handle, _ = statement.execute_query()
    with (
        pa.RecordBatchReader.from_stream(handle) as batches,
        pa.ipc.new_stream(out, batches.schema) as stream,
    ):
        for batch in batches:
            stream.write_batch(batch)
            out.flush()
    out.write(DONE)
    out.flush()


def _limit(cpu_s: int, memory_bytes: int) -> None:
    """Also for the case that nobody is left to end this process: it cannot run or grow forever."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    for kind, value in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # tracekit says what there is to say
        os._exit(main())

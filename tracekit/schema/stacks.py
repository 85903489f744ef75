"""Where the threads of a job's processes stood when somebody looked."""

from __future__ import annotations

from tracekit.schema.declare import PLACE_GRAIN, col, source_table

TABLES = (
    source_table(
        "thread_stack",
        "A thread of a process in a dump of its stacks (py-spy, faulthandler, gdb, a watchdog).",
        PLACE_GRAIN,
        col("format", "VARCHAR", "Who wrote it: py-spy, faulthandler, gdb or watchdog."),
        col(
            "dump_number",
            "INTEGER",
            "One process at one moment: the dumps of a file in their order, from 1.",
        ),
        col("pid", "BIGINT", "Process, as the dump states it; null where it does not."),
        col("stated_rank", "INTEGER", "Global rank that stands before it, or in its command."),
        col("local_rank", "INTEGER", "Number on its host, as its launcher says."),
        col("is_main", "BOOLEAN", "Whether it is the process's main thread; null when not known."),
        col("state", "VARCHAR", "active or idle, as py-spy saw it; null elsewhere."),
        col(
            "frames",
            "VARCHAR[]",
            "The innermost first: function (file:line), of native code function (library). No "
            "arguments, no lines of source; of a file of no library the name alone.",
            "name",
        ),
    ),
)

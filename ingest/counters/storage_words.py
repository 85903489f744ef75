"""The canonical names of storage counters, once: what each means, its unit and its kind."""

from __future__ import annotations

from tracekit.ingest.counters.vocabulary import Vocabulary, Word

OPERATIONS = {
    "read": "reads",
    "write": "writes",
    "flush": "flushes",
    "metadata": "all other operations (lookups, attributes, opens)",
}


def _counts() -> list[Word]:
    words = []
    for name, what in OPERATIONS.items():
        words += [
            Word(f"{name}_requests", "count", "cumulative", f"Finished {what}."),
            Word(f"{name}_time", "ns", "cumulative", f"Time that {what} took, all added up."),
            Word(f"{name}_rate", "1/s", "window", f"Finished {what} a second."),
            Word(f"{name}_latency", "ns", "window", f"Mean time that {what} took."),
        ]
    return words


STORAGE = Vocabulary(
    *_counts(),
    Word("read_bytes", "bytes", "cumulative", "Bytes read."),
    Word("write_bytes", "bytes", "cumulative", "Bytes written."),
    Word("read_throughput", "bytes/s", "window", "Bytes read a second."),
    Word("write_throughput", "bytes/s", "window", "Bytes written a second."),
    Word("read_timeouts", "count", "cumulative", "Reads that a server did not answer in time."),
    Word("write_timeouts", "count", "cumulative", "Writes that a server did not answer in time."),
    Word("busy_time", "ns", "cumulative", "Time with at least one request under way."),
    Word("busy", "ratio", "window", "Share of time with at least one request under way."),
    Word("queue_length", "requests", "window", "Mean number of requests under way."),
    Word("read_commands", "count", "cumulative", "Reads that a disk's controller finished."),
    Word("write_commands", "count", "cumulative", "Writes that a disk's controller finished."),
    Word("controller_busy_time", "ns", "cumulative",
         "Time with a command under way, in whole minutes."),
    Word("media_errors", "count", "cumulative", "Data that a disk could not give back unharmed."),
    Word("logged_errors", "count", "cumulative", "Entries of a disk's own log of errors."),
    Word("spare", "ratio", "gauge", "Spare blocks of a disk that are left."),
    Word("wear", "ratio", "gauge", "Part of a disk's life that is used, by its maker; may pass 1."),
    Word("temperature", "celsius", "gauge", "Temperature of a disk."),
    Word("hot_time", "ns", "cumulative", "Time above a disk's warning temperature, in minutes."),
    Word("too_hot_time", "ns", "cumulative", "Time above its critical temperature, in minutes."),
    Word("light_throttled_time", "ns", "cumulative", "Time slowed down for heat, a little."),
    Word("heavy_throttled_time", "ns", "cumulative", "Time slowed down for heat, much."),
)  # fmt: skip
"""The names, and whether a number only grows."""

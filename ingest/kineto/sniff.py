"""Recognises traces, and the JSON files that lie beside them, by their first bytes."""

from __future__ import annotations

import re

from tracekit.ingest.base import Recognition
from tracekit.ingest.traces import names

EPOCH_FROM_US = 10**15
"""Microseconds from here on (2001) are an epoch."""

_TS = re.compile(rb'"ts"\s*:\s*"?(-?\d{1,30})(\.\d+)?')
_EVENTS = re.compile(rb'(?<!\\)"traceEvents"\s*:')
_KINETO_KEYS = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|displayTimeUnit|baseTimeNanoseconds'
    rb'|cupti_version|trace_id|record_shapes|with_stack|profile_memory)"\s*:'
)
_EVENT = re.compile(rb'^\s*\[\s*\{(?=[^{}]{0,400}"ph"\s*:\s*"[A-Za-z]")')
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}\[]{0,400}?"rank"\s*:\s*"?(\d{1,9})(?!\d)')
_WORLD = re.compile(
    rb'"distributedInfo"\s*:\s*\{[^{}\[]{0,400}?"world_size"\s*:\s*"?(\d{1,9})(?!\d)'
)

OTHER_JSON: tuple[tuple[str, re.Pattern[bytes], str], ...] = (
    (
        "execution_trace",
        # Only behind the first of its words: behind each of many, the text would take its square.
        re.compile(
            rb'\A(?>.*?"schema"\s*+:\s*+"[\d.])[^"]*+".*"nodes"\s*:|\A\s*+\{\s*+"schema"\s*+:\s*+"\d',
            re.S,
        ),
        "a PyTorch execution trace (schema and nodes): it holds no times",
    ),
    (
        "memory_snapshot",
        re.compile(rb'"(?:device_traces|segments|allocator_settings)"\s*:', re.S),
        "a CUDA memory snapshot: allocator state, no timeline of work",
    ),
    (
        "memory_timeline",
        # Two numbers at least: tags of mpirun begin with brackets, too.
        re.compile(rb"^\s*\[\s*\[\s*-?\d[\d.eE+-]*\s*,\s*-?\d[\d.eE+-]*\s*(?:,|\]\s*[,\]])"),
        "a PyTorch memory timeline: sizes over time, no work",
    ),
)
"""Kind, what shows it, and why it is not read here."""

OTHER_TRACES: tuple[tuple[str, re.Pattern[bytes], str], ...] = (
    (
        "xla_trace",
        re.compile(rb'"/device:(?:GPU|TPU):\d|"hlo_module"\s*+:'),
        "a trace of XLA's profiler (JAX, TensorFlow): its lanes of devices are not PyTorch's and "
        "are not read; nsys profile records the same kernels",
    ),
    (
        "horovod_timeline",
        re.compile(rb'"NEGOTIATE_(?:ALLREDUCE|ALLGATHER|BROADCAST|ALLTOALL|REDUCESCATTER)"'),
        "a timeline of Horovod: it is not read; torch.profiler or nsys profile records the same "
        "collectives with the work beside them",
    ),
    (
        "ascend_trace",
        re.compile(rb'"name"\s*+:\s*+"(?:Ascend Hardware|CANN|Overlap Analysis)"'),
        "a trace of Ascend's profiler: its lanes of devices are not PyTorch's and are not read",
    ),
)
"""Trace events of other programs: as above."""


def looks_relative(text: bytes) -> bool:
    """Whether the first times in a stretch of events count from something else than 1970."""
    first_time = _TS.search(text)
    return first_time is not None and abs(int(first_time[1])) < EPOCH_FROM_US


def sniff(head: bytes, name: str) -> Recognition | None:
    """A trace, or a relative of one that holds nothing to ingest; None for other files."""
    text = head.removeprefix(b"\xef\xbb\xbf")
    start = text.lstrip()[:1]
    if start not in (b"{", b"["):
        return None
    is_list = start == b"[" and _EVENT.match(text)
    if is_list or (start == b"{" and _EVENTS.search(text)):
        for kind, pattern, reason in OTHER_TRACES:
            if pattern.search(text):
                return Recognition(kind, reason, status="unrecognised")
        return _trace("a list of trace events" if is_list else "it has traceEvents", text, name)
    for kind, pattern, reason in OTHER_JSON:
        if pattern.search(text):
            return Recognition(kind, reason, status="unrecognised")
    if start == b"{" and _KINETO_KEYS.search(text):
        return _trace("it begins with the keys of a profiler trace", text, name)
    return None


def _trace(reason: str, head: bytes, name: str) -> Recognition:
    facts: dict[str, object] = {}
    for key, pattern in (("file_rank", _RANK), ("world_size", _WORLD)):
        fact = pattern.search(head)
        if fact:
            facts[key] = int(fact[1])
    rank = names.rank_of_name(name)
    if rank is not None:
        facts["name_rank"] = rank
    return Recognition("kineto", reason, "kineto", facts=facts)

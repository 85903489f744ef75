"""Recognises files of stacks."""

from __future__ import annotations

import re

from tracekit.ingest.base import Recognition

NAME = "stacks"

_JSON = re.compile(rb"\A(?:\xef\xbb\xbf)?\s{0,100}\[\s{0,100}[{\]]")
_LINE = re.compile(
    rb"(?:"
    rb"(?P<begin>Thread (?:0x[0-9A-Fa-f]{1,16}|\d{1,20}) \((?:active|idle|most recent call first|"
    rb"Thread 0x|LWP )|Current thread 0x|Thread 0x[0-9a-f]{1,16} \[)"
    rb"|Process \d{1,10}: |Python v\d|    \S|        |  File \"|  Garbage-coll|#\d{1,6} |"
    rb"\[New LWP |\[Thread debugging |\[Inferior |\[Switching to |Using host libthread_db |"
    rb"warning: |"
    rb"Traceback \(most recent call first|Timeout \(\d|Attaching to |Reading symbols |"
    rb"Download|Loaded symbols |To enable execution |\tadd-auto-load|line to your |To completely |"
    rb"\tset auto-load |For more information |\tinfo \"|\"Auto-loading |  )"
)
_LOOKED_AT = 2000
_LEAST_SHARE = 0.7


def is_json(head: bytes) -> bool:
    """Whether a list of objects begins; gdb's lines begin with such a bracket too."""
    return _JSON.match(head) is not None


def sniff(head: bytes) -> Recognition | None:
    """A file most of whose lines are of stacks, with one that names a thread among them.

    A job's output in which somebody's stacks stand is none: there is more to read in it.
    """
    if b"\0" in head[:4096]:
        return None
    if is_json(head):
        is_ours = b'"os_thread_id"' in head and b'"frames"' in head
        why = "stacks of threads, as py-spy dump --json has them"
        return Recognition("stacks", why, NAME) if is_ours else None
    head = head.removeprefix(b"\xef\xbb\xbf")
    if b"Thread " not in head and b"Current thread " not in head:
        return None
    lines = [line for line in head.split(b"\n")[:_LOOKED_AT] if line.strip()]
    kinds = [_LINE.match(line) for line in lines]
    of_stacks = [m for m in kinds if m is not None]
    if not any(m["begin"] for m in of_stacks) or len(of_stacks) < _LEAST_SHARE * len(lines):
        return None
    return Recognition("stacks", "stacks of a process's threads", NAME)

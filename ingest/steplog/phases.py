"""What a job does between its steps, in its own output: checkpoints, evaluations, collections.

Rows are ``log_event`` of the codes ``checkpoint-save``, ``checkpoint-load``, ``evaluation``,
``collection`` (of garbage) and ``epoch`` (of the data, where it ends or begins anew), one a line,
with its place among the lines of steps: that is what tells which step had to wait for it. Words
decide, as programs print them: Megatron-LM, NeMo, torchtitan, DeepSpeed, Hugging Face Trainer,
Lightning, nanoGPT, MaxText, Composer, fairseq, and lines of one's own that speak plainly. Nothing
of the line is kept but, of what is loaded before the first step, its time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tracekit.ingest.base import Sink, write_columns
from tracekit.ingest.steplog.silence import STAMP_BYTES, moment_ns
from tracekit.ingest.steplog.words import any_of

MAX_EVENTS = 100_000
"""Lines of one file that are kept: a checkpoint every hundred steps of ten million."""
MAX_LINE_BYTES = 400
"""No such line says what it is further behind."""

WORDS = (
    b"heckpoint", b"valid", b"Valid", b"eval", b"Eval", b"val loss", b"garbage", b"Garbage",
    b"[GC]", b"[Torch] Saved", b"saving model to", b"Writing model shards",
    b"epoch", b"Epoch", b"EPOCH", b"re-looped",
)  # fmt: skip
_TIMED = frozenset(("checkpoint-load",))
"""Codes whose lines' times tell more than those of the steps around them."""
KEYS = any_of(WORDS)
_KEY = re.compile(KEYS.encode())
_SAYS = tuple(
    (code, re.compile(pattern, re.I))
    for code, pattern in (
        (
            "checkpoint-load",
            rb"\b(?:load|restor|resum)(?:e|ing|ed)?\b.{0,60}\bcheckpoint|\bcheckpoint loaded",
        ),
        (
            "checkpoint-save",
            rb"\b(?:sav(?:e|ing|ed)|writ(?:ing|ten)|wrote|stor(?:ing|ed))\b.{0,60}\bcheckpoint"
            rb"|(?<!gradient )(?<!activation )\bcheckpoint(?:s|ing)?\b.{0,60}"
            rb"\b(?:sav(?:e|ing|ed)|written|stored)\b|, saving model to '"
            rb"|\b(?:sav(?:ing|ed)) .{0,120}[/_-](?:checkpoint|global_step)"
            rb"|^\s*Writing model shards:",
        ),
        (
            "evaluation",
            rb"\b(?:validation|eval(?:uation)?|val)[ _/-]?(?:loss|ppl|perplexity|accuracy|metrics)"
            rb"|\bvalidate step\b|\b(?:running|begin|start|starting) (?:evaluation|validation)"
            rb"|\b(?:evaluating|validating)\b|\bvalidation dataloader\b"
            rb"|\bvalidation: iteration \d|\bevaluate \.{3}"
            rb"|\b(?:evaluation|validation) (?:done|finished|completed?|took)\b"
            rb"|\"key\": \"eval_st(?:art|op)\"",
        ),
        ("collection", rb"\[GC\]|\bgarbage collect"),
        (
            "epoch",
            rb"\b(?:begin|start|end|finish|complet)\w{0,5}(?: of)?(?: training| new| data)? epoch\b"
            rb"(?: \d|$)|\bepoch:? \d{1,7}(?:/\d{1,7})?(?: has)? "
            rb"(?:start|beg[ia]n|end|finish|complet|done|took)"
            rb"|^[ *=#-]*epoch:? \d{1,7}(?:/\d{1,7})?[ *=#:-]*$"
            rb"|\bdataset \S{1,200} is being re-looped",
        ),
    )
)


class PhaseReader:
    """Takes what lies between steps out of a job's output. Consumes no line."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._places: list[int] = []
        self._codes: list[str] = []
        self._heads: list[bytes] = []
        self._left_out = 0

    @property
    def count(self) -> int:
        """Lines found so far."""
        return len(self._places)

    def take(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Look at lines with their places; those without a word of ``KEYS`` are passed over."""
        for place, line in lines:
            if not _KEY.search(line):
                continue
            text = line[:MAX_LINE_BYTES]
            code = next((code for code, pattern in _SAYS if pattern.search(text)), None)
            if code is None:
                continue
            if len(self._places) < MAX_EVENTS:
                self._places.append(place)
                self._codes.append(code)
                self._heads.append(line[:STAMP_BYTES] if code in _TIMED else b"")
            else:
                self._left_out += 1

    def finish(self, basis: str) -> None:
        """Write what was found; the file's times count from ``basis`` (epoch, local or none)."""
        if self._places:
            zoned = basis == "epoch"
            columns = {
                "place": self._places,
                "time_ns": [
                    moment_ns(head, zoned=zoned) if head and basis != "none" else None
                    for head in self._heads
                ],
                "code": self._codes,
                "severity": ["info"] * len(self._places),
            }
            write_columns(self._sink, "log_event", columns)
        self._sink.count(
            "phase_line", len(self._places), severity="info",
            doc="Lines that tell of a checkpoint, an evaluation or a collection.",
        )  # fmt: skip
        self._sink.count(
            "phase_left_out", self._left_out, doc="Such lines beyond those kept of one file."
        )

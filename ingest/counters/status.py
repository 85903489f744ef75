"""What became of a file: good and bad records, and the facts that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeVar

from tracekit.ingest import streams
from tracekit.ingest.base import Sink, SourceFile
from tracekit.ingest.counters.documents import Document, documents
from tracekit.ingest.lines import Line, lines
from tracekit.wording import plural

if TYPE_CHECKING:
    from tracekit.ingest.counters.net_samples import NetSamples


def count_documented(sink: Sink, what: str) -> None:
    """Say that a format was never seen in a real file."""
    sink.count(
        "parsed_from_documentation",
        severity="info",
        doc=f"{what} is read as its documentation describes it; no real file was at hand to "
        "prove that. Findings that rest on it are notes.",
    )


class Reading:
    """Counts what could be read of one file, and says at the end what it was worth."""

    def __init__(self, sink: Sink, stream: BinaryIO, producer: str | None, place_kind: str) -> None:
        self._sink = sink
        self._stream = stream
        self._producer = producer
        self._place_kind = place_kind
        self.good_count = 0
        self.bad_count = 0
        self.answer: str | None = None
        """What the file says where it holds no numbers on purpose (an empty table, a refusal)."""

    def documents(self) -> Iterator[Document]:
        """The JSON values of the file that can be read; others are bad records."""
        for document in documents(self._stream):
            if document.problem:
                self.bad(document.line, document.problem)
            else:
                yield document

    def good(self, n: int = 1) -> None:
        """Records that were understood."""
        self.good_count += n

    def bad(self, place: int, problem: str, shape: str | None = None) -> None:
        """A record that was not."""
        self.bad_count += 1
        self._sink.count(
            "bad_record",
            doc=f"A record that could not be read ({problem}).",
            place=place,
            shape=shape,
        )

    def bad_time(self, place: int) -> None:
        """A time that cannot be used."""
        self._sink.count(
            "bad_time",
            doc="A time that is none, or lacks its zone: the file's own time is used instead.",
            place=place,
        )

    def from_documentation(self, what: str) -> None:
        """The format was never seen in a real file: rules may raise at most a note on it."""
        count_documented(self._sink, what)

    def finish(self, samples: NetSamples, problem: str | None = None) -> None:
        """Write what is left and set the facts of the source."""
        samples.finish()
        is_cut = problem is not None
        status, reason = "ok", None
        if is_cut:
            status, reason = "partial", f"it breaks off ({problem})"
        elif self.bad_count:
            status, reason = "partial", f"{plural(self.bad_count, 'record')} could not be read"
        elif not samples.rows_count and self.answer is None and not self.good_count:
            status, reason = "empty", "it holds no numbers"
        elif self.answer is not None and not samples.rows_count:
            reason = self.answer
        elif samples.missing_count and not samples.rows_count:
            reason = "all its cells say that there is no number (N/A)"
        self._sink.fact(status=status, place_kind=self._place_kind, is_truncated_end=is_cut)
        raw = getattr(self._stream, "raw_bytes", None)
        if raw is not None and not is_cut:
            self._sink.fact(raw_bytes=raw)
        if reason:
            self._sink.fact(reason=reason)
        if self._producer:
            self._sink.fact(producer=self._producer)


class LineParser(Protocol):
    """What a format makes of the lines of a file."""

    @property
    def samples(self) -> NetSamples:
        """Where they go."""

    def line(self, line: Line) -> None:
        """Take the next line."""


ParserT = TypeVar("ParserT", bound=LineParser)


@contextmanager
def by_lines(
    source: SourceFile,
    sink: Sink,
    made: Callable[[Reading], ParserT],
    producer: str | None = None,
) -> Iterator[tuple[ParserT, Reading]]:
    """The file's parser with all lines taken; at the end the facts of the source are set."""
    with source.open() as stream:
        reading = Reading(sink, stream, producer, "line")
        parser = made(reading)
        for line in lines(stream):
            parser.line(line)
        yield parser, reading
        reading.finish(parser.samples, streams.stream_problem(stream))

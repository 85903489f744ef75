"""What the options before the command set, and what goes to stderr."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from tracekit.errors import UsageError
from tracekit.logs import record
from tracekit.wording import safe_lines

if TYPE_CHECKING:
    from tracekit.runs import Progress


@dataclass
class State:
    """Options that hold for any command."""

    verbose: bool = False
    quiet: bool = False
    debug: bool = False
    is_log_json: bool = False
    """Whether each message on stderr is a JSON object of its own line."""
    is_interrupted: bool = False
    """Whether Ctrl-C was pressed, also where a library made an error of its own of it."""
    is_terminated: bool = False
    """Whether it was no Ctrl-C but a SIGTERM: a time limit, a node that is drained."""


STATE = State()


def watch_interrupts() -> None:
    """Remember Ctrl-C: DuckDB and Arrow turn the KeyboardInterrupt into errors of their own.

    SIGTERM ends a command in the same way, so that locks and drafts go as they do there.
    """
    STATE.is_interrupted = STATE.is_terminated = False
    if threading.current_thread() is not threading.main_thread():
        return

    def interrupted(number: int, _: object) -> None:
        STATE.is_interrupted = True
        STATE.is_terminated = number == signal.SIGTERM
        raise KeyboardInterrupt

    # Unless a program around this one, or nohup, sees to it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, interrupted)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """As JSON writes them, what the stream cannot hold: JSON stays JSON, text can be read."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return json.dumps(text)[1:-1], error.end


class _Closed(io.TextIOBase):
    """A standard output that the caller has closed."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    @property
    def buffer(self) -> _Closed:
        """The same for bytes."""
        return self


def prepare_streams() -> None:
    """Streams that take any text, whatever their encoding, and are there."""
    codecs.register_error("tracekit", _escaped)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  # to the end
    if sys.stdout is None:
        sys.stdout = _Closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="tracekit")


@contextmanager
def to_stdout() -> Iterator[TextIO]:
    """stdout, flushed at the end. UsageError where it is closed or full."""
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # the reader went away, which is no error
    except OSError as error:
        silence_stdout()
        raise UsageError(
            f"standard output cannot be written ({error.strerror or type(error).__name__})",
            hint="-o FILE",
        ) from None


def is_stdout_broken() -> bool:
    """Whether it was standard output that failed, where a library wrote to it."""
    try:
        sys.stdout.write("")
        sys.stdout.flush()
    except OSError:
        return True
    return False


def silence_stdout() -> None:
    """Let what is still buffered go nowhere: the interpreter would fail on it at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str) -> None:
    """One line to stderr, which may be closed or full: there is nobody else to tell."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr)  # noqa: T201  # the one place that writes notes


def fail(message: str, hint: str | None = None) -> None:
    """What went wrong to stderr, and what to do about it."""
    if STATE.is_log_json:
        _say(record("error", message, **({"hint": hint} if hint else {})))
        return
    _say(safe_lines(f"error: {message}"))
    if hint:
        _say(safe_lines(f"hint: {hint}"))


def note(text: str, *, level: str = "info", **fields: Any) -> None:
    """One line to stderr, unless quiet. ``fields`` say the same to programs, as JSON values."""
    if STATE.quiet:
        return
    if STATE.is_log_json:
        _say(record(level, text.removeprefix("note: "), **fields))
    else:
        _say(safe_lines(text))


def use_colour() -> bool:
    """Whether stdout is a terminal that wants colour (NO_COLOR, TERM=dumb say no)."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


@contextmanager
def progress_bar(what: str) -> Iterator[Progress | None]:
    """A progress bar in bytes on stderr; None off a terminal, when quiet, and among JSON."""
    if STATE.quiet or STATE.is_log_json or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def update(done: int, total: int, _: str) -> None:
            bar.update(task, completed=done, total=total)

        yield update

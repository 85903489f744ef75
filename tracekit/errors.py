"""The errors that tracekit raises on purpose, and the exit code each maps to.

TracekitError                 anything that we say ourselves; exit 2
├── UsageError                the request cannot be meant: unknown query, bad option value
├── InputError                a file or folder cannot be used: absent, empty, unrecognised
│   └── AmbiguousInputError   the files cannot be one attempt of one job; names the candidates
├── StoreError                a run is damaged, of another version, or in the way
│   ├── DamagedRunError       its bytes are not those that were written
│   └── RunWriteError         a run cannot be written: no space, no permission
├── QueryError                SQL that is refused or fails
└── ClusterError              a cluster cannot be reached, or does not do the work

Anything else that escapes is our own bug and exits with 70.
"""

from __future__ import annotations

from pathlib import PurePath


class TracekitError(Exception):
    """Base of all errors that are meant for the user.

    ``message`` says what was expected and what was found (with path and place);
    ``hint`` says what to try, and is printed on a line of its own.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries from ingest workers; the keyword must survive.
        return (_rebuild, (type(self), self.message, self.hint))


def where_raised(error: BaseException) -> str:
    """A bug's kind, file and line; never its message, which may quote what was read."""
    trace = error.__traceback__
    where = "unknown"
    while trace is not None:
        where = f"{PurePath(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__} at {where}"


def _rebuild(kind: type[TracekitError], message: str, hint: str | None) -> TracekitError:
    return kind(message, hint=hint)


class UsageError(TracekitError):
    """The request itself cannot be meant."""


class InputError(TracekitError):
    """A file or folder cannot be used."""


class AmbiguousInputError(InputError):
    """The files cannot be one attempt of one job."""


class StoreError(TracekitError):
    """A run is damaged, of another version, or in the way."""


class DamagedRunError(StoreError):
    """A run's bytes are not those that were written."""


class RunWriteError(StoreError):
    """A run cannot be written: no space, no permission."""


class QueryError(TracekitError):
    """SQL that is refused or that fails."""


class ClusterError(TracekitError):
    """A cluster cannot be reached, or does not do the work."""

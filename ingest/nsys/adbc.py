"""The other end of adbc_program.py: starts it, asks it, waits for it, ends it.

What comes from there is believed only as far as it can be checked: Arrow validates each batch, a
stream counts as whole only if its last byte came, and nothing is waited for without a limit.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from tracekit.ingest.nsys.adbc_program import DAMAGED, DONE, NO_DRIVER, WRONG_TYPE

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.ingest.nsys.batch import Batch

BATCH_ROWS = 1 << 14
"""Rows of a batch."""
STALL_S = 60.0
"""How long a batch may take to come: a disk may be slow, but pages in circles give none."""
MEMORY_BYTES = 512 << 20
"""What the program may allocate: a batch of ordinary rows takes a hundredth of it."""
_MAX_MESSAGE_BYTES = 256 << 20
_PIPE_BYTES = 1 << 20
_PROGRAM = Path(__file__).with_name("adbc_program.py")
_WHY = {
    DAMAGED: "SQLite gave it no more rows",
    WRONG_TYPE: "a column has values of several types",
    NO_DRIVER: "adbc-driver-sqlite cannot be loaded",
}


class TroubleError(Exception):
    """The program gave up, or was given up, before the end of a table: why, in words."""


def is_there() -> bool:
    """Whether the driver is installed, and this system can wait for a pipe with a limit."""
    return (
        hasattr(select, "poll")
        and bool(sys.executable)
        and _PROGRAM.is_file()
        and importlib.util.find_spec("adbc_driver_sqlite") is not None
    )


class Query(Struct, frozen=True):
    """A statement whose answer has a row too many in front, and the columns between a row's id and
    the last one, which tells whether a text is too long."""

    sql: str
    is_text: dict[str, bool]
    """By column: text as bytes, or integers."""


def query(
    table: str, types: Mapping[str, str], wanted: Sequence[str], where: str, max_value_bytes: int
) -> Query | None:
    """What to ask for the wanted columns; None where one holds neither integers nor text.

    ``types``: of the table's columns, as declared. ``where`` is ours.

    A column of this driver has the type of the values in its first batch, nulls are integers, and
    a later value of another type is an error. So integers are asked for as they are; texts come as
    bytes, since the driver passes on what is no UTF-8, and after a row of ours that makes them
    bytes. A text that is longer than sqlite3 may read is not read here either, but told.
    """
    columns, first, is_text = ["rowid"], ["0"], {}
    for name in (c for c in wanted if c in types):
        kind = _affinity(types[name])
        if kind not in ("integer", "text"):
            return None
        is_text[name] = kind == "text"
        # Of a batch of nothing but empty blobs the driver makes an error.
        first.append("x'00'" if is_text[name] else "0")
        shown = f'"{name}"'
        if is_text[name]:
            is_read = f"typeof({shown}) = 'text' AND octet_length({shown}) <= {max_value_bytes}"
            shown = f"CASE WHEN {is_read} THEN CAST({shown} AS BLOB) END"
        columns.append(shown)
    lengths = [f'coalesce(octet_length("{name}"), 0)' for name, is_it in is_text.items() if is_it]
    columns.append(" OR ".join(f"{length} > {max_value_bytes}" for length in lengths) or "0")
    condition = f" WHERE {where}" if where else ""
    rows = f'SELECT {", ".join(columns)} FROM "{table}" NOT INDEXED{condition}'  # noqa: S608
    return Query(f"SELECT {', '.join([*first, '0'])} UNION ALL {rows}", is_text)


def _affinity(declared: str) -> str:
    """What SQLite makes of a declared type."""
    name = declared.upper()
    if "INT" in name:
        return "integer"
    if any(word in name for word in ("CHAR", "CLOB", "TEXT")):
        return "text"
    return "blob" if not name or "BLOB" in name else "number"


class Adbc:
    """The program, for one file. Started when first asked, and again after a trouble."""

    def __init__(self, uri: str, deadline: float) -> None:
        """``uri``: of the file, with its mode; ``deadline``: of all reading, on the clock
        ``time.monotonic``."""
        self._uri = uri
        self._deadline = deadline
        self._process: subprocess.Popen[bytes] | None = None
        self._is_busy = False

    def close(self) -> None:
        """End the program at once, whatever it does."""
        if self._process is None:
            return
        process, self._process = self._process, None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.kill()
        process.wait()

    def batches(self, query: Query) -> Iterator[Batch]:
        """Rows of a table in the order of their ids, as sqlite3 would give them. TroubleError where
        that is not sure, and where they end too early."""
        import numpy as np
        import pyarrow as pa

        from tracekit.ingest.nsys.batch import Batch

        expected = [pa.int64(), *(pa.binary() if t else pa.int64() for t in query.is_text.values())]
        with contextlib.closing(self._answer(query.sql)) as answer:
            last = None
            for number, batch in enumerate(answer):
                if batch.schema.types != [*expected, pa.int64()]:
                    raise TroubleError(_WHY[WRONG_TYPE])
                rows = batch if number else batch.slice(1)
                if not rows.num_rows:
                    continue
                ids, *columns, is_too_long = rows.columns
                rowids = np.asarray(ids)
                if (last is not None and rowids[0] <= last) or (rowids[1:] <= rowids[:-1]).any():
                    raise TroubleError("its rows are not in order")
                if np.asarray(is_too_long).any():
                    raise TroubleError("a text is too long")
                shown = [_as_text(c) if c.type == pa.binary() else c for c in columns]
                yield Batch(rowids, dict(zip(query.is_text, shown, strict=True)))
                last = rowids[-1]

    def _answer(self, sql: str) -> Generator[pa.RecordBatch]:
        """The answer to a statement. TroubleError where it ends too early."""
        import pyarrow as pa

        if self._is_busy:
            raise TroubleError("it was still reading another table")
        self._is_busy = True
        is_whole = False
        try:
            pipe = _Pipe(self._ask(sql), self._deadline)
            with pa.ipc.open_stream(pa.PythonFile(pipe, mode="r")) as stream:
                for batch in stream:
                    batch.validate(full=True)
                    yield batch
            is_whole = pipe.read(1) == DONE
            if not is_whole:
                raise TroubleError(self._why())
        except TimeoutError as error:
            raise TroubleError("it gave no rows within the time limit") from error
        except (OSError, ValueError) as error:  # Arrow's errors are of the latter
            raise TroubleError(self._why()) from error
        finally:
            self._is_busy = False
            if not is_whole:  # also where nobody wants the rest
                self.close()

    def _ask(self, sql: str) -> int:
        """Send a statement; the pipe that the answer comes from."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise OSError
        process.stdin.write(json.dumps(sql).encode() + b"\n")
        return process.stdout.fileno()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(  # noqa: S603  # this Python and a file of ours, no shell
            [sys.executable, "-I", str(_PROGRAM)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        setup = {
            "path": sys.path,
            "uri": self._uri,
            "cpu_s": max(1, int(self._deadline - time.monotonic()) + 1),
            "memory_bytes": MEMORY_BYTES,
            "batch_rows": BATCH_ROWS,
        }
        if process.stdin is None or process.stdout is None:
            raise OSError
        with contextlib.suppress(ImportError, AttributeError, OSError):
            import fcntl

            fcntl.fcntl(process.stdout.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        process.stdin.write(json.dumps(setup).encode() + b"\n")
        return process

    def _why(self) -> str:
        """Why the program ended, which its status tells."""
        if self._process is None:
            return "it could not be started"
        try:
            status = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "what it gave made no sense"
        if status < 0:
            return f"it was ended by signal {-status}"
        return _WHY.get(status, "it ended too early")


def _as_text(values: pa.Array) -> pa.Array:
    """Bytes as strings; what is no UTF-8 is replaced, as it is where sqlite3 reads."""
    import pyarrow as pa

    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [v if v is None else v.decode("utf-8", "replace") for v in values.to_pylist()]
        return pa.array(texts, pa.string())


class _Pipe:
    """What Arrow reads from: a pipe, with a limit to each wait."""

    closed = False

    def __init__(self, fd: int, deadline: float) -> None:
        self._fd = fd
        self._deadline = deadline
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def readable(self) -> bool:
        """As a file says it."""
        return True

    def close(self) -> None:
        """The process owns the pipe, and may have more to say."""

    def read(self, size: int) -> memoryview:
        """So many bytes; fewer only where the pipe ends. TimeoutError where none comes."""
        if not 0 <= size <= _MAX_MESSAGE_BYTES:
            raise OSError("a message of no plausible size")
        view = memoryview(bytearray(size))
        done = 0
        while done < size:
            wait = min(STALL_S, self._deadline - time.monotonic())
            if wait <= 0 or not self._poll.poll(wait * 1000):
                raise TimeoutError
            got = os.readv(self._fd, [view[done:]])
            if not got:
                break
            done += got
        return view[:done]

"""Files that are whole or not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracekit.errors import UsageError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A neighbour of the file to write to, which takes its place once it is whole.

    A link stays, and what it leads to is replaced; a pipe or device is written to itself.
    """
    whole = path.resolve()
    draft = whole.with_name(f".{whole.name}.{os.getpid()}.part")
    if whole.exists() and not whole.is_file():
        draft = whole
    try:
        yield draft
        if draft != whole:
            if whole.exists():
                shutil.copymode(whole, draft)
            draft.replace(whole)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror or type(error).__name__})",
            hint="-o names a file in a folder that exists",
        ) from None
    finally:
        if draft != whole:
            draft.unlink(missing_ok=True)

"""What is kept of a frame: its function, file and line; of native code its function and library.

Arguments, locals and lines of source hold what programs were given, secrets too, so they are cut
off before anything is kept. Of paths only what lies inside of a library stays: folders above are
people's names.
"""

from __future__ import annotations

import re

MAX_FUNCTION = 160
"""Characters of a function's name: templates of C++ go on for pages."""
MAX_FRAMES = 400
"""Of a thread; the outermost ones of a deep recursion are left out."""

_LIBRARY = re.compile(r".*/(?:(?:site|dist)-packages|python\d(?:\.\d{1,2})?t?)/(.+)", re.S)
_PATH = re.compile(r"[\w.+@/-]{1,200}")
_NAME = re.compile(r"[\w.+@-]{1,100}|<[\w .-]{1,60}>")
_FUNCTION = re.compile(r"[\w<>.:~,*&\[\]{}# +/=|!^%-]+")
_ANONYMOUS = "(anonymous namespace)"
_CALL = "operator()"


def frame(function: str, file: str | None = None, line: int | None = None) -> str:
    """``all_reduce (torch/distributed/distributed_c10d.py:3252)``."""
    name, where = _function(function), _place(file) if file else None
    if where is None:
        return name
    return f"{name} ({where}:{line})" if line else f"{name} ({where})"


def _function(text: str) -> str:
    """A function's name without arguments; ``?`` where it has none that can be shown."""
    name = text.strip().replace(_ANONYMOUS, "{anonymous}").replace(_CALL, "operator{}")
    name = name.partition("(")[0].strip()[:MAX_FUNCTION]
    # An address is another one in every process.
    if name.startswith("0x") or not _FUNCTION.fullmatch(name):
        return "?"
    return name.replace("operator{}", _CALL).replace("{anonymous}", _ANONYMOUS)


def _place(path: str) -> str | None:
    """A file as it lies in its library, else its name alone; None for what is no path."""
    plain = path.strip().replace("\\", "/")
    inside = _LIBRARY.fullmatch(plain)
    if inside is not None:
        plain = inside[1]
    is_short = "/" in plain and plain[0] not in "/.~" and ":" not in plain
    if (inside is not None or is_short) and _PATH.fullmatch(plain):
        return plain
    name = plain.rsplit("/", 1)[-1]
    return name if _NAME.fullmatch(name) else None

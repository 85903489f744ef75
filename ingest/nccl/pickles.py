"""A pickle of plain containers, read by its opcodes: nothing is imported, called or built.

PyTorch writes Flight Recorder dumps as pickles, and loading a pickle runs whatever its author
wished. This reader knows the opcodes of dicts, lists, tuples, strings and numbers, refuses every
other, and counts what it builds: a small file cannot become a large one.
"""

from __future__ import annotations

import io
import pickletools
from typing import Any, BinaryIO

MAX_BYTES = 256 << 20
"""Largest pickle that is read: the recorder's buffer is bounded, dumps are megabytes."""
MAX_OPCODES = 20_000_000
"""A dump of 20,000 calls with 30 frames each has about 8 million; half a minute's work."""
MAX_CONTAINERS = 3_000_000
"""Lists, dicts and tuples: about 300 bytes of memory each, of one byte in the file."""
MAX_DEPTH = 64
"""Containers within containers; a dump has five."""
MAX_WEIGHT = 40_000_000
"""Values in a dump with every shared container written out."""
MAX_STRING_BYTES = 1 << 20

_LIST_BUILDERS = frozenset(
    f"torch.jit._pickle build_{kind}list" for kind in ("int", "double", "bool", "tensor")
)
"""What PyTorch's own pickler names for lists of one type; taken for ``list`` without importing."""


class RefusedPickleError(Exception):
    """The pickle holds what a dump never holds."""

    def __init__(self, opcode: str, place: int) -> None:
        super().__init__(f"opcode {opcode} at byte {place}")
        self.opcode = opcode
        self.place = place


class _Builder:
    """Stands for a list builder on the stack."""


_MARK = object()
_BUILDER = _Builder()
_CONSTANTS: dict[str, Any] = {
    "NONE": None, "NEWTRUE": True, "NEWFALSE": False,
}  # fmt: skip
_VALUES = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT", "STRING",
     "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
)  # fmt: skip
_EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
"""The empty tuple is one object for all of Python, which nothing can grow."""
_SKIPPED = frozenset({"PROTO", "FRAME"})
_MEMO_PUT = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
_MEMO_GET = frozenset({"GET", "BINGET", "LONG_BINGET"})


def load(stream: BinaryIO) -> Any:
    """The one value in a pickle of plain containers; RefusedPickleError for anything else."""
    return _Machine().run(_Counted(stream))


class _Counted:
    """A stream that knows where it stands and where it must end."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = io.BufferedReader(stream)  # type: ignore[type-var]
        self._at = 0

    def read(self, size: int) -> bytes:
        """As a file; never more than a pickle may hold."""
        if size < 0 or size > MAX_BYTES:
            raise ValueError("size")
        data = self._stream.read(size)
        self._at += len(data)
        return data

    def readline(self) -> bytes:
        """As a file; a line is a name or a number, never long."""
        data = self._stream.readline(MAX_STRING_BYTES)
        self._at += len(data)
        return data

    def tell(self) -> int:
        """Bytes read so far."""
        return self._at


class _Made:
    """A container, how deep it is, and its size with all that is shared written out."""

    __slots__ = ("depth", "is_held", "value", "weight")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.depth = 1
        self.weight = 1
        self.is_held = False


class _Machine:
    """The stack of the pickle machine, for the opcodes that only hold data."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.made: dict[int, _Made] = {}
        """By id; each keeps its container alive, so that the id stays its own."""

    def run(self, stream: _Counted) -> Any:
        place = 0
        name = "START"
        count = 0
        try:
            for opcode, argument, at in pickletools.genops(stream):  # type: ignore[arg-type]
                place, name = at or 0, opcode.name
                count += 1
                if count > MAX_OPCODES or place > MAX_BYTES:
                    raise RefusedPickleError("TOO_LARGE", place)
                if name == "STOP":
                    break
                self._step(name, argument, place)
        except RefusedPickleError:
            raise
        except (
            ValueError,
            IndexError,
            TypeError,
            KeyError,
            OverflowError,
            MemoryError,
            UnicodeError,
        ) as error:
            raise RefusedPickleError(f"{name} (damaged)", place) from error  # fmt: skip
        else:
            if name != "STOP" or len(self.stack) != 1 or self.stack[0] is _MARK:
                raise RefusedPickleError("STOP (damaged)", place)
            return self.stack[0]

    def _step(self, name: str, argument: Any, place: int) -> None:
        stack = self.stack
        if name in _VALUES:
            if isinstance(argument, (str, bytes)) and len(argument) > MAX_STRING_BYTES:
                raise RefusedPickleError(f"{name} (too long)", place)
            if isinstance(argument, int) and argument.bit_length() > 64:
                raise RefusedPickleError(f"{name} (too large)", place)
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            self._push(_EMPTY[name]())
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _MEMO_PUT:
            key = len(self.memo) if name == "MEMOIZE" else int(argument)
            self.memo[key] = stack[-1]
        elif name in _MEMO_GET:
            stack.append(self.memo[int(argument)])
        elif name == "POP":
            stack.pop()
        elif name == "POP_MARK":
            self._popped()
        elif name in _SKIPPED:
            return
        elif not self._collect(name, place) and not self._builder(name, argument):
            raise RefusedPickleError(name, place)

    def _collect(self, name: str, place: int) -> bool:
        """Opcodes that put values into containers."""
        stack = self.stack
        if name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else self._popped()
            self._grow(stack[-1], items, place)
            _expect(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            flat = self._popped() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            self._grow(stack[-1], flat, place)
            _expect(stack[-1], dict).update(zip(flat[::2], flat[1::2], strict=True))
        elif name in ("LIST", "TUPLE", "DICT"):
            self._made(name, self._popped(), place)
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            n = int(name[-1])
            items = stack[-n:]
            if len(items) < n or any(i is _MARK for i in items):
                raise ValueError(name)
            del stack[-n:]
            self._made("TUPLE", items, place)
        else:
            return False
        return True

    def _made(self, name: str, items: list[Any], place: int) -> None:
        value: Any
        if name == "DICT":
            value = dict(zip(items[::2], items[1::2], strict=True))
        else:
            value = tuple(items) if name == "TUPLE" else items
        self._push(value)
        self._grow(value, items, place)

    def _builder(self, name: str, argument: Any) -> bool:
        """PyTorch's own list builders: named on the stack, called with one list."""
        if name == "GLOBAL" and argument in _LIST_BUILDERS:
            self.stack.append(_BUILDER)
            return True
        if name == "REDUCE" and len(self.stack) > 1 and self.stack[-2] is _BUILDER:
            arguments = self.stack.pop()
            if isinstance(arguments, tuple) and len(arguments) == 1:
                self.stack[-1] = _expect(arguments[0], list)
                return True
        return False

    def _push(self, value: Any) -> None:
        self.stack.append(value)
        self.made[id(value)] = _Made(value)
        if len(self.made) > MAX_CONTAINERS:
            raise RefusedPickleError("too many containers", 0)

    def _grow(self, target: Any, items: list[Any], place: int) -> None:
        """Account for what is put into a container: depth, size, and who holds whom.

        A container may be shared (frames are), so that a small file can name a huge value: its
        size with everything shared written out is bounded. One that another holds already may
        not grow any more, so there are no cycles.
        """
        made = self.made.get(id(target))
        if made is None or made.is_held:
            raise RefusedPickleError("a container that grows later", place)
        for item in items:
            if item is _BUILDER or item is _MARK:
                raise RefusedPickleError("a builder as a value", place)
            inner = self.made.get(id(item)) if isinstance(item, (list, dict, tuple)) else None
            if inner is None:
                made.weight += 1
                continue
            inner.is_held = True
            made.depth = max(made.depth, inner.depth + 1)
            made.weight += inner.weight
        if made.is_held:  # it was put into itself
            raise RefusedPickleError("a cycle", place)
        if made.depth > MAX_DEPTH:
            raise RefusedPickleError("nesting", place)
        if made.weight > MAX_WEIGHT:
            raise RefusedPickleError("shared containers", place)

    def _popped(self) -> list[Any]:
        items: list[Any] = []
        while True:
            item = self.stack.pop()
            if item is _MARK:
                items.reverse()
                return items
            items.append(item)


def _expect(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(kind.__name__)
    return value

"""Texts on which a regular expression is slow if any part of it can be.

A pattern is slow where it may repeat something without limit and then fail: each shorter repetition
is tried too, from each place where the text could begin. So for every unlimited repetition of a
pattern there is a text: what must stand before it, the repeated part many times, and an end that
does not fit. A pattern that takes these in time in proportion to their length is not proven
linear, but all that were found slow on foreign files are caught.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
_LETTERS = "a0 Z_-.:/,;=+<>[](){}\"'\\|#@%*&!?~^$\t\n\x1b\x00\xff" + "".join(
    map(chr, range(32, 127))
)
_CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d",
    codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w",
    codes.CATEGORY_NOT_WORD: r"\W",
}
UNLIMITED = 1000
"""A repetition of at least so many counts as one without limit."""
_COMMON = ("a", "0", " ", ".", "a ", "a:", "1:", '"', "\\")


def _member(items: list[Any]) -> str:
    is_negated = items[0][0] is codes.NEGATE

    def holds(letter: str) -> bool:
        for code, value in items:
            if code is codes.LITERAL and ord(letter) == value:
                return True
            if code is codes.RANGE and value[0] <= ord(letter) <= value[1]:
                return True
            if code is codes.CATEGORY and re.match(_CATEGORIES[value], letter, re.A):
                return True
        return False

    return next((c for c in _LETTERS if holds(c) != is_negated), "a")


def _sample(sequence: Any) -> str:
    """The shortest text that a part of a pattern takes, but for its assertions."""
    return "".join(_of(code, value) for code, value in sequence)


def _of(code: Any, value: Any) -> str:
    if code is codes.LITERAL:
        return chr(int(value))
    if code is codes.NOT_LITERAL:
        return "b" if value == ord("a") else "a"
    if code is codes.ANY:
        return "a"
    if code is codes.IN:
        return _member(list(value))
    if code is codes.BRANCH:
        return _sample(value[1][0])
    if code is codes.SUBPATTERN:
        return _sample(value[3])
    if code is codes.ATOMIC_GROUP:
        return _sample(value)
    if code in _REPEATS:
        return _sample(value[2]) * int(value[0])
    return ""


def _units(sequence: list[Any]) -> set[str]:
    if len(sequence) == 1:
        code, value = sequence[0]
        if code is codes.SUBPATTERN:
            return _units(list(value[3]))
        if code is codes.BRANCH:
            return {_sample(branch) for branch in value[1]} - {""}
    return {_sample(sequence)} - {""}


def _repeated(sequence: list[Any], before: str = "") -> Iterator[tuple[str, str, str]]:
    """What stands before, in and after each repetition without limit."""
    for index, (code, value) in enumerate(sequence):
        if code in _REPEATS:
            if value[1] is codes.MAXREPEAT or value[1] >= UNLIMITED:
                after = _sample(sequence[index + 1 :])
                yield from ((before, unit, after) for unit in _units(list(value[2])))
            yield from _repeated(list(value[2]), before)
        elif code is codes.SUBPATTERN:
            yield from _repeated(list(value[3]), before)
        elif code is codes.ATOMIC_GROUP:
            yield from _repeated(list(value), before)
        elif code is codes.BRANCH:
            for branch in value[1]:
                yield from _repeated(list(branch), before)
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            yield from _repeated(list(value[1]), before)
        before += _of(code, value)


def hostile(pattern: re.Pattern[Any], length: int) -> Iterator[str | bytes]:
    """Texts of about ``length`` characters, of the pattern's own type."""
    is_bytes = isinstance(pattern.pattern, bytes)
    text = pattern.pattern.decode("latin-1") if is_bytes else pattern.pattern
    tree = list(parser.parse(text, pattern.flags & ~(re.UNICODE | re.DEBUG)))
    given = {("", unit, "") for unit in _COMMON} | set(_repeated(tree))
    seen: set[str] = set()
    for before, unit, after in sorted(given):
        bodies = (
            before + unit * (length // len(unit)),
            unit * (length // len(unit)),
            (before + unit) * (length // len(before + unit)),
        )
        for body in bodies:
            for end in ("", "\0", " ", "X", after + "\0"):
                one = body + end
                if one not in seen:
                    seen.add(one)
                    yield one.encode("latin-1", "replace") if is_bytes else one


def slowest_s(pattern: re.Pattern[Any], method: str, length: int, limit_s: float) -> float:
    """CPU seconds of the slowest text; stops at the first that passes the limit twice.

    A text that passes the limit counts only where half of it takes less than four tenths of its
    time: on a slow machine a linear pattern may pass any limit, and takes half of its time for it.
    """
    worst = 0.0
    apply = getattr(pattern, method)

    def taken_s(text: str | bytes) -> float:
        begun = time.process_time()
        apply(text)
        return time.process_time() - begun

    for text in hostile(pattern, length):
        took = taken_s(text)
        if took > limit_s:  # it may hold a garbage collection of the test's own process
            took = min(took, taken_s(text))
        if took > limit_s and taken_s(text[: len(text) // 2]) > 0.4 * took:
            continue
        worst = max(worst, took)
        if worst > limit_s:
            break
    return worst

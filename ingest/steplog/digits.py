"""Numbers that stand in a text at known places: thousands at once, from their digits' bytes.

Eight bytes are one word of the processor: the first digit in its lowest byte. Three multiplications
join neighbours to numbers of two, four and eight digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracekit.ingest.steplog.words import Codes, Ints

    Word = NDArray[np.uint64]

WORD_BYTES = 8
MAX_DIGITS = 2 * WORD_BYTES
MAX_EXACT_DIGITS = 15
"""Any number of so many digits is a float exactly."""
MAX_EXACT_POWER = 22
"""Highest power of ten that is one."""
_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_POWERS = 10.0 ** np.arange(MAX_EXACT_POWER + 1)


def whole(codes: Codes, starts: Ints, length: Ints) -> Ints:
    """Numbers of up to ``MAX_DIGITS`` digits; without any it is 0.

    ``codes`` has ``WORD_BYTES`` bytes behind the last.
    """
    most = int(length.max()) if length.size else 0
    head = _number(_words(codes, starts, length.clip(max=WORD_BYTES)))
    if most <= WORD_BYTES:
        return head
    left = (length - WORD_BYTES).clip(min=0)
    behind = _number(_words(codes, np.where(left > 0, starts + WORD_BYTES, starts), left))
    head *= np.power(10, left)
    head += behind
    return head


def scaled(mantissa: Ints, power: Ints) -> NDArray[np.float64] | None:
    """``mantissa * 10 ** power`` to the last bit, as reading its decimals gives it: both are exact,
    so one division or product is rounded once. None where a power is too high for that."""
    if power.size and max(-int(power.min()), int(power.max())) > MAX_EXACT_POWER:
        return None
    number = mantissa.astype(np.float64)
    number /= _POWERS[(-power).clip(min=0)]
    if power.size and power.max() > 0:
        number *= _POWERS[power.clip(min=0)]
    return number


def clocks(codes: Codes, starts: Ints, length: Ints) -> tuple[Ints, Ints, Ints]:
    """Hours, minutes and seconds of ``12:34:56``, ``1:02:03`` or ``02:03``."""
    digits = _words(codes, starts, length) & _NIBBLES
    pairs = digits * np.uint64(10) + (digits >> np.uint64(8))
    hours, minutes, seconds = (
        ((pairs >> np.uint64(8 * at)) & np.uint64(0xFF)).view(np.int64) for at in (0, 3, 6)
    )
    return hours, minutes, seconds


def _words(codes: Codes, starts: Ints, length: Ints) -> Word:
    """The bytes as words, each ending with its last one; 0 stands before the first."""
    words: Word = np.ndarray(len(codes) - WORD_BYTES + 1, "<u8", codes.data, strides=(1,))
    return words[starts] << ((WORD_BYTES - length) * 8).astype(np.uint64)


def _number(words: Word) -> Ints:
    words = words & _NIBBLES
    for join, shift, kept in (
        (10, 8, 0x00FF00FF00FF00FF),
        (100, 16, 0x0000FFFF0000FFFF),
        (10_000, 32, 0x00000000FFFFFFFF),
    ):
        words = (words * np.uint64(join) + (words >> np.uint64(shift))) & np.uint64(kept)
    return words.view(np.int64)

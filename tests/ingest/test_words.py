"""Words of a block: found wherever they stand, whatever bytes stand beside them."""

from __future__ import annotations

import random

import numpy as np
import polars as pl
import pytest

from tracekit.ingest.nccl import log
from tracekit.ingest.steplog import phases
from tracekit.ingest.steplog.formats import FORMATS
from tracekit.ingest.steplog.parts import parts_of, sought
from tracekit.ingest.steplog.words import CACHED_BYTES, Block, any_of

WORDS = [*log.WORDS, *phases.WORDS, *(m.encode() for f in FORMATS for m in f.markers)]


@pytest.mark.parametrize("word", WORDS, ids=lambda w: w.decode())
def test_each_word_is_found_among_bytes_of_any_kind_and_none_where_it_is_torn(word: bytes) -> None:
    pattern = any_of(dict.fromkeys([b"something else", word, b"("]))
    noise = bytes(b for b in range(256) if b not in b"(").replace(word, b"")
    assert Block([b"", noise + word + noise]).holds(pattern)
    torn = noise + word[:-1] + b"\xff" + word[-1:] + noise
    assert not Block([torn]).holds(any_of([word]))
    assert not Block([b""]).holds(pattern)
    assert not Block([]).holds(pattern)


PIECES = ["", "x", "twelve bytes", "thirteen byte", "é" * 6, "é" * 7, "a" * 40, "█" * 30]


@pytest.mark.parametrize("is_text", [True, False])
@pytest.mark.parametrize("most_bytes", [39, 200])
def test_pieces_are_what_stands_between_returns_and_ends_of_lines(
    is_text: bool, most_bytes: int
) -> None:
    rng = random.Random(7)  # noqa: S311 - no secret
    for _ in range(200):
        parts = [rng.choice(PIECES).encode() for _ in range(rng.randrange(1, 12))]
        if not is_text:
            parts[rng.randrange(len(parts))] += b"\xff" * rng.randrange(1, 20)
        text = b"".join(p + rng.choice([b"\r", b"\n", b"\r\n"]) for p in parts) + parts[0]
        text = text if rng.random() < 0.7 else text.replace(b"\r", b" ")
        expected = [
            (number, piece[:most_bytes].decode("utf-8", "replace"))
            for number, line in enumerate(text.split(b"\n"))
            for piece in line.split(b"\r")
            if piece or b"\r" not in text
        ]
        for given in (text, text.split(b"\n")):
            found, line = Block(given).pieces(most_bytes)
            assert list(zip(line.tolist(), found.column.to_list(), strict=True)) == expected
            found.column.to_arrow().validate(full=True)


@pytest.mark.parametrize("is_text", [True, False])
def test_lines_that_hold_a_pattern_are_told_from_those_of_other_shapes(is_text: bool) -> None:
    """Between carriage returns too, in lines of one shape that stand apart."""
    text = b"step 1\rstep 2\nwait 17\n\nloss 3\rwait 4\nstep 55\r\nwa\rit 6\nwait 8"
    block = Block(text if is_text else text.split(b"\n"))
    assert block.holding("wait").tolist() == [False, True, False, True, False, False, True]
    assert not block.holding("nothing").any()
    assert Block(text.replace(b"17", b"\xff")).holding("wait").tolist().count(True) == 3


@pytest.mark.parametrize("is_text", [True, False])
def test_of_texts_that_are_alike_one_is_asked(is_text: bool) -> None:
    text = b"step 1\nwait 2\nstep 3\nloss 4"
    texts, _ = Block(text if is_text else text.split(b"\n")).pieces(99)
    some = texts.alike(np.array([0, 2, 3]))
    assert [some.holds(word) for word in ("step", "wait", "loss")] == [True, False, True]
    assert len(some.column) == (2 if is_text else 3)


def test_ends_of_lines_are_found_beyond_what_is_looked_at_together() -> None:
    rng = random.Random(3)  # noqa: S311 - no secret
    lines = [b"x" * rng.randrange(CACHED_BYTES // 3) for _ in range(30)]
    lines[5] = lines[6] = b"x" * (CACHED_BYTES - 1)
    for end in (b"\n", b"\r\n"):
        found, line = Block(end.join([*lines, b""])).pieces(CACHED_BYTES)
        kept = [text.decode() for text in [*lines, b""] if text or end == b"\n"]
        assert found.column.to_list() == kept
        assert len(set(line.tolist())) == len(kept)


def test_a_clock_may_count_hours_beyond_a_day_and_no_more_than_five_digits_of_them() -> None:
    pattern = sought(r"^\[(?P<at>[0-9:]*)\]")

    def seconds(*clocks: str) -> list[int] | None:
        texts, _ = Block("\n".join(f"[{c}]" for c in clocks for _ in range(40)).encode()).pieces(99)
        found = parts_of(texts, np.arange(40 * len(clocks)), [pattern])
        assert found is not None
        column = found.clock_s("at")
        return None if column is None else column.to_list()[::40]

    short = ["02:03", "1:02:03", "11:02:03"]
    assert seconds(*short) == [123, 3723, 39_723]
    assert seconds(*short, "101:02:03", "99999:59:59") == [123, 3723, 39_723, 363_723, 359_999_999]
    assert seconds(*short, "100000:00:00") is None
    assert seconds("2:3") is None


def test_shapes_whose_hashes_are_equal_are_no_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pl.Series, "hash", lambda own: pl.Series([1] * len(own), dtype=pl.UInt64))
    texts, _ = Block(b"step 1\nwait 2\nstep 3").pieces(99)
    assert texts.has("wait").tolist() == [False, True, False]
    assert parts_of(texts, np.arange(3), [sought(r"^step (?P<n>[0-9])")]) is None


def test_a_group_that_takes_no_part_is_null_and_an_empty_one_is_not() -> None:
    text = b"\n".join(b"a%03d:%s" % (n, b"" if n % 2 else b"x") for n in range(400))
    texts, _ = Block(text + b"\nanother 7").pieces(99)
    pattern = sought(r"^a(?P<n>[0-9]+):(?P<tail>x?)(?P<none>y)?$")
    found = parts_of(texts, np.arange(401), [pattern, sought(r"no(t)he", "tail")])
    assert found is not None
    numbers = found.whole("n")
    assert numbers is not None
    assert numbers.to_list() == [*range(400), None]
    assert found.text("n").to_list() == [*(f"{n:03}" for n in range(400)), None]
    assert found.text("tail").to_list() == ["x", ""] * 200 + ["t"]
    assert found.text("none").to_list() == [None] * 401
    assert found.has("tail").all()
    assert not found.has("none").any()
    assert found.of(found.has("n")).text("n").null_count() == 0
    found.text("tail").to_arrow().validate(full=True)

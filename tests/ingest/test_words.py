"""Words of a block: found wherever they stand, whatever bytes stand beside them."""

from __future__ import annotations

import pytest

from tracekit.ingest.nccl import log
from tracekit.ingest.steplog import phases
from tracekit.ingest.steplog.formats import FORMATS
from tracekit.ingest.steplog.words import Block, any_of

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

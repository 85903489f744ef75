"""What holds for every format: nobody is robbed, secrets stay out, damage stays small."""

from __future__ import annotations

import gzip
import random
from collections import Counter

import pytest
from memory_sink import MemorySink, source_of
from net_samples import SAMPLES, Sample

from soaks import examples
from tracekit import schema
from tracekit.ingest import INGESTORS, ingestor, recognise
from tracekit.ingest.base import IngestOptions
from tracekit.ingest.counters.formats import FAMILIES
from tracekit.ingest.counters.net_words import NET, is_word, meaning, own
from tracekit.ingest.counters.vocabulary import Vocabulary

PLANTED = "hunter2-Passw0rd"
every_format = pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.family}-{s.name}")


def read(sample: Sample, data: str | bytes) -> MemorySink | None:
    """The rows of some bytes under the sample's name; None where nobody claims them."""
    source = source_of(data.encode() if isinstance(data, str) else data, sample.name)
    found = recognise(source)
    if found.ingestor is None:
        return None
    sink = MemorySink()
    ingestor(found.ingestor).read(source, sink, IngestOptions())
    return sink


def numbers(sink: MemorySink) -> Counter[tuple[object, ...]]:
    keys = ("port", "counter", "priority", "queue", "lane", "kind", "value", "counted")
    return Counter(tuple(r[k] for k in keys) for r in sink.rows("net_sample"))


def test_there_is_a_sample_of_every_format() -> None:
    assert sorted((s.family, s.format) for s in SAMPLES) == sorted(
        (f.name, g.name) for f in FAMILIES for g in f.formats if g.subject == "net"
    )


@every_format
def test_exactly_one_ingestor_claims_it(sample: Sample) -> None:
    # job_log takes any log by its name, and is asked last for that.
    claims = [
        one.name for one in INGESTORS if one.sniff(sample.text.encode(), sample.name) is not None
    ]
    # A log of anyone's is the last resort, asked when nobody else knows the text; outputs of
    # several commands are those of each, too, and who reads them all is asked first.
    others = {"job_log", "nic", "infiniband"} if sample.family == "net_capture" else {"job_log"}
    assert [n for n in claims if n == sample.family or n not in others] == [sample.family]
    assert claims[0] == sample.family


@every_format
def test_it_gives_its_rows_and_says_whether_it_is_proved(sample: Sample) -> None:
    sink = read(sample, sample.text)
    assert sink is not None
    assert len(sink.rows("net_sample")) == sample.rows_count
    assert sink.facts.get("status", "ok") == "ok"
    is_proved = next(g.is_proved for f in FAMILIES for g in f.formats if g.name == sample.format)
    assert ("parsed_from_documentation" in sink.counters) != is_proved
    assert set(sink.severities.values()) <= {"info"}


@every_format
def test_rows_keep_their_grain_and_their_direction(sample: Sample) -> None:
    sink = read(sample, sample.text)
    assert sink is not None
    grain = [c for c in schema.table("net_sample").grain if c != "source_id"]
    rows = sink.rows("net_sample")
    assert set(Counter(tuple(r[c] for c in grain) for r in rows).values()) <= {1}
    for row in rows:
        assert row["direction"] == {"rx_": "rx", "tx_": "tx"}.get(row["counter"][:3])
        assert (row["value"] is None) == (row["kind"] == "cumulative")
        assert (row["counted"] is None) == (row["kind"] != "cumulative")
        assert (row["time_ns"] is None) == (row["time_source"] is None)
        if is_word(row["counter"]):
            known = meaning(row["counter"])
            assert (row["unit"], row["kind"]) == (known.unit, known.kind)


@every_format
def test_compressed_it_is_the_same(sample: Sample) -> None:
    plain, packed = read(sample, sample.text), read(sample, gzip.compress(sample.text.encode()))
    assert plain is not None
    assert packed is not None
    assert plain.rows("net_sample") == packed.rows("net_sample")


@every_format
def test_a_planted_secret_goes_nowhere(sample: Sample) -> None:
    if sample.text.lstrip()[:1] in ("{", "["):
        text = sample.text.replace("{", f'{{"password": "{PLANTED}", ', 2)
        text = f"{text}\n{PLANTED}\n"
    else:
        head, _, rest = sample.text.partition("\n")
        text = f"{head}\n{rest}password={PLANTED}\nAWS_SECRET: {PLANTED}\n"
    sink = read(sample, text)
    if sink is not None:
        assert PLANTED not in repr(sink.tables) + repr(sink.__dict__)
        for name in sink.tables:
            assert PLANTED not in repr(sink.table(name).to_pylist())


@pytest.mark.slow
@every_format
def test_cut_anywhere_it_gives_no_number_that_it_does_not_hold(sample: Sample) -> None:
    whole = read(sample, sample.text)
    assert whole is not None
    data = sample.text.encode()
    for end in range(1, len(data)):
        if sample.text[:end].lstrip()[:1] not in ("{", "[") and data[end - 1 : end] != b"\n":
            continue
        sink = read(sample, data[:end])
        assert sink is None or not numbers(sink) - numbers(whole), end


@every_format
def test_a_broken_archive_loses_only_the_line_it_breaks_in(sample: Sample) -> None:
    """What breaks off in the middle of a number may look like a smaller one: it is left out."""
    if sample.format == "tree of files":
        pytest.skip("a file of one number has no second line")
    filler = "".join(f"{i * 2654435761 % 2**32}.5\n" for i in range(5_000))
    packed = gzip.compress((sample.text + "\n" + filler).encode())
    whole = read(sample, sample.text + "\n" + filler)
    sink = read(sample, packed[: len(packed) // 2])
    assert sink is not None
    assert whole is not None
    assert not numbers(sink) - numbers(whole)
    assert sink.facts["status"] == "partial"


@every_format
def test_noise_raises_nothing(sample: Sample) -> None:
    noise = random.Random(sample.name)  # noqa: S311 - the same noise every time
    data = bytearray(sample.text.encode())
    for _ in range(examples(30, 150)):
        broken = bytearray(data)
        for _ in range(noise.randint(1, 8)):
            at = noise.randrange(len(broken))
            kind = noise.randrange(3)
            if kind == 0:
                broken[at] = noise.randrange(256)
            elif kind == 1:
                del broken[at : at + noise.randint(1, 9)]
            else:
                broken[at:at] = bytes(noise.choices(b'{}[]",:0123456789 -\n\xff', k=5))
            if not broken:
                broken = bytearray(b" ")
        sink = read(sample, bytes(broken))
        assert sink is None or sink.facts.get("status", "ok") in (
            "ok",
            "partial",
            "empty",
            "unrecognised",
        )


def test_words_are_once_and_say_their_direction() -> None:
    with pytest.raises(ValueError, match="twice"):
        Vocabulary(NET["rx_bytes"], NET["rx_bytes"])
    for word in NET.values():
        assert word.kind in ("cumulative", "gauge", "watermark", "window")
        assert word.doc.endswith(".")
        assert "{" not in word.doc


def test_a_name_of_its_own_never_takes_another_unit() -> None:
    assert own("RX_BYTES").unit == "bytes"
    assert own("some.Odd-Name!").counter == "some_odd_name"
    assert own("some.Odd-Name!").unit is None
    assert own("!!").counter == "unnamed"

"""The tokenizer of Prometheus text: against the official client, and on damaged lines."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soaks import examples
from tracekit.ingest.counters import prometheus
from tracekit.ingest.counters.exposition import Sample, counted_of, parse_series, samples, value_of
from tracekit.ingest.lines import lines, shape

DCGM = Path(__file__).parents[4] / "shared" / "data" / "counters" / "dcgm"


def read(text: str | bytes) -> tuple[list[Sample], list[tuple[int, str]]]:
    data = text.encode() if isinstance(text, str) else text
    bad: list[tuple[int, str]] = []
    found = samples(lines(io.BytesIO(data)), lambda line, why, _: bad.append((line, why)))
    return list(found), bad


def plain(found: list[Sample]) -> list[tuple[str, tuple[tuple[str, str], ...], str]]:
    return [
        (s.series.name, tuple(sorted(s.series.labels.items())), repr(float(s.number)))
        for s in found
    ]


def by_client(text: str) -> list[tuple[str, tuple[tuple[str, str], ...], str]]:
    """What the official client reads, under the names that the file prints."""
    parser = pytest.importorskip("prometheus_client.parser")
    rows = []
    printed = {line.partition("{")[0].partition(" ")[0] for line in text.split("\n")}
    for family in parser.text_string_to_metric_families(text):
        for s in family.samples:
            # The client gives counters a _total that the file does not print.
            name = s.name if s.name in printed else s.name.removesuffix("_total")
            rows.append((name, tuple(sorted(s.labels.items())), repr(float(s.value))))
    return rows


@pytest.mark.parametrize(
    "name",
    ["dcgm_exporter_kops.prom", "dcgm_exporter_upcloud.prom", "node_exporter_e2e-output.txt"],
)
def test_every_sample_of_a_real_scrape_is_what_the_client_reads(name: str) -> None:
    path = DCGM / name
    if not path.exists():
        pytest.skip("shared/data is not here")
    found, bad = read(path.read_bytes())
    assert not bad
    assert sorted(plain(found)) == sorted(by_client(path.read_text(encoding="utf-8")))


def test_a_malformed_scrape_yields_what_is_good_and_says_what_is_not() -> None:
    path = DCGM / "dcgm_exporter_viettel-ai-platform.prom"
    if not path.exists():
        pytest.skip("shared/data is not here")
    found, bad = read(path.read_bytes())
    assert [(s.series.name, s.series.labels["gpu"], s.number) for s in found] == [
        ("DCGM_FI_DEV_SM_CLOCK", "0", "210"),
        ("DCGM_FI_DEV_SM_CLOCK", "1", "210"),
    ]
    assert bad == [(line, "labels are damaged") for line in range(3, 21)]


LABEL_VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=12)


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@settings(max_examples=examples(50, 300))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b:c", "_x9"]),
            st.dictionaries(st.sampled_from(["l", "m_1", "gpu"]), LABEL_VALUES, max_size=3),
            st.sampled_from(["0", "1.5", "-3e-5", "NaN", "+Inf", "-Inf", "9223372036854775794"]),
            st.sampled_from(["", " 1700000000123", " -5"]),
        ),
        max_size=6,
    )
)
def test_what_is_printed_is_read_back_as_the_client_reads_it(
    rows: list[tuple[str, dict[str, str], str, str]],
) -> None:
    lines = []
    for name, labels, number, time in rows:
        inner = ",".join(f'{k}="{escaped(v)}"' for k, v in labels.items())
        lines.append(f"{name}{'{' + inner + '}' if labels else ''} {number}{time}")
    text = "\n".join(lines) + "\n"
    found, bad = read(text)
    assert not bad
    assert [(s.series.name, s.series.labels, s.number) for s in found] == [r[:3] for r in rows]
    times = {"": None, " 1700000000123": 1_700_000_000_123_000_000, " -5": -5_000_000_000}
    assert [s.time_ns for s in found] == [times[r[3]] for r in rows]
    assert plain(found) == by_client(text)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('a{gpu="0",...,b="1"} 3', "labels are damaged"),
        ('a{gpu="0"', "labels are damaged"),
        ('a{gpu="0"} ', "no number"),
        ('a{gpu="0"} x', "the number is none"),
        ('a{gpu="0"} 1_000', "the number is none"),
        ('a{gpu="0"} 1 2 3', "text after the sample"),
        ('a{gpu="0"} 1 soon', "the time is none"),
        ('a{gpu="0",gpu="1"} 1', "a label twice"),
        ('{gpu="0"} 1', "no metric name"),
        ("!", "no metric name"),
        ('b{gpu="0"} 1_000', "the number is none"),
    ],
)
def test_a_bad_line_costs_only_itself(line: str, why: str) -> None:
    found, bad = read(f'x 1\nb{{gpu="0"}} 4\n{line}\nx 2\n')
    assert [s.number for s in found] == ["1", "4", "2"]
    assert bad == [(3, why)]


def test_times_and_exemplars_of_openmetrics_are_told_from_those_of_prometheus() -> None:
    found, bad = read(
        'a{l="}"} 1 1700000000.25\n'
        'a{l="}"} 2 1700000000250 # {trace="}"} 5 1.5\n'
        'a{l="}"} 3 1.7e9\n'
        "# EOF\n"
    )
    assert not bad
    assert [s.time_ns for s in found] == [
        1_700_000_000_250_000_000,
        1_700_000_000_250_000_000,
        1_700_000_000_000_000_000,
    ]
    assert [s.series.labels for s in found] == [{"l": "}"}] * 3


def test_comments_and_marks_between_scrapes_are_handed_over() -> None:
    seen: list[str] = []

    def on_other(_: int, line: str) -> bool:
        seen.append(line)
        return line.startswith("==")

    bad: list[int] = []
    lines = ["# HELP a b", "a 1", "== 1700000000 ==", "nothing known"]
    found = list(samples(enumerate(lines, 1), lambda n, *_: bad.append(n), on_other))
    assert [s.number for s in found] == ["1"]
    assert seen == ["# HELP a b", "== 1700000000 ==", "nothing known"]
    assert bad == [4]


def test_a_series_that_repeats_is_one_object() -> None:
    found, _ = read('a{l="1"} 1\na{l="1"} 2\na{l="2"} 3\n')
    assert found[0].series is found[1].series
    assert found[1].series is not found[2].series


def test_utf8_names_in_quotes_are_read() -> None:
    assert parse_series('{"my.metric",l="1"} 3')[0] == ("my.metric", {"l": "1"})


@pytest.mark.parametrize(
    ("text", "counted", "value"),
    [
        ("18446744073709551615", 2**64 - 1, 2.0**64),
        ("18446744073709551616", None, 2.0**64),
        ("1.5e3", 1500, 1500.0),
        ("-1", None, -1.0),
        ("NaN", None, None),
        ("+Inf", None, None),
    ],
)
def test_counts_are_exact_and_what_is_no_number_is_null(
    text: str, counted: int | None, value: float | None
) -> None:
    assert counted_of(text) == counted
    assert value_of(text) == value


def test_lines_are_split_at_line_feeds_only_and_long_ones_are_cut() -> None:
    data = io.BytesIO("\ufeffa\x85b\r\nlong".encode() + b"x" * 100 + b"\nlast")
    assert list(lines(data, max_bytes=8)) == [(1, "a\x85b"), (2, "longxxxx"), (3, "last")]


def test_a_shape_shows_no_letter_or_digit() -> None:
    assert shape('pod="secret-1"') == 'aaa="aaaaaa-9"'
    assert not math.isnan(len(shape("x" * 500)))
    assert len(shape("x" * 500)) == 120


def test_a_programs_configuration_is_no_scrape() -> None:
    text = b"composer_version: 0.32.1\nnode_name: unknown\nnum_nodes: 1\nnode_rank: 0\n"
    assert prometheus.sniff(text, "train.log") is None
    assert prometheus.sniff(b"node_load1 0.5\nnode:cpu:rate5m 1\n", "scrape.txt") is not None

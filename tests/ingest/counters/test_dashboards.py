"""What dashboards export: a column a series, whose header is its legend.

Grafana's "Series joined by time" has the legends or ``{label="value"}`` as headers and times in
milliseconds or local words (grafana.com, "Panel inspect view": download CSV); its files are called
``TITLE-data-DAY TIME.csv``. Before version 7 a row was a number: ``Series;Time;Value``.
"""

from __future__ import annotations

import pytest
from memory_sink import MemorySink, source_of

from tracekit.ingest import ingestor, recognise
from tracekit.ingest.base import IngestOptions

AT = 1784016758
DAY = "-data-2026-07-14 10_12_38.csv"


def export(text: str, name: str) -> MemorySink:
    source = source_of(text.encode(), name)
    found = recognise(source)
    assert found.ingestor is not None, found
    sink = MemorySink()
    ingestor(found.ingestor).read(source, sink, IngestOptions())
    return sink


def rows(sink: MemorySink) -> list[tuple[object, ...]]:
    """Machine, GPU, counter, seconds since AT, and value."""
    found = sink.rows("gpu_sample", "node", "nvml_index", "counter", "time_ns", "value")
    return sorted(((*r[:3], (r[3] - AT * 10**9) / 1e9, r[4]) for r in found), key=str)


LEGENDS = f'"Time","GPU 0","GPU 1","Total"\n{AT}000,620,88.5,708\n{AT + 15}000,,90,90\n'


def test_a_panel_s_title_is_the_metric_of_its_legends() -> None:
    sink = export(LEGENDS, "GPU Power Usage" + DAY)
    assert rows(sink) == [
        (None, 0, "power", 0.0, 620.0),
        (None, 1, "power", 0.0, 88.5),
        (None, 1, "power", 15.0, 90.0),
    ]
    assert sum(n for c, n in sink.counters.items() if c.startswith("column_not_read")) == 1


@pytest.mark.parametrize(
    ("title", "counter", "scale"),
    [
        ("GPU Temperature", "gpu_temperature", 1.0),
        ("GPU Utilization", "gpu_utilisation", 0.01),
        ("Tensor Core Utilization", "tensor_active", 0.01),
        ("GPU Power (mW)", "power", 0.001),
    ],
)
def test_titles_of_dcgm_s_dashboard_are_known(title: str, counter: str, scale: float) -> None:
    found = rows(export(LEGENDS.replace("708", "1").replace("620", "50"), title + DAY))
    assert [(c, v) for _, _, c, _, v in found] == [
        (counter, pytest.approx(n * scale)) for n in (50, 88.5, 90)
    ]


@pytest.mark.parametrize("title", ["GPU Power Total", "Sum", "Network", "GPU"])
def test_titles_that_are_no_metric_name_none(title: str) -> None:
    assert recognise(source_of(LEGENDS.encode(), title + DAY)).ingestor is None


@pytest.mark.parametrize("header", ["Time", "Series"])
def test_a_title_that_names_a_count_says_nothing_of_its_rate(header: str) -> None:
    wide = f"Time,eth0,gpu0\n{AT},5,6\n"
    long = LONG + "".join(f"{d};2026-07-14T10:12:38+02:00;5\n" for d in ("eth0", "gpu0"))
    for title in ("rx_bytes", "ECC SBE Volatile", "Rx Bytes"):
        text = wide if header == "Time" else long
        found = recognise(source_of(text.encode(), title + DAY))
        if found.ingestor is not None:
            sink = export(text, title + DAY)
            assert not sink.rows("net_sample")
            assert not sink.rows("gpu_sample")


def test_units_that_a_panel_prints_count() -> None:
    text = (
        '"Time","GPU 0","n1 GPU 1"\n'
        '"2026-07-14 08:12:38","1.98 GHz","345 MHz"\n'
        '"2026-07-14 08:12:53","980 MHz","1.98 GHz"\n'
    )
    sink = export(text, "GPU SM Clocks" + DAY)
    assert [r[4] for r in rows(sink)] == [1.98e9, 980e6]  # n1 is no name of a machine for sure
    assert sink.facts["time_basis"] == "local"


def test_series_with_labels_are_whose_the_labels_say() -> None:
    header = '"Time",' + ",".join(
        f'"{{Hostname=""{node}"", gpu=""{gpu}"", job=""dcgm""}}"'
        for node, gpu in (("n1", 0), ("n1", 1), ("n2", 0))
    )
    sink = export(f"{header}\n{AT}000,1,2,3\n", "GPU Temperature" + DAY)
    assert rows(sink) == [
        ("n1", 0, "gpu_temperature", 0.0, 1.0),
        ("n1", 1, "gpu_temperature", 0.0, 2.0),
        ("n2", 0, "gpu_temperature", 0.0, 3.0),
    ]


def test_other_exporters_metrics_with_labels_are_read_by_their_words() -> None:
    header = (
        '"Time","gpu_power_watts{gpu=""0"",instance=""n1:9400""}",'
        '"gpu_power_watts{gpu=""0"",instance=""n2:9400""}","up{instance=""n1:9400""}"'
    )
    sink = export(f"{header}\n{AT}000,300,400,1\n", "anything.csv")
    assert rows(sink) == [("n1", 0, "power", 0.0, 300.0), ("n2", 0, "power", 0.0, 400.0)]


def test_series_that_nothing_tells_apart_are_not_read_as_one() -> None:
    header = (
        '"Time","{gpu=""0"",instance=""10.0.0.1:9400""}","{gpu=""0"",instance=""10.0.0.2:9400""}"'
    )
    sink = export(f"{header}\n{AT}000,300,400\n", "GPU Power Usage" + DAY)
    assert rows(sink) == [(None, 0, "power", 0.0, 300.0)]
    assert sink.counters["column_not_read_another_column_has_the"] == 1


LONG = "Series;Time;Value\n"


def test_a_row_a_number_has_its_series_in_a_column() -> None:
    text = LONG + (
        '"GPU 0";2026-07-14T10:12:38+02:00;620.5\n"GPU 1";2026-07-14T10:12:38+02:00;88\n'
        '"GPU 0";2026-07-14T10:12:53+02:00;null\n"Total";2026-07-14T10:12:53+02:00;9\n'
    )
    sink = export(text, "GPU Power Usage" + DAY)
    assert rows(sink) == [(None, 0, "power", 0.0, 620.5), (None, 1, "power", 0.0, 88.0)]


def test_a_series_may_name_metric_and_labels() -> None:
    text = LONG + (
        '"DCGM_FI_DEV_GPU_TEMP{gpu=""3"",Hostname=""n1""}";2026-07-14T10:12:38+02:00;61\n'
        '"DCGM_FI_DEV_SM_CLOCK{gpu=""3"",Hostname=""n1""}";2026-07-14T10:12:38+02:00;1980\n'
    )
    sink = export(text, "explore.csv")
    assert rows(sink) == [
        ("n1", 3, "gpu_temperature", 0.0, 61.0), ("n1", 3, "sm_clock", 0.0, 1.98e9)]  # fmt: skip

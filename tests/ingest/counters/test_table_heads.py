"""Heads of tables that somebody made: what is before, in and beneath them."""

from __future__ import annotations

import json

import pytest
from memory_sink import MemorySink, source_of
from net_cases import ingest

from tracekit.ingest import recognise
from tracekit.ingest.counters.device_table import layout_of
from tracekit.ingest.counters.table_heads import heads, in_unit, plain_name

T_S = 1763800000
ROWS = [(T_S, 690.5, 60.0, 0.25, 200.0, 40.0, 0.99), (T_S + 1, 1.0, 61.0, 0.0, 2.0, 41.0, 1.0)]
"""Time, and power, temperature and busy share of two GPUs."""
NAMES = [f"gpu{i}_{m}" for i in range(2) for m in ("power_w", "temp_c", "util_pct")]
EXPECTED = sorted(
    (gpu, counter, T_S + moment, row[1 + 3 * gpu + at])
    for moment, row in enumerate(ROWS)
    for gpu in range(2)
    for at, counter in enumerate(("power", "gpu_temperature", "gpu_utilisation"))
)


def percent(row: tuple[float, ...]) -> list[float]:
    return [v * 100 if at in (2, 5) else v for at, v in enumerate(row[1:])]


def rows(sep: str = ",", form: str = "{}", time: str = "{}") -> str:
    return "".join(
        sep.join([time.format(row[0]), *(form.format(v) for v in percent(row))]) + "\n"
        for row in ROWS
    )


def read(text: str, name: str = "x_node7.csv") -> MemorySink:
    found = recognise(source_of(text.encode(), name))
    assert found.status == "ok", found
    assert found.ingestor is not None
    return ingest(source_of(text.encode(), name), found.ingestor)


def gpus(sink: MemorySink) -> list[tuple[object, ...]]:
    return sorted(
        (r["nvml_index"], r["counter"], r["time_ns"] / 1e9, pytest.approx(r["value"]))
        for r in sink.rows("gpu_sample")
    )


PLAIN = "time," + ",".join(NAMES) + "\n"
TUPLES = ["('gpu0', 'power_w')", "('gpu0', 'temp_c')", "('gpu0', 'util_pct')"]
TUPLES += [t.replace("gpu0", "gpu1") for t in TUPLES]


@pytest.mark.parametrize(
    "text",
    [
        PLAIN + rows(),
        "# collector 2\n# every 1 s\n" + PLAIN + rows(),
        "#" + PLAIN + rows(),
        "sep=,\n" + PLAIN + rows(),
        "Node telemetry\n\n" + PLAIN + rows(),
        PLAIN.replace(",", "|") + rows("|"),
        "time,gpu0_power,gpu0_temp,gpu0_util,gpu1_power,gpu1_temp,gpu1_util\ns,W,°C,%,W,C,%\n"
        + rows(),
        "time,gpu0_power,gpu0_temp,gpu0_util,gpu1_power,gpu1_temp,gpu1_util\n"
        ",[W],[C],[%],[W],[C],[%]\n" + rows(),
        ",gpu0,gpu0,gpu0,gpu1,gpu1,gpu1\ntime,power_w,temp_c,util_pct,power_w,temp_c,util_pct\n"
        + rows(),
        ",gpu0,,,gpu1,,\ntime,power_w,temp_c,util_pct,power_w,temp_c,util_pct\n" + rows(),
        ",gpu0,gpu0,gpu0,gpu1,gpu1,gpu1\n,power_w,temp_c,util_pct,power_w,temp_c,util_pct\n"
        "time,,,,,,\n" + rows(),
        "time," + ",".join(f'"{t}"' for t in TUPLES) + "\n" + rows(),
        "time," + ",".join(n.replace("gpu0_", "GPU[0].").replace("gpu1_", "GPU[1].") for n in NAMES)
        + "\n" + rows(),
        "time," + ",".join(f"metrics.{n.replace('_', '.', 1)}" for n in NAMES) + "\n" + rows(),
        "timeS,gpu0PowerW,gpu0TempC,gpu0UtilPct,gpu1PowerWatts,gpu1TempC,gpu1UtilPct\n" + rows(),
        "sampled_at," + ",".join(NAMES) + "\n" + rows(),
        "time,metric,gpu0,gpu1\n" + "".join(
            f"{r[0]},{m},{percent(r)[at]},{percent(r)[3 + at]}\n"
            for r in ROWS for at, m in enumerate(("power_w", "temp_c", "util_pct"))
        ),
        "time,device,metric,value,unit\n" + "".join(
            f"{r[0]},gpu{g},{m},{percent(r)[3 * g + at]},{u}\n"
            for r in ROWS for g in range(2)
            for at, (m, u) in enumerate((("power", "W"), ("temp", "C"), ("util", "%")))
        ),
        "time,name,value\n" + "".join(
            f"{r[0]},{n},{v}\n" for r in ROWS for n, v in zip(NAMES, percent(r), strict=True)
        ),
        "time,group,power_w,temp_c,util_pct\n" + "".join(
            f'{r[0]},"gpu:{g},host:node7",{",".join(map(str, percent(r)[3 * g : 3 * g + 3]))}\n'
            for r in ROWS for g in range(2)
        ),
        "".join(
            json.dumps({"time": r[0], "metrics": {
                n.split("_")[0]: {"power": {"value": percent(r)[3 * g], "unit": "W"},
                                  "temp_c": percent(r)[3 * g + 1],
                                  "util_pct": percent(r)[3 * g + 2]}
                for g, n in enumerate((NAMES[0], NAMES[3]))
            }}) + "\n" for r in ROWS
        ),
    ],
)  # fmt: skip
def test_the_same_table_in_many_shapes_is_the_same_numbers(text: str) -> None:
    sink = read(text)
    assert gpus(sink) == EXPECTED
    assert {r["node"] for r in sink.rows("gpu_sample")} == {"node7"}
    assert sink.facts["status"] == "ok"


def test_units_that_are_printed_in_cells_count_cell_by_cell() -> None:
    sink = read(
        "Time,power gpu0,util gpu0,ib0 tx\n"
        f"{T_S},690.5 W,45%,1.5 MB/s\n{T_S + 1},1.2 kW,5 %,2.5 kB/s\n{T_S + 2},N/A,,0 B/s\n"
    )
    values = sorted((r["counter"], r["value"]) for r in sink.rows("gpu_sample"))
    assert values == [
        ("gpu_utilisation", pytest.approx(0.05)),
        ("gpu_utilisation", 0.45),
        ("power", 690.5),
        ("power", 1200.0),
    ]
    assert [r["value"] for r in sink.rows("net_sample")] == [1.5e6, 2500.0, 0.0]


@pytest.mark.parametrize(
    ("unit", "size"),
    [("MBps", 1e6), ("GBps", 1e9), ("MB/s", 1e6), ("mbps", 1e6 / 8), ("Gbps", 1e9 / 8),
     ("bytes_s", 1)],
)  # fmt: skip
def test_a_capital_letter_tells_bytes_from_bits(unit: str, size: float) -> None:
    sink = read(f"time,nic0_tx_{unit},nic0_rx_{unit}\n{T_S},2,4\n")
    assert sorted(r["value"] for r in sink.rows("net_sample")) == [2 * size, 4 * size]


def test_samples_of_a_document_are_of_the_machine_that_it_names() -> None:
    samples = [{"t": T_S + m, "gpu0": {"power_w": m}, "gpu1": {"power_w": 5}} for m in range(2)]
    sink = read(json.dumps({"host": "n4", "samples": samples}), "x.json")
    found = sorted((r["node"], r["nvml_index"], r["value"]) for r in sink.rows("gpu_sample"))
    assert found == [("n4", 0, 0.0), ("n4", 0, 1.0), ("n4", 1, 5.0), ("n4", 1, 5.0)]


def test_a_unit_that_does_not_fit_is_no_number() -> None:
    sink = read(f"Time,gpu0_power_w,gpu1_power_w\n{T_S},5 MB,6\n")
    assert [r["value"] for r in sink.rows("gpu_sample")] == [6.0]
    assert sink.counters["bad_record"] == 1


def test_columns_of_several_machines_are_kept_apart() -> None:
    names = [f"node{n}_{m}" for n in range(2) for m in ("gpu0_power_w", "ib0_tx_bytes_s")]
    sink = read(f"time,{','.join(names)},node1_fan0_rpm\n{T_S},1,2,3,4,5\n", "all.csv")
    powers = [(r["node"], r["value"]) for r in sink.rows("gpu_sample")]
    rates = [(r["node"], r["value"]) for r in sink.rows("net_sample")]
    assert sorted(powers) == [("node0", 1.0), ("node1", 3.0)]
    assert sorted(rates) == [("node0", 2.0), ("node1", 4.0)]
    assert [(r["node"], r["device"]) for r in sink.rows("host_sample")] == [("node1", "fan0")]


def test_a_dashboard_names_metric_and_labels() -> None:
    names = [
        f'{{__name__=""{m}"", Hostname=""n1"", gpu=""{g}""}}'
        for m in ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP")
        for g in (0, 1)
    ]
    line = ",".join(f'"{n}"' for n in names)
    sink = read(f"Time,{line}\n2025-11-22 08:26:40,1,2,3,4\n")
    found = [(r["node"], r["nvml_index"], r["counter"]) for r in sink.rows("gpu_sample")]
    both = ("power", "gpu_temperature")
    assert sorted(found) == sorted(("n1", g, c) for c in both for g in (0, 1))


@pytest.mark.parametrize(
    ("header", "cells"),
    [
        ("elapsed_s", ("0.0", "0.1", "0.2")),
        ("t_ms", ("1000", "1100", "1200")),
        ("time", ("23:59:59.9", "00:00:00.0", "00:00:00.1")),
        ("time_since_start_us", ("5e5", "600000", "700000")),
    ],
)
def test_times_from_a_beginning_wait_for_the_job_description(
    header: str, cells: tuple[str, ...]
) -> None:
    body = "".join(f"{c},5,6\n" for c in cells)
    sink = read(f"{header},gpu0_power_w,gpu1_power_w\n{body}")
    assert sink.facts["time_basis"] == "elapsed"
    moments = sorted({r["time_ns"] for r in sink.rows("gpu_sample")})
    assert [m - moments[0] for m in moments] == [0, 10**8, 2 * 10**8]


def test_an_epoch_goes_before_a_local_time_beside_it() -> None:
    layout = layout_of(
        "datetime,unix_time,gpu0_power_w,gpu1_power_w",
        f"2025-11-22 09:26:40,{T_S}.5,1,2",
    )
    assert layout is not None
    assert layout.time == 1
    assert layout.unread == {"another column is the time": ["datetime"]}


@pytest.mark.parametrize("time", ["1.7638000005e+09", "1.7638000005e+12", "1.7638000005e9"])
def test_an_epoch_as_a_spreadsheet_prints_it(time: str) -> None:
    sink = read(f"time,gpu0_power_w,gpu1_power_w\n{time},5,6\n")
    assert {r["time_ns"] for r in sink.rows("gpu_sample")} == {T_S * 10**9 + 500_000_000}


def test_a_header_that_stays_unread_is_listed_as_it_is_written() -> None:
    layout = layout_of("time,gpu0_power_w,gpu1_power_w,('gpu0', 'foo')".replace(", '", ",'"))
    assert layout is None or layout.unread
    layout = layout_of("time\tgpu0_power_w\tgpu1_power_w\t('gpu0', 'foo')")
    assert layout is not None
    assert list(layout.unread.values()) == [["('gpu0', 'foo')"]]


@pytest.mark.parametrize(
    ("text", "unit", "scale", "number"),
    [
        ("1.5 kB/s", "bytes/s", 1.0, "1500.0"),
        ("2 GiB", "bytes", 1048576.0, "2048.0"),
        ("45%", "0..1", 0.01, "45.0"),
        ("45%", "W", 1.0, "45%"),
        ("N/A", "W", 1.0, "N/A"),
        ("5 parsecs", "W", 1.0, "5 parsecs"),
    ],
)
def test_a_cell_with_a_unit_is_one_of_its_column(
    text: str, unit: str, scale: float, number: str
) -> None:
    assert in_unit(text, unit, scale) == number


def test_names_are_made_plain_and_prose_is_no_header() -> None:
    assert plain_name("('gpu0', 'power_w')") == "gpu0_power_w"
    assert plain_name("GPU[3].temp") == "GPU3.temp"
    assert plain_name("a [W]") == "a [W]"
    assert layout_of("one", "two", "three") is None
    assert list(heads(["", "sep=;"])) == []


def test_a_port_of_an_hca_is_called_by_both() -> None:
    sink = read(
        "timestamp,hostname,device,port,port_xmit_data,port_rcv_data\n"
        f"{T_S},n1,mlx5_0,1,5,6\n{T_S},n1,mlx5_1,2,7,8\n"
    )
    found = sorted((r["port"], r["counter"], r["counted"]) for r in sink.rows("net_sample"))
    assert found == [
        ("mlx5_0/1", "rx_bytes", 24), ("mlx5_0/1", "tx_bytes", 20),
        ("mlx5_1/2", "rx_bytes", 32), ("mlx5_1/2", "tx_bytes", 28),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["x_host-b.csv", "host_b_gpus.csv", "gpu-host-b.csv"])
def test_a_machine_may_be_a_letter(name: str) -> None:
    sink = read(PLAIN + rows(), name)
    assert {r["node"] for r in sink.rows("gpu_sample")} <= {"host-b", "host_b"}

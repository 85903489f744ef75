"""GPUs and ports that nothing names are never read as one, whatever the format."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gpu_files import ingest, values
from memory_sink import MemorySink, source_of

from tracekit.errors import InputError
from tracekit.ingest.counters import samples
from tracekit.ingest.counters.fields import gpu_meaning
from tracekit.ingest.counters.gpu_samples import Gpu, GpuSamples
from tracekit.ingest.counters.net_samples import NetSamples
from tracekit.ingest.counters.net_words import meaning

T = 1_700_000_000
SAID = {"time": "t", "power": "P [W]"}


def table(*rows: str) -> MemorySink:
    return ingest("t,P\n" + "".join(f"{row}\n" for row in rows), columns=SAID)


def test_two_gpus_without_a_column_that_tells_them_apart_are_left_out() -> None:
    sink = table(f"{T},300", f"{T},700", f"{T + 1},310", f"{T + 1},690")
    assert values(sink, "power") == []
    assert (sink.counters["nameless_gpus"], sink.places["nameless_gpus"]) == (4, 3)
    assert sink.severities["nameless_gpus"] == "warning"
    assert (sink.facts["status"], sink.facts["reason"]) == (
        "partial", "several GPUs stand in it that nothing names")  # fmt: skip


def test_one_gpu_without_a_name_is_read() -> None:
    sink = table(f"{T},300", f"{T + 1},310", f"{T + 1},310")  # a row twice is no other GPU
    assert values(sink, "power") == [300, 310, 310]
    assert not [name for name in sink.counters if name.startswith("nameless")]


@pytest.mark.parametrize(
    ("gaps_ms", "is_several"),
    [
        ((2, 998), True),  # two GPUs, one printed after the other
        ((2, 3, 2, 993), True),
        ((90, 910), True),
        ((110, 890), False),  # above a tenth
        ((500, 480, 530), False),
        ((1000, 1000, 1000, 1000, 1000, 2), False),  # now and then one more
    ],
)
def test_values_in_bursts_are_of_several_gpus(gaps_ms: tuple[int, ...], is_several: bool) -> None:
    times_ms = np.cumsum([0, *gaps_ms * 8])
    sink = table(*(f"{T + at / 1000:.3f},300" for at in times_ms.tolist()))
    assert ("nameless_gpus" in sink.counters) is is_several
    assert len(values(sink, "power")) == (0 if is_several else len(times_ms))


def test_a_few_values_tell_nothing_of_bursts() -> None:
    sink = table(*(f"{T + s + ms},300" for s in range(4) for ms in (0, 0.002)))
    assert len(values(sink, "power")) == 8


@pytest.mark.parametrize("count", [1, 2])
def test_nvidia_smi_that_was_not_asked_which_gpu_a_row_is_of(count: int) -> None:
    head = "timestamp, utilization.gpu [%], power.draw [W]\n"
    rows = [
        f"2026/11/20 10:00:{second:02d}.{120 + gpu}, 90 %, {300 + gpu}.5 W\n"
        for second in range(20)
        for gpu in range(count)
    ]
    sink = ingest(head + "".join(rows))
    assert len(values(sink, "power")) == (20 if count == 1 else 0)
    assert ("nameless_gpus" in sink.counters) is (count == 2)


def test_names_that_are_no_index_tell_gpus_apart_at_any_time() -> None:
    rows = "timestamp,gpu,power_W\n" + "".join(
        f"{T + i},card-{'ab'[i % 2]},{i}\n" for i in range(6)
    )
    sink = ingest(rows)
    assert values(sink, "power") == []
    assert sink.counters["nameless_gpus"] == 6
    one = ingest(rows.replace("card-b", "card-a"))
    assert values(one, "power") == [0, 1, 2, 3, 4, 5]


def test_one_machine_s_nameless_gpus_cost_no_other_machine_and_no_named_gpu_a_row() -> None:
    sink = ingest(
        "timestamp,hostname,gpu,power_W\n"
        f"{T},a,,300\n{T},a,,700\n{T},a,1,500\n{T},b,,400\n{T + 1},b,,410\n"
    )
    rows = sink.rows("gpu_sample", "node", "nvml_index", "value")
    assert sorted(rows, key=str) == [("a", 1, 500.0), ("b", None, 400.0), ("b", None, 410.0)]
    assert sink.counters["nameless_gpus"] == 2


SCRAPE = 'DCGM_FI_DEV_POWER_USAGE{{slot="{0}"}} {1}\nDCGM_FI_DEV_GPU_TEMP{{slot="{0}"}} 60\n'


def test_series_whose_labels_name_no_gpu_are_left_out() -> None:
    sink = ingest(SCRAPE.format("x", 300) + SCRAPE.format("y", 700))
    assert sink.rows("gpu_sample") == []
    assert sink.counters["nameless_gpus"] == 4
    assert values(ingest(SCRAPE.format("x", 300)), "power") == [300]


def answer(*series: tuple[dict[str, str], list[int]]) -> MemorySink:
    result: list[dict[str, object]] = [
        {"metric": {"__name__": "DCGM_FI_DEV_POWER_USAGE", **labels},
         "values": [[T + s, str(300 + s)] for s in at]}
        for labels, at in series
    ]  # fmt: skip
    body = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return ingest(json.dumps(body))


def test_two_sets_of_labels_that_take_turns_are_two_gpus() -> None:
    """No moment has two values: that one follows the other shows it."""
    sink = answer(({"slot": "x"}, [0, 10, 20]), ({"slot": "y"}, [5, 15, 25]))
    assert sink.rows("gpu_sample") == []
    assert sink.counters["nameless_gpus"] == 6


@pytest.mark.parametrize("label", ["slot", "pod", "exported_namespace"])
def test_labels_that_follow_each_other_may_be_of_one_gpu(label: str) -> None:
    assert len(values(answer(({label: "x"}, [0, 10]), ({label: "y"}, [20, 30])), "power")) == 4


def test_pods_on_one_gpu_by_turns_are_one_gpu() -> None:
    sink = answer(({"pod": "x"}, [0, 20]), ({"pod": "y"}, [10, 30]))
    assert len(values(sink, "power")) == 4


def test_a_mig_instance_of_a_gpu_known_by_index_is_not_the_gpu() -> None:
    lines = [
        f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="0"{part}}} {number}'
        for part, number in (("", 0.5), (',GPU_I_ID="1"', 0.9), (',GPU_I_ID="2"', 0.1))
    ]
    sink = ingest("\n".join(lines) + "\n")
    assert sorted(sink.rows("gpu_sample", "device_id", "nvml_index", "value"), key=str) == [
        ("/1", 0, 0.9), ("/2", 0, 0.1), (None, 0, 0.5)]  # fmt: skip
    assert "nameless_gpus" not in sink.counters


def test_ports_without_a_name_are_left_out_where_they_are_several() -> None:
    sink = MemorySink()
    found = NetSamples(sink, source_of(b"", "x.csv"))
    found.at(T * 10**9)
    for place, (port, count) in enumerate(((None, 5), ("eth1", 7), (None, 6)), 1):
        found.add(place, port, meaning("rx_bytes"), count, original="x")
    found.finish()
    assert sink.rows("net_sample", "port", "counted") == [("eth1", 7)]
    assert (sink.counters["nameless_ports"], sink.places["nameless_ports"]) == (2, 3)


def test_queues_and_priorities_of_a_nameless_port_are_not_ports() -> None:
    sink = MemorySink()
    found = NetSamples(sink, source_of(b"", "x.csv"))
    found.at(T * 10**9)
    for priority in range(3):
        found.add(1, None, meaning("rx_pfc_packets"), priority, original="x", priority=priority)
    found.finish()
    assert len(sink.rows("net_sample")) == 3


def test_what_is_held_is_judged_in_parts_where_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """What showed itself to be several stays so; what came before it is written by then."""
    monkeypatch.setattr(samples, "MAX_HELD", 10)
    monkeypatch.setattr(samples, "BLOCK_ROWS", 10)
    sink = MemorySink()
    found = GpuSamples(sink, source_of(b"", "x.csv"))
    series = found.series(Gpu(), gpu_meaning("power"), "content")
    for start, step in ((0, 1), (10, 0), (20, 1)):
        at = (start + step * np.arange(10)) * 10**9
        found.add_many(np.full(10, series, np.int32), start + np.arange(10), at,
                       np.arange(10.0), None)  # fmt: skip
    found.finish()
    assert len(sink.rows("gpu_sample")) == 10
    assert (sink.counters["nameless_gpus"], sink.places["nameless_gpus"]) == (20, 19)


# --- rows of one device and time that columns nobody reads tell apart -----------------------------


def lines(header: str, *rows: str, count: int = 3) -> str:
    """The rows at some times, each with its time in front."""
    return f"{header}\n" + "".join(f"{T + s},{row}\n" for s in range(count) for row in rows)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (lines("timestamp,gpu,stat,power_W", "0,min,90", "0,max,700", "1,min,90", "1,max,700"),
         "stat"),
        (lines("timestamp,gpu,pid,memory_used_MiB", "0,17,500", "0,18,900"), "pid"),
        (lines("timestamp,rack,box,gpu,power_W", "a,1,0,300", "a,2,0,310", "b,1,0,320",
               "b,2,0,330"), "rack, box"),
        (lines("timestamp,gpu,stat,power_W", "0,min,90", "0,max,700", "1,min,90", "1,max,700",
               count=1), "stat"),
        (lines("timestamp,gpu,stat,metric,value", "0,min,power_W,90", "0,max,power_W,700",
               "0,min,temp_C,50", "0,max,temp_C,70"), "stat"),
        (lines("timestamp,port,vlan,rx_bytes", "eth0,7,100", "eth0,8,900"), "vlan"),
        (lines("timestamp,device,stat,power_w,temp_c", "gpu0,min,90,50", "gpu0,max,700,70"),
         "stat"),
    ],
)  # fmt: skip
def test_rows_that_differ_in_what_nobody_reads_are_not_one_device_s(text: str, named: str) -> None:
    with pytest.raises(InputError, match=rf"not read \({named}\)"):
        ingest(text, "x.csv")


@pytest.mark.parametrize(
    "text",
    [
        # Several readings a second: what is not read are numbers of the GPU, which repeat.
        lines("timestamp,gpu,voltage,power_W", "0,71,300", "0,71,310", "1,72,300", "1,72,300"),
        # A column that nobody reads, and no two rows of one GPU and time.
        lines("timestamp,gpu,phase,power_W", "0,a,300", "1,b,310"),
        # The step of a reading comes once.
        "timestamp,gpu,step,power_W\n"
        + "".join(f"{T + s // 2},{g},{s},300\n" for s in range(8) for g in range(2)),
        # Two readings in one second, between which the phase changed, are no rule.
        "timestamp,gpu,phase,power_W\n"
        + "".join(
            f"{T + s},0,{p},30{s}\n" for s, p in zip((0, 1, 2, 2, 3, 4), "aaabbb", strict=True)
        ),
        # The same row twice.
        lines("timestamp,gpu,phase,power_W", "0,a,300", "0,a,300"),
        # Whose it is, a column that is read says.
        lines("timestamp,instance,gpu,power_W", "n1:9400,0,300", "n2:9400,0,310"),
    ],
)
def test_other_columns_that_nobody_reads_cost_nothing(text: str) -> None:
    assert len(values(ingest(text, "x.csv"), "power")) >= 6


def test_records_that_differ_in_what_nobody_reads_are_not_one_device_s_either() -> None:
    records = [
        {"ts": T + s, "gpu": g, "pid": pid, "memory_used_mib": 10 * pid, "temp_c": 60}
        for s in range(3) for g in range(2) for pid in (17, 18)
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"not read \(gpu0_pid\)"):
        ingest("".join(json.dumps(r) + "\n" for r in records), "x.jsonl")
    alone = [r for r in records if r["pid"] == 17]
    sink = ingest("".join(json.dumps(r) + "\n" for r in alone), "x.jsonl")
    assert len(values(sink, "gpu_temperature")) == 6


def test_the_machine_that_was_scraped_is_the_machine() -> None:
    text = lines("timestamp,instance,gpu,power_W", "n1.x:9400,0,300", "10.0.0.7:9400,0,310")
    assert {r["node"] for r in ingest(text).rows("gpu_sample")} == {"n1.x", "10.0.0.7"}


def test_a_numbered_instance_is_a_part_of_its_gpu_and_no_machine() -> None:
    sink = ingest(lines("timestamp,gpu,instance,power_W", "0,1,300", "0,2,310", count=1))
    assert sink.rows("gpu_sample", "node", "nvml_index", "device_id", "value") == [
        (None, 0, "/1", 300.0), (None, 0, "/2", 310.0)]  # fmt: skip


# --- numbers that no GPU reaches ------------------------------------------------------------------


def test_a_number_that_no_gpu_reaches_is_of_another_unit() -> None:
    """NVML counts power in milliwatts, and people write it down as it comes."""
    wide = ingest(f"timestamp,gpu,power_draw,temp_c\n{T},0,300000,60\n{T},1,70000,61000\n")
    assert values(wide, "power") == []
    assert values(wide, "gpu_temperature") == [60]
    assert wide.counters["impossible_number"] == 3
    records = ingest(f'{{"ts": {T}, "gpu": 0, "power": 300000, "temp": 60}}\n', "x.jsonl")
    assert values(records, "gpu_temperature") == [60]
    assert (values(records, "power"), records.counters["impossible_number"]) == ([], 1)
    found = answer(({"gpu": "0"}, [0, 300_000]))  # the number is 300 more than its second
    assert (values(found, "power"), found.counters["impossible_number"]) == ([300], 1)

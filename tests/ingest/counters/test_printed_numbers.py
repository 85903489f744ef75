"""Every number that a real file of counters prints is in a row, or among what is not read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from memory_sink import source_of
from net_cases import SHARED, ingest_path
from printed_numbers import (
    Printed,
    balance,
    of_csv,
    of_disks,
    of_dots,
    of_exposition,
    of_fields,
    of_iostat,
    of_json,
    of_links,
    of_rows,
    of_stalls,
    of_vmstat,
    of_xml,
)

from tracekit.ingest import recognise

HOSTS = Path(__file__).resolve().parents[3] / "fixtures" / "hosts"
Reader = Callable[[str], list[Printed]]
_plain = partial(of_json, without=frozenset({"timestamp", "number-of-cpus"}))
_of_gpus = partial(of_csv, without=frozenset({"timestamp", "gpu_index"}))
_of_parts = partial(of_rows, names_count=2)  # a port, and its queue or priority
_WORDS = {"nvidia_smi_xml": "clock_event.*|ecc_.*|.*_pending|.*_failure"}
_NO_ANSWERS = frozenset({"watermark__show_invalid_namespace_masic_0.txt"})
"""What a command says instead of an answer."""
_COUNTS_MORE = frozenset({"gnmi", "sonic_db"})
"""What is not read is counted with the words among it, or by objects."""


def _of_database(text: str) -> list[Printed]:
    """What the database counts of objects that its maps of names name."""
    keys = json.loads(text)
    keys = keys.get("data", keys)
    keys = {k: v["value"] if "ttl" in v else v for k, v in keys.items() if isinstance(v, dict)}
    kinds = re.compile(r"COUNTERS_(?:\w+_)?(?:PORT|QUEUE|VOQ|PG|POOL)_NAME_MAP")
    maps = [v for k, v in keys.items() if kinds.fullmatch(k)]
    named = {oid for names in maps for oid in names.values() if oid.startswith("oid:")}
    return [
        printed
        for key, fields in keys.items()
        if key.partition(":")[2] in named
        for printed in of_json(json.dumps(fields))
        if not printed[0].endswith("TIMESTAMP")
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "family", "reader", "found", "unread"),
    [
        (SHARED / "dcgm/dcgm_exporter_kops.prom", "prometheus", of_exposition, 38, 8),
        (SHARED / "dcgm/dcgm_exporter_upcloud.prom", "prometheus", of_exposition, 19, 4),
        (SHARED / "dcgm/dcgm_exporter_viettel-ai-platform.prom", "prometheus", of_exposition,
         2, 18),
        (SHARED / "dcgm/node_exporter_e2e-output.txt", "prometheus", of_exposition, 137, 2890),
        (SHARED / "eos/eos_VerifyInterfaceDiscards__success.json", "switch_json", _plain, 4, 2),
        (SHARED / "sonic/mock_tables__t1__counter_db.json", "sonic_db", _of_database, 9010, 0),
        (SHARED / "sonic/vinted_counters_db_data.json", "sonic_db", _of_database, 171, 0),
        (SHARED / "gnmi/telegraf_canonical_field_names_responses.json", "gnmi", _plain, 2, 1),
        (SHARED / "gnmi/telegraf_issue_12831_responses.json", "gnmi", _plain, 0, 34),
        (SHARED / "gnmi/telegraf_tagging_name_based_responses.json", "gnmi", _plain, 0, 10),
        (SHARED / "gnmi/telegraf_canonical_field_names_expected.out", "gnmi", of_fields, 2, 1),
        (SHARED / "gnmi/telegraf_issue_12831_expected.out", "gnmi", of_fields, 0, 22),
        (SHARED / "nvidia_smi/a100-sxm4-v12.xml", "nvidia_smi_xml", of_xml, 19, 196),
        (SHARED / "nvidia_smi/nanogpt_pr643_gpu_metrics.csv", "gpu_csv", _of_gpus, 15336, 0),
        (SHARED / "nvidia_smi/nvidia-smi.nvlink.status.a100.txt", "gpu_text", of_links, 0, 96),
        (SHARED / "infiniband/perfquery_0x7cfe9003003b4b96.out", "infiniband", of_dots, 22, 0),
        (SHARED / "infiniband/perfquery_0x506b4b03005c2740.out", "infiniband", of_dots, 22, 0),
        (SHARED / "infiniband/perfquery-rcv-error_0x7cfe9003003b4b96-1.out", "infiniband",
         of_dots, 6, 0),
        (SHARED / "nxos/ShowInterfaceCounters_golden_output1_output.txt", "nxos", of_rows, 8, 0),
        (SHARED / "nxos/ShowInterfaceCountersErrors_golden_output_output.txt", "nxos", of_rows,
         468, 0),
        (SHARED / "sonic_cli/pfcstat_t__show_pfc_counters_all.txt", "sonic_cli", of_rows, 96, 0),
        (SHARED / "sonic_cli/pfcstat__show_pfc_counters_history_output.txt", "sonic_cli",
         _of_parts, 72, 0),
        (SHARED / "sonic_cli/queue_t__show_queue_counters.txt", "sonic_cli", _of_parts, 240, 0),
        (SHARED / "sonic_cli/pgdrop_t__show_pg_dropped_packet_stat.txt", "sonic_cli", of_rows,
         24, 0),
        (SHARED / "sonic_cli/drop_t__dropstat_result.txt", "sonic_cli", of_rows, 18, 0),
        (HOSTS / "host01-diskstats.txt", "storage", of_disks, 234, 208),
        (HOSTS / "host01-pressure.txt", "pressure", of_stalls, 63, 140),
        (HOSTS / "host01-vmstat.txt", "vmstat", of_vmstat, 108, 113),
        (HOSTS / "host01-iostat.json", "iostat", _plain, 240, 332),
        (HOSTS / "host01-iostat.txt", "iostat_text", of_iostat, 70, 154),
        (HOSTS / "host01-sar.json", "sadf", _plain, 102, 288),
    ],
    ids=lambda v: v.name if isinstance(v, Path) else None,
)  # fmt: skip
def test_no_number_is_left_out_without_a_word(
    path: Path, family: str, reader: Reader, found: int, unread: int
) -> None:
    if not path.exists():
        pytest.skip("shared/data is not here")
    text = path.read_text(encoding="utf-8")
    told = balance(reader(text), ingest_path(path, family), _WORDS.get(family, ""))
    assert (told.found, told.missing.total()) == (found, unread), told
    if family in _COUNTS_MORE:
        assert told.named >= unread
    else:
        assert told.named == unread


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "family", "found"),
    [("eos", "switch_json", 113), ("nxos", "nxos", 476), ("sonic_cli", "sonic_cli", 3796)],
)
def test_no_sample_of_a_switch_leaves_a_number_out_without_a_word(
    folder: str, family: str, found: int
) -> None:
    """Every table and answer of these folders: queues, WRED, watermarks, PFC, drops, rates, FEC."""
    if not SHARED.exists():
        pytest.skip("shared/data is not here")
    total = 0
    for path in sorted((SHARED / folder).iterdir()):
        text = path.read_text(encoding="utf-8")
        if recognise(source_of(text.encode(), path.name)).ingestor != family:
            assert path.name in _NO_ANSWERS, path
            continue
        reader = _plain if text.lstrip()[:1] in ("{", "[") else of_rows
        told = balance(reader(text), ingest_path(path, family))
        assert told.missing.total() == told.named, (path.name, told)
        total += told.found
    assert total == found

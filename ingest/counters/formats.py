"""Every format of counters that is read, and whether a real file has proved it.

A format that is read as its documentation describes it counts ``parsed_from_documentation`` in
ingest_stat for each of its files: what rests on such a file alone is at most a note.
"""

from __future__ import annotations

from typing import NamedTuple


class Format(NamedTuple):
    """One format."""

    family: str
    """The ingestor."""
    name: str
    origin: str
    """What writes it."""
    is_proved: bool | None
    """Whether the numbers of real files were compared with what those files print; None where it
    means what the user says."""
    time: str
    """Where its times come from before the file's name and modification time are asked."""


GPU_FORMATS: tuple[Format, ...] = (
    Format("prometheus", "scrapes", "dcgm-exporter, node_exporter", True, "samples, time lines"),
    Format("prometheus", "answers of the HTTP API", "query_range, query", False, "each sample"),
    Format("gpu_csv", "CSV", "nvidia-smi --query-gpu", False, "timestamp, local"),
    Format("gpu_csv", "wide tables", "a column a counter (nanoGPT's)", True, "a column"),
    Format("gpu_csv", "long tables", "a row a number", False, "a column"),
    Format("gpu_text", "list of links", "nvidia-smi nvlink -s", True, "collected_at lines"),
    Format("gpu_text", "list of GPUs", "nvidia-smi -L and captures of several", True, "the same"),
    Format("gpu_text", "dmon", "nvidia-smi dmon", False, "Date and Time, local; else rounds"),
    Format("gpu_text", "dmon", "dcgmi dmon", False, "rounds: job.toml says start and interval"),
    Format("gpu_text", "processes", "nvidia-smi pmon", True, "Date and Time, local; else rounds"),
    Format("gpu_text", "processes", "nvidia-smi --query-compute-apps", True, "timestamp, local"),
    Format("gpu_text", "matrix", "nvidia-smi topo -m", True, "none: it is a description"),
    Format("topology", "XML", "NCCL_TOPO_DUMP_FILE", False, "none: it is a description"),
    Format("nvidia_smi_xml", "XML", "nvidia-smi -q -x", True, "timestamp, local"),
    Format("kernel_log", "XIDs", "dmesg, the fabric manager's log", True, "each line, local"),
)

NET_FORMATS: tuple[Format, ...] = (
    Format("linux_net", "interface statistics", "ip -s -j link", True, "time lines between dumps"),
    Format("linux_net", "queue statistics", "tc -s -j qdisc", True, "time lines between dumps"),
    Format("linux_net", "wrapped samples", "one JSON object a line", True, "ts of each sample"),
    Format("sonic_db", "COUNTERS_DB", "redis-dump, sonic-db-dump", True, "expireat of each key"),
    Format("sonic_cli", "tables", "show pfc, queue, priority-group, ...", True, "time lines"),
    Format("sonic_cli", "JSON of the same commands", "--json", True, "time lines"),
    Format("infiniband", "port counters", "perfquery", True, "time lines"),
    Format("infiniband", "error report", "ibqueryerrors", False, "time lines"),
    Format("infiniband", "db_csv", "ibdiagnet", False, "none"),
    Format("ufm", "telemetry", "UFM Telemetry, /csv/...", False, "timestamp of each row"),
    Format(
        "ufm", "answers of UFM's REST API", "/ufmRest/telemetry, /monitoring", False, "each time"
    ),
    Format("prometheus", "metrics of UFM", "UFM Telemetry, /metrics", False, "samples"),
    Format("nic", "tree of files", "/sys/class/infiniband", True, "none"),
    Format("nic", "files with values", "grep -r . /sys/class/...", True, "time lines"),
    Format("nic", "NIC statistics", "ethtool -S (mlx5, bnxt, ENA)", False, "time lines"),
    Format("nic", "pause settings", "ethtool -a", False, "time lines"),
    Format("nic", "RDMA statistics", "rdma statistic [-j] (also EFA)", False, "time lines"),
    Format("switch_json", "answers of Arista EOS", "show ... | json, eAPI", True, "time lines"),
    Format("switch_json", "answers of NX-OS", "NX-API", False, "time lines"),
    Format("nxos", "interface counters", "show interface counters [errors]", True, "time lines"),
    Format("nxos", "flow control", "show interface priority-flow-control", False, "time lines"),
    Format("gnmi", "notifications", "gNMI in JSON", True, "timestamp of each"),
    Format("gnmi", "line protocol", "Telegraf's gnmi input", True, "timestamp of each line"),
    Format("gnmi", "telemetry", "gnmic, format json or event", False, "timestamp of each"),
    Format("optics", "transceivers", "ethtool -m, SONiC eeprom --dom", False, "time lines"),
    Format("lldp", "neighbours", "show lldp table, EOS and lldpcli in JSON", False, "none needed"),
    Format("net_csv", "wide and long tables", "a port, and counters by name", None, "a column"),
)

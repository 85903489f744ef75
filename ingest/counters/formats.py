"""Every family of counters that is read: its formats, and the module that reads them.

A format of a new family is one module with ``sniff`` and ``read``, an entry here, and its tests.
A format that is read as its documentation describes it counts ``parsed_from_documentation`` in
ingest_stat for each of its files (those of the network; no rule asks which GPU counters are
proved): what rests on such a file alone is at most a note.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from tracekit.ingest.base import IngestOptions, Recognition, Sink, SourceFile
from tracekit.ingest.parquet_text import as_text


class Format(NamedTuple):
    """One format."""

    subject: Literal["gpu", "net", "host", "storage"]
    """What its counters are of."""
    name: str
    origin: str
    """What writes it."""
    is_proved: bool | None
    """Whether the numbers of real files were compared with what those files print; None where it
    means what the user says."""
    time: str
    """Where its times come from before the file's name and modification time are asked."""


class Family(Struct):
    """An ingestor. Its module is imported when a file is looked at."""

    name: str
    version: int
    """Raised when the rows that it writes for the same bytes change."""
    module: str
    """The module of this package."""
    formats: tuple[Format, ...]
    kinds: tuple[str, ...] | None = None
    """Kinds of its files whose answer may hold no number on purpose; its name if None."""
    is_table: bool = False
    """Whether it reads tables that somebody made, which may stand in Parquet as well as in CSV."""

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Recognise a file of the family by its first bytes."""
        if self.is_table:
            from tracekit.ingest.counters import plain_table

            head = plain_table.as_csv(head)
        recognition: Recognition | None = self._read_by().sniff(head, name)
        return recognition

    def read(self, source: SourceFile, sink: Sink, options: IngestOptions) -> None:
        """Stream the file into the sink."""
        if self.is_table:
            from tracekit.ingest.counters import plain_table

            source = plain_table.opened_as_csv(as_text(source))
        self._read_by().read(source, sink)

    def _read_by(self) -> Any:
        return import_module(f"{__package__}.{self.module}")


FAMILIES: tuple[Family, ...] = (
    Family("prometheus", 10, "prometheus", (
        Format("gpu", "scrapes", "dcgm-exporter, node_exporter", True, "samples, time lines"),
        Format("gpu", "answers of the HTTP API", "query_range, query", False, "each sample"),
        Format("gpu", "exports", "VictoriaMetrics, /api/v1/export", False, "each sample"),
        Format("net", "metrics of UFM", "UFM Telemetry, /metrics", False, "samples"),
        Format("host", "metrics of a machine", "node_exporter", True, "samples, time lines"),
        Format("storage", "metrics of disks", "node_exporter", True, "samples, time lines"),
    ), ("dcgm", "prometheus", "prometheus_api")),
    Family("gpu_csv", 15, "gpu_table", (
        Format("gpu", "CSV", "nvidia-smi --query-gpu", False, "timestamp, local"),
        Format("gpu", "wide tables", "a column a counter (nanoGPT's)", True, "a column"),
        Format("gpu", "long tables", "a row a number", False, "a column"),
    ), ("gpu_csv", "nvidia_smi"), is_table=True),
    Family("nvidia_smi_xml", 8, "smi_xml", (
        Format("gpu", "XML", "nvidia-smi -q -x", True, "timestamp, local"),
    ), ("nvidia_smi",)),
    Family("kernel_log", 6, "kernel_log", (
        Format("gpu", "XIDs", "dmesg, the fabric manager's log", True, "each line, local"),
        Format("host", "faults that a kernel reports", "dmesg, journalctl -k, syslog", False,
               "each line, local"),
    ), ()),
    Family("gpu_text", 12, "gpu_text", (
        Format("gpu", "table", "nvidia-smi", True, "the line above it, local"),
        Format("gpu", "text", "nvidia-smi -q", True, "Timestamp, local"),
        Format("gpu", "rows among other outputs", "nvidia-smi --query-gpu", True,
               "timestamp, local"),
        Format("gpu", "list of links", "nvidia-smi nvlink -s", True, "collected_at lines"),
        Format("gpu", "counts of links", "nvidia-smi nvlink -e, -gt d", False,
               "collected_at lines"),
        Format("gpu", "counts of links", "dcgmi nvlink -e", False, "collected_at lines"),
        Format("gpu", "list of GPUs", "nvidia-smi -L and captures of several", True, "the same"),
        Format("gpu", "dmon", "nvidia-smi dmon", False, "Date and Time, local; else rounds"),
        Format("gpu", "dmon", "dcgmi dmon", False, "rounds: job.toml says start and interval"),
        Format("gpu", "processes", "nvidia-smi pmon", True, "Date and Time, local; else rounds"),
        Format("gpu", "processes", "nvidia-smi --query-compute-apps", True, "timestamp, local"),
        Format("gpu", "matrix", "nvidia-smi topo -m", True, "none: it is a description"),
    ), ("dcgm", "nvidia_smi")),
    Family("amd", 4, "amd", (
        Format("gpu", "GPUs of AMD", "rocm-smi: CSV, JSON and its table", False,
               "time lines, else the file's"),
        Format("gpu", "GPUs of AMD", "amd-smi metric and monitor: JSON, text", False,
               "time lines, else the file's"),
    )),
    Family("topology", 2, "nccl_topology", (
        Format("gpu", "XML", "NCCL_TOPO_DUMP_FILE", False, "none: it is a description"),
    ), ()),
    Family("linux_net", 2, "linux", (
        Format("net", "interface statistics", "ip -s -j link", True, "time lines between dumps"),
        Format("net", "queue statistics", "tc -s -j qdisc", True, "time lines between dumps"),
        Format("net", "wrapped samples", "one JSON object a line", True, "ts of each sample"),
    )),
    Family("interface_text", 1, "interface_text", (
        Format("net", "interfaces as text", "ip -s link", True, "time lines between dumps"),
        Format("net", "interfaces of a kernel", "/proc/net/dev", True, "time lines between dumps"),
    )),
    Family("sonic_db", 2, "sonic_db", (
        Format("net", "COUNTERS_DB", "redis-dump, sonic-db-dump", True, "expireat of each key"),
    )),
    Family("sonic_cli", 2, "sonic_cli", (
        Format("net", "tables", "show pfc, queue, priority-group, ...", True, "time lines"),
        Format("net", "JSON of the same commands", "--json", True, "time lines"),
    )),
    Family("net_capture", 2, "captures", (
        Format("net", "outputs of several commands", "ethtool, rdma statistic, perfquery", False,
               "time lines"),
    )),
    Family("infiniband", 3, "infiniband", (
        Format("net", "port counters", "perfquery", True, "time lines"),
        Format("net", "error report", "ibqueryerrors", False, "time lines"),
        Format("net", "db_csv", "ibdiagnet", False, "none"),
    )),
    Family("fabric", 6, "fabric", (
        Format("net", "map of the fabric", "ibnetdiscover [--ports], iblinkinfo", False,
               "none needed"),
        Format("net", "links of the fabric", "/ufmRest/resources/links", False, "none needed"),
        Format("net", "ports of the fabric", "/ufmRest/resources/ports", False, "none needed"),
    )),
    Family("ufm", 1, "ufm", (
        Format("net", "telemetry", "UFM Telemetry, /csv/...", False, "timestamp of each row"),
        Format("net", "answers of UFM's REST API", "/ufmRest/telemetry, /monitoring", False,
               "each time"),
    )),
    Family("nic", 4, "nic", (
        Format("net", "tree of files", "/sys/class/infiniband", True, "none"),
        Format("net", "files with values", "grep -r . /sys/class/...", True, "time lines"),
        Format("net", "NIC statistics", "ethtool -S (mlx5, bnxt, ENA)", False, "time lines"),
        Format("net", "pause settings", "ethtool -a", False, "time lines"),
        Format("net", "RDMA statistics", "rdma statistic [-j] (also EFA)", False, "time lines"),
    )),
    Family("switch_json", 4, "switch_json", (
        Format("net", "answers of Arista EOS", "show ... | json, eAPI", True, "time lines"),
        Format("net", "answers of NX-OS", "NX-API", False, "time lines"),
    )),
    Family("nxos", 4, "nxos", (
        Format("net", "interface counters", "show interface counters [errors]", True, "time lines"),
        Format("net", "errors of EOS", "show interfaces counters errors", False, "time lines"),
        Format("net", "flow control", "show interface priority-flow-control", False, "time lines"),
        Format("net", "rates", "show interface counters table; EOS: counters rates", False,
               "time lines"),
        Format("net", "queues of EOS", "show interfaces counters queue detail", True, "time lines"),
    )),
    Family("nxos_queuing", 1, "nxos_queuing", (
        Format("net", "queues of NX-OS", "show queuing interface", False, "time lines"),
    )),
    Family("show_interface", 2, "show_interface", (
        Format("net", "status of ports", "show interface(s) of NX-OS, EOS, IOS", True,
               "time lines"),
    )),
    Family("eos_phy", 1, "eos_phy", (
        Format("net", "physical layer of EOS", "show interfaces phy detail", False,
               "time lines, else Current System Time, local"),
    )),
    Family("gnmi", 2, "gnmi", (
        Format("net", "notifications", "gNMI in JSON", True, "timestamp of each"),
        Format("net", "notifications as text", "gNMI in prototext", False, "timestamp of each"),
        Format("net", "line protocol", "Telegraf's gnmi input", True, "timestamp of each line"),
        Format("net", "telemetry", "gnmic, format json or event", False, "timestamp of each"),
    )),
    Family("telegraf", 4, "telegraf", (
        Format("gpu", "points of GPUs", "Telegraf: nvidia_smi, prometheus; or in JSON", False,
               "timestamp of each line"),
        Format("net", "points of ports", "Telegraf: infiniband, ethtool, net; or in JSON", False,
               "timestamp of each line"),
        Format("gpu", "annotated CSV", "InfluxDB's answers about points of Telegraf", False,
               "_time of each row"),
    )),
    Family("optics", 3, "optics", (
        Format("net", "transceivers", "SONiC eeprom --dom, table of EOS", False, "time lines"),
        Format("net", "a transceiver", "ethtool -m", True, "time lines"),
        Format("net", "transceivers in detail", "EOS, NX-OS: transceiver detail(s)", True,
               "time lines"),
    )),
    Family("port_trees", 1, "port_trees", (
        Format("net", "interfaces of Junos", "show interfaces extensive | display json", False,
               "time lines"),
        Format("net", "interfaces of Cumulus Linux",
               "nv show interface [PORT counters qos] -o json", False, "time lines"),
    )),
    Family("mlxlink", 1, "mlxlink", (
        Format("net", "state of a port", "mlxlink -c -m, as text and JSON", False, "time lines"),
    )),
    Family("lldp", 2, "lldp", (
        Format("net", "neighbours", "show lldp table, EOS and lldpcli in JSON", False,
               "none needed"),
    )),
    Family("sadf", 2, "sadf", (
        Format("host", "history", "sadf -j", True, "each moment"),
    )),
    Family("sar", 1, "sar_text", (
        Format("host", "history, as text", "sar, mpstat", True, "each row; its day the first line"),
        Format("storage", "disks, as text", "sar -d", True, "each row; its day the first line"),
    )),
    Family("affinity", 2, "affinity", (
        Format("host", "CPUs and memory nodes of processes", "/proc/PID/status, taskset -cp PID",
               False, "none: it is a description"),
        Format("host", "cpusets of processes",
               "grep -H . cgroup.procs cpuset.{cpus,mems}.effective of cgroup v2", False,
               "none: it is a description"),
        Format("host", "memory of processes by node", "numastat -p PID", False,
               "none: it is a description"),
    )),
    Family("pressure", 2, "pressure", (
        Format("host", "pressure stalls", "/proc/pressure/{cpu,io,memory}", True, "time lines"),
        Format("host", "CPU quota, version 1", "cpu.stat of a cgroup", True, "time lines"),
        Format("host", "CPU quota and memory limits", "cpu.stat, memory.events of cgroup v2",
               False, "time lines"),
    )),
    Family("ibswinfo", 1, "ibswinfo", (
        Format("host", "state of a switch", "ibswinfo [-o vitals]", False, "time lines"),
    )),
    Family("ipmi", 2, "ipmi", (
        Format("host", "sensors of a machine", "ipmitool sensor, sdr, -c sdr", False,
               "time lines"),
    )),
    Family("redfish", 1, "redfish", (
        Format("host", "sensors of a machine", "Redfish: Thermal, Power, Sensors, MetricReports",
               False, "each reading or report, else time lines"),
    )),
    Family("vmstat", 2, "vmstat", (
        Format("host", "vmstat", "vmstat -t", True, "each line"),
    )),
    Family("iostat", 2, "iostat", (
        Format("storage", "iostat", "iostat -x -t -o JSON", True, "each report"),
    )),
    Family("iostat_text", 2, "iostat_text", (
        Format("storage", "iostat", "iostat -x -t", True, "each report"),
    )),
    Family("nfsiostat", 1, "nfsiostat", (
        Format("storage", "NFS mounts", "nfsiostat INTERVAL", False, "time lines"),
    )),
    Family("storage", 2, "storage_files", (
        Format("storage", "disks", "/proc/diskstats", True, "time lines"),
        Format("storage", "NFS mounts", "/proc/self/mountstats", False, "time lines"),
        Format("storage", "Lustre clients", "lctl get_param llite.*.stats osc.*.stats", False,
               "snapshot_time, else time lines"),
    )),
    Family("nvme", 1, "nvme", (
        Format("storage", "SMART logs of NVMe disks", "nvme smart-log -o json, smartctl -j", False,
               "smartctl's local_time, else time lines"),
    )),
    Family("lustre_jobs", 1, "lustre_jobs", (
        Format("storage", "Lustre servers, by job",
               "lctl get_param obdfilter.*.job_stats mdt.*.job_stats", False,
               "time lines, else snapshot_time"),
    )),
    Family("monitoring", 1, "monitoring", (
        Format("gpu", "series of monitoring services",
               "Datadog's query, CloudWatch's GetMetricData, OTLP in JSON", False, "each point"),
        Format("net", "series of ports", "the same", False, "each point"),
    )),
    Family("device_csv", 14, "device_table", (
        Format("gpu", "tables of devices", "a column a counter and device", None, "a column"),
        Format("gpu", "exports of dashboards", "Grafana: series joined by time", False, "Time"),
    ), is_table=True),
    Family("net_csv", 12, "net_table", (
        Format("net", "wide and long tables", "a port, and counters by name", None, "a column"),
    ), is_table=True),
    Family("device_records", 11, "device_records", (
        Format("gpu", "records of devices", "JSON, points, rows of one's own", None, "each record"),
        Format("gpu", "dashboards, a row a number", "Grafana: Series;Time;Value", False, "Time"),
    ), is_table=True),
)  # fmt: skip
"""In the order in which they are asked."""

ANSWER_KINDS = frozenset(
    kind for f in FAMILIES for kind in ((f.name,) if f.kinds is None else f.kinds)
)
"""Kinds of files whose answer may hold no number on purpose, and says why."""

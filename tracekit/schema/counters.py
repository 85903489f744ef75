"""What counters and logs of machines sampled."""

from __future__ import annotations

from tracekit.schema.declare import PLACE_GRAIN, col, moment, origin, source_table

_SAMPLE = (
    moment("time_ns", "When; null where unknown."),
    col("time_source", "VARCHAR", "content, name, mtime or start+interval."),
    col("counter", "VARCHAR", "Canonical name."),
    col("original_name", "VARCHAR", "Name or field id in the source."),
    col("kind", "VARCHAR", "cumulative, gauge, watermark or window."),
    col("unit", "VARCHAR", "Unit of value or counted."),
    col("value", "DOUBLE", "Gauges; null for cumulative counters."),
    col("counted", "UBIGINT", "Cumulative counters: exact beyond 2^53; null for gauges."),
)

NODE_OF_ROW = col(
    "node", "VARCHAR", "Machine, where it is another than the file's; host follows it.", "name"
)

TABLES = (
    source_table(
        "gpu_process",
        "A process on a GPU, as nvidia-smi lists it; never its command line.",
        ("source_id", "place", "device_id", "nvml_index", "pid"),
        col("node", "VARCHAR", "Host as the source states it; null where it does not.", "name"),
        col("device_id", "VARCHAR", "UUID or PCI address; null when only an index is known."),
        col("nvml_index", "INTEGER", "NVML index."),
        col("pid", "BIGINT", "Process id, as the host counts."),
        col("kind", "VARCHAR", "C computes, G draws, M+C computes under MPS; null: computes."),
        col("name", "VARCHAR", "File name of its executable; null where it may be none.", "name"),
        col("readings_count", "BIGINT", "Readings in which it was listed."),
        col("memory_bytes", "BIGINT", "Most GPU memory that it held; null where not stated."),
    ),
    source_table(
        "process_place",
        "On which CPUs and memory nodes a process may run, or how much memory it has on a node.",
        (*PLACE_GRAIN, "numa_node"),
        col("node", "VARCHAR", "Host as the file's name states it; null elsewhere.", "name"),
        col("pid", "BIGINT", "Process id."),
        col("cpus", "VARCHAR", "CPUs on which it may run: 0-31,64-95; null where not said."),
        col("memory_nodes", "VARCHAR", "Memory nodes that it may use; null where not said."),
        col("numa_node", "INTEGER", "Memory node that memory_bytes are on."),
        col("memory_bytes", "BIGINT", "Its memory there; null where not told."),
    ),
    source_table(
        "gpu_sample",
        "One GPU counter at one moment.",
        (*PLACE_GRAIN, "counter", "device_id", "nvml_index", "node"),
        col(
            "device_id",
            "VARCHAR",
            "UUID or PCI address, and a part (MIG, link) behind a stroke; null: only an index.",
        ),
        col("nvml_index", "INTEGER", "NVML index."),
        col("node", "VARCHAR", "Host as the sample states it; null where it does not.", "name"),
        col("pod", "VARCHAR", "Pod; a pod is not a host.", "name"),
        *_SAMPLE,
    ),
    source_table(
        "net_sample",
        "One counter of a port, NIC or queue at one moment.",
        (*PLACE_GRAIN, "node", "port", "counter", "priority", "queue", "lane"),
        col(
            "node",
            "VARCHAR",
            "Switch or host that counts; null where unknown.",
            "name",
        ),
        origin("node_source", "the node"),
        col("port", "VARCHAR", "Port or NIC."),
        col("direction", "VARCHAR", "rx or tx as the node sees it; null where neither."),
        col("priority", "INTEGER", "Priority or traffic class."),
        col("queue", "INTEGER", "Queue."),
        col("lane", "INTEGER", "Lane."),
        col("interval_ns", "BIGINT", "Sampling interval that the source states."),
        *_SAMPLE,
    ),
    source_table(
        "host_sample",
        "One counter of a machine, of a control group on it or of a part of it, at one moment.",
        (*PLACE_GRAIN, "node", "cgroup", "device", "counter"),
        NODE_OF_ROW,
        col(
            "cgroup",
            "VARCHAR",
            "Control group, as its path below the mount; null: the whole machine, or not said.",
            "name",
        ),
        col("device", "VARCHAR", "Fan, power supply, CPU ... that a sensor is of; null: none."),
        col("interval_ns", "BIGINT", "Time before time_ns that a window is of."),
        *_SAMPLE,
    ),
    source_table(
        "storage_sample",
        "One counter of a disk, or of a file system that a machine mounts, at one moment.",
        (*PLACE_GRAIN, "node", "device", "counter"),
        NODE_OF_ROW,
        col("device", "VARCHAR", "Disk, mount point, or file system's target.", "name"),
        col("filesystem", "VARCHAR", "Kind of what is mounted (nfs4, lustre); null for a disk."),
        col("interval_ns", "BIGINT", "Time before time_ns that a window is of."),
        *_SAMPLE,
    ),
    source_table(
        "log_event",
        "A recognised line of a host or job log (XID, watchdog, error); never the whole line.",
        PLACE_GRAIN,
        moment("time_ns", "When; null where unknown."),
        col("device_id", "VARCHAR", "UUID or PCI address."),
        col("code", "VARCHAR", "What it is, such as xid-79."),
        col("severity", "VARCHAR", "info, warning or error."),
        col("template", "VARCHAR", "Masked shape of the line."),
        col("fields", "VARCHAR[]", "key=value of recognised fields."),
    ),
)

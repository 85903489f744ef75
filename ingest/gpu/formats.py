"""Every format of GPU counters that is read, and whether a real file has proved it."""

from __future__ import annotations

from tracekit.ingest.net.formats import Format

FORMATS: tuple[Format, ...] = (
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

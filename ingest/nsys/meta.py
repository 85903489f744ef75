"""What an export says about itself: versions, time zero, processes, devices, environment.

Environment tables hold secrets (tokens lie in whole environments there): only the keys that are
listed here leave this module, and only with values of the shape that is written beside them.
"""

from __future__ import annotations

import re

from msgspec import Struct, field

from tracekit.ingest.nsys.database import Tables

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
CUDA_EVENT = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
NVTX = "NVTX_EVENTS"
STRINGS = "StringIds"
SESSION = "TARGET_INFO_SESSION_START_TIME"

DEVICE_TABLES = (KERNEL, MEMCPY, MEMSET, GRAPH)
"""Tables whose rows are work on a device, in the order of their places."""
KNOWN_TABLES = (STRINGS, SESSION, "META_DATA_EXPORT", "EXPORT_META_DATA", "PROCESSES", KERNEL)
"""Two of these make a SQLite file an export."""

_NUMBER = re.compile(r"\d{1,9}")
_DEVICE = r"(?:-?\d{1,4}|(?:MIG-GPU|GPU|MIG)-[0-9a-fA-F-]{4,60}(?:/\d{1,3}){0,2})"
_DEVICES = re.compile(rf"{_DEVICE}(?:,{_DEVICE}){{0,63}}")
_ALLOWED = {
    "RANK": _NUMBER,
    "LOCAL_RANK": _NUMBER,
    "WORLD_SIZE": _NUMBER,
    "LOCAL_WORLD_SIZE": _NUMBER,
    "SLURM_PROCID": _NUMBER,
    "SLURM_LOCALID": _NUMBER,
    "SLURM_NTASKS": _NUMBER,
    "SLURM_JOB_ID": _NUMBER,
    "OMPI_COMM_WORLD_RANK": _NUMBER,
    "OMPI_COMM_WORLD_LOCAL_RANK": _NUMBER,
    "OMPI_COMM_WORLD_SIZE": _NUMBER,
    "PMIX_RANK": _NUMBER,
    "PMI_RANK": _NUMBER,
    "PMI_SIZE": _NUMBER,
    "CUDA_VISIBLE_DEVICES": _DEVICES,
}
"""Variables that are read, and the shape that their whole value must have."""

RANK_KEYS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
LOCAL_RANK_KEYS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
WORLD_KEYS = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")

_VERSION = re.compile(r"\d{1,6}(?:\.\d{1,8}){1,4}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
_UUID = re.compile(r"[0-9a-fA-F-]{32,40}")
_PCI = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")


class Process(Struct, frozen=True):
    """A process that put work on a device."""

    global_pid: int
    pid: int
    device: int
    """The lowest device that it used."""

    @property
    def part(self) -> str:
        """Its name as a part of the export: in natural order, device before pid."""
        return f"device={self.device},pid={self.pid}"


class Gpu(Struct, frozen=True):
    """A device that the export describes."""

    gpu: int
    ordinal: int | None
    model: str | None
    uuid: str | None
    pci: str | None
    sm_count: int | None
    memory_bytes: int | None


class Meta(Struct):
    """Facts about the whole export."""

    product: str | None = None
    schema: str | None = None
    shift_ns: int = 0
    utc_ns: int | None = None
    """The wall clock at the session's start; null in exports of 2021 and before."""
    is_cut: bool = False
    """Exported with --times: launches may be cut off from their kernels."""
    is_derived: bool = False
    """Another program made it of a genuine export, and may have cut it."""
    triggers: dict[str, str] = field(default_factory=dict)
    """What began and ended the capture."""
    duration_ns: int | None = None
    """Length of the session."""
    has_blobs: bool = False
    host: str | None = None
    driver: str | None = None
    env: dict[str, str] = field(default_factory=dict)

    @property
    def offset_ns(self) -> int:
        """Added to the export's times: from its own zero to the epoch, where that is known."""
        return self.utc_ns - self.shift_ns if self.utc_ns is not None else 0

    @property
    def session_end_ns(self) -> int | None:
        """When the capture ended, where all of the session was captured and exported.

        Work ends before: what follows, up to here, is time in which there was none.
        """
        is_whole = self.triggers == {"START_TRIGGER": "Immediate", "STOP_TRIGGER": "Delayed"}
        if not is_whole or self.is_cut or self.is_derived or self.duration_ns is None:
            return None
        return None if self.utc_ns is None else self.utc_ns + self.duration_ns

    def number(self, keys: tuple[str, ...]) -> int | None:
        """The first of some variables that is set."""
        return next((int(self.env[k]) for k in keys if k in self.env), None)


def pid_of(global_id: int) -> int:
    """Process id of a globalPid or globalTid (hardware 8, VM 8, process 24, thread 24 bits)."""
    return (global_id >> 24) & 0xFFFFFF


def is_export(database: Tables) -> bool:
    """Whether a SQLite file is an Nsight Systems export."""
    return sum(t in database.tables for t in KNOWN_TABLES) >= 2


def processes(database: Tables) -> list[Process]:
    """Processes with work on a device, those of the lowest devices first."""
    devices: dict[int, int] = {}
    for table in DEVICE_TABLES:
        for global_pid, device in database.distinct(table, "globalPid", "deviceId"):
            devices[global_pid] = min(device, devices.get(global_pid, device))
    processes_found = [Process(g, pid_of(g), d) for g, d in devices.items()]
    return sorted(processes_found, key=lambda p: (p.device, p.pid))


def read_meta(database: Tables) -> Meta:
    """The allow-listed facts of an export."""
    meta = Meta()
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        _read_export(database, table, meta)
    for (utc,) in database.rows(SESSION, ("utcEpochNs",)):
        if type(utc) is int and utc > 10**18:
            meta.utc_ns = utc
    for (duration,) in database.rows("ANALYSIS_DETAILS", ("duration",)):
        if type(duration) is int and 0 < duration < 2**60:
            meta.duration_ns = duration
    wanted = "name IN ('Hostname', 'NvDriverVersion', 'DeviceEnvironment')"
    if database.has("TARGET_INFO_SYSTEM_ENV", "name", "value"):
        for name, value in database.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"), wanted):
            text = value if isinstance(value, str) else ""
            if name == "Hostname" and _HOST.fullmatch(text):
                meta.host = text
            elif name == "NvDriverVersion" and _VERSION.fullmatch(text):
                meta.driver = text
            elif name == "DeviceEnvironment":
                meta.env.update(_environment(text.split(";")))
    if database.has("META_DATA_CAPTURE", "name", "value"):
        for name, value in database.rows("META_DATA_CAPTURE", ("name", "value")):
            _read_capture(str(name), str(value), meta)
    return meta


def _read_export(database: Tables, table: str, meta: Meta) -> None:
    if not database.has(table, "name", "value"):
        return
    for name, value in database.rows(table, ("name", "value")):
        text = str(value)
        if name == "EXPORT_PRODUCT_VERSION" and _VERSION.fullmatch(text):
            meta.product = text
        elif name == "EXPORT_SCHEMA_VERSION" and _VERSION.fullmatch(text):
            meta.schema = text
        elif name == "EXPORT_CONFIG_TIME_SHIFT" and re.fullmatch(r"-?\d{1,19}", text):
            meta.shift_ns = int(text)
        elif name == "EXPORT_PARAM_TIMES_TO_EXPORT":
            meta.is_cut = bool(text.strip())
        elif str(name).startswith("DERIVED"):
            meta.is_derived = True
        elif name == "EXPORT_PARAM_INCLUDE_BLOBS":
            meta.has_blobs = text == "true"


def _read_capture(name: str, value: str, meta: Meta) -> None:
    if name in ("START_TRIGGER", "STOP_TRIGGER") and re.fullmatch(r"[A-Za-z]{1,30}", value):
        meta.triggers[name] = value
    elif name.endswith(":ENVIRONMENT_VARIABLE"):
        environment = _environment([value])
        meta.env.update({k: v for k, v in environment.items() if k not in meta.env})


def _environment(items: list[str]) -> dict[str, str]:
    """The allow-listed variables among ``KEY=value`` texts."""
    variables: dict[str, str] = {}
    for item in items:
        key, is_set, value = item.partition("=")
        value = value.strip().strip('"')
        shape = _ALLOWED.get(key.strip())
        if is_set and shape is not None and shape.fullmatch(value):
            variables[key.strip()] = value
    return variables


def gpus(database: Tables, pid: int) -> list[Gpu]:
    """Devices that the export describes, with the ordinals of a process where it gives them."""
    ordinals: dict[int, int] = {}
    if database.has("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid"):
        columns = ("gpuId", "cudaId", "pid")
        for gpu, ordinal, owner in database.rows("TARGET_INFO_CUDA_DEVICE", columns):
            if owner == pid and type(gpu) is int and type(ordinal) is int:
                ordinals[gpu] = ordinal
    has_ordinals = bool(ordinals)
    wanted = ("id", "name", "busLocation", "uuid", "smCount", "totalMemory", "cuDevice")
    devices = []
    for gpu, name, bus, uuid, sms, memory, cuda in database.rows("TARGET_INFO_GPU", wanted):
        ordinal = ordinals.get(gpu) if has_ordinals else cuda
        devices.append(
            Gpu(
                gpu=gpu if type(gpu) is int else -1,
                ordinal=ordinal if type(ordinal) is int else None,
                model=name[:100] if isinstance(name, str) and name else None,
                uuid=f"GPU-{uuid.lower()}" if _is_uuid(uuid) else None,
                pci=_pci(bus),
                sm_count=sms if type(sms) is int and 0 < sms < 2**31 else None,
                memory_bytes=memory if type(memory) is int and memory > 0 else None,
            )
        )
    return devices


def _is_uuid(value: object) -> bool:
    return isinstance(value, str) and bool(_UUID.fullmatch(value))


def _pci(value: object) -> str | None:
    address = _PCI.fullmatch(value) if isinstance(value, str) else None
    return f"{address[1] or '0':0>8}:{address[2]}".lower() if address else None

"""THE registry: every table, declared once as data.

Parquet schemas, DuckDB views, documentation and checks derive from ``TABLES``.

Three kinds of table:

- *source* tables hold what a file says, on the file's own clock, and are never rewritten;
- *derived* tables hold what the whole run says (small: ranks, steps, clock offsets);
- the *context* columns of a source table (rank, attempt, capture_id, clock_id, host) are not
  stored with its rows: who a file belongs to is known only once all files were seen. The view
  of the table adds them from ``source_context`` and moves its time columns by the clock's
  offset and drift.

Times are int64 nanoseconds since the epoch, or since an unknown zero where the source's clock
has ``basis = 'relative'``, or null where the source has none. Every nullable id stays null
rather than guessed; every inferred identity has a ``*_source`` column (``IDENTITY_SOURCES``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow as pa

REGISTRY_VERSION = 12
"""Raised when the meaning or the set of columns changes; part of every run's key."""

UNIT_SUFFIXES = {
    "_bytes_per_s": "bytes/s",
    "_flops_per_s": "FLOP/s",
    "_flops": "FLOP",
    "_ns": "ns",
    "_bytes": "bytes",
    "_count": "count",
    "_ratio": "0..1 unless said otherwise",
    "_celsius": "degrees Celsius",
    "_watts": "W",
    "_joules": "J",
    "_hertz": "Hz",
    "_ticks": "ticks of the source's clock",
}
"""Closed list of unit suffixes (longest first where one ends another)."""

IDENTITY_SOURCES = (
    "file",
    "name",
    "env",
    "log",
    "job_toml",
    "order",
    "behaviour",
    "assigned",
)
"""Where an inferred identity came from; the values of every ``*_source`` column."""

Sensitivity = Literal["none", "name", "secret"]
Kind = Literal["source", "derived"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its DuckDB type, its meaning, and how careful to be with its values."""

    name: str
    type: str
    doc: str
    sensitivity: Sensitivity = "none"
    is_context: bool = False
    is_time: bool = False
    """A point in time on the row's clock: the view moves it by the clock's offset."""

    @property
    def unit(self) -> str | None:
        """The unit that the name's suffix declares, or None."""
        return next((u for s, u in UNIT_SUFFIXES.items() if self.name.endswith(s)), None)


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its grain (what one row is; the key) and its columns."""

    name: str
    kind: Kind
    doc: str
    grain: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def stored_columns(self) -> tuple[Column, ...]:
        """The columns that the Parquet files hold (all but the context columns)."""
        return tuple(c for c in self.columns if not c.is_context)

    def column(self, name: str) -> Column:
        """The column of that name; KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"{self.name}.{name}")

    def arrow_schema(self) -> pa.Schema:
        """Arrow schema of the stored columns, in registry order."""
        import pyarrow as pa

        return pa.schema([pa.field(c.name, _arrow_type(c.type)) for c in self.stored_columns])


def _arrow_type(duckdb_type: str) -> pa.DataType:
    import pyarrow as pa

    if duckdb_type.endswith("[]"):
        return pa.list_(_arrow_type(duckdb_type[:-2]))
    return {
        "TINYINT": pa.int8(),
        "SMALLINT": pa.int16(),
        "INTEGER": pa.int32(),
        "BIGINT": pa.int64(),
        "UBIGINT": pa.uint64(),
        "DOUBLE": pa.float64(),
        "BOOLEAN": pa.bool_(),
        "VARCHAR": pa.string(),
    }[duckdb_type]


def _c(name: str, type_: str, doc: str, sensitivity: Sensitivity = "none") -> Column:
    return Column(name, type_, doc, sensitivity)


def _t(name: str, doc: str) -> Column:
    """A point in time on the row's clock."""
    return Column(name, "BIGINT", doc, is_time=True)


def _src(name: str, what: str) -> Column:
    return Column(name, "VARCHAR", f"Where {what} came from: one of IDENTITY_SOURCES.")


SOURCE_ID = _c("source_id", "INTEGER", "The file (or archive member) of this row; see source.")
PLACE = _c(
    "place",
    "BIGINT",
    "Where in the source: event ordinal, line or byte as source.place_kind says.",
)
CONTEXT = (
    Column("rank", "INTEGER", "Global rank of the source; null when unknown.", is_context=True),
    Column("attempt", "INTEGER", "Attempt (restart) of the job, from 1.", is_context=True),
    Column("capture_id", "INTEGER", "Capture window of the rank, from 0.", is_context=True),
    Column("clock_id", "INTEGER", "Clock that the row's times are on.", is_context=True),
    Column("host", "VARCHAR", "Canonical host; null when unknown.", "name", is_context=True),
)


def _source(name: str, doc: str, grain: tuple[str, ...], *columns: Column) -> Table:
    return Table(name, "source", doc, grain, (SOURCE_ID, *CONTEXT, PLACE, *columns))


def _derived(name: str, doc: str, grain: tuple[str, ...], *columns: Column) -> Table:
    return Table(name, "derived", doc, grain, columns)


_ATTEMPT = _c("attempt", "INTEGER", "Attempt (restart) of the job, from 1.")
_COUNTED_ATTEMPT = _c("attempt", "INTEGER", "Attempt of the job; null where no trace was given.")
_RANK = _c("rank", "INTEGER", "Global rank.")
_CAPTURE = _c("capture_id", "INTEGER", "Capture window of the rank, from 0.")
_START = _t("start_ns", "Start.")
_DUR = _c("dur_ns", "BIGINT", "Duration, at least 0.")
_PLACE_GRAIN = ("source_id", "place")

_META_TABLES = (
    Table(
        "source",
        "source",
        "One file or archive member that was given, readable or not.",
        ("source_id",),
        (
            SOURCE_ID,
            _c("path", "VARCHAR", "Path as given; archive members as archive!member.", "name"),
            _c("kind", "VARCHAR", "What it was recognised as: kineto, execution_trace, ..."),
            _c("sha256", "VARCHAR", "Hash of the file's bytes as stored (compressed if it is)."),
            _c("file_bytes", "BIGINT", "Size as stored."),
            _c("raw_bytes", "BIGINT", "Size after decompression; null when not read to the end."),
            _c("producer", "VARCHAR", "Program that wrote it, with version where it says so."),
            _c("schema_version", "VARCHAR", "Version of the format as the file states it."),
            _c("time_basis", "VARCHAR", "Basis of its times: epoch, relative or none."),
            _c("time_resolution_ns", "BIGINT", "Smallest step of its times."),
            _t("window_start_ns", "Start of what the file covers, on its own clock."),
            _t("window_end_ns", "End of what the file covers, on its own clock."),
            _c("is_truncated_start", "BOOLEAN", "Whether records before the window are missing."),
            _c("is_truncated_end", "BOOLEAN", "Whether the file breaks off before its end."),
            _c("status", "VARCHAR", "ok, partial, empty, unreadable or unrecognised."),
            _c("reason", "VARCHAR", "Why it has that kind and status, in words."),
            _c("place_kind", "VARCHAR", "What place counts: event, line, byte or row."),
            _c("rows_count", "BIGINT", "Rows written from it over all tables."),
            _c("file_rank", "INTEGER", "Rank that the file itself states; null when it does not."),
            _c("name_rank", "INTEGER", "Rank that the file's name suggests; null when none."),
            _c("world_size", "INTEGER", "World size that the file states; null when it does not."),
            _c("backend", "VARCHAR", "Collective backend that the file states."),
            _c("host_name", "VARCHAR", "Host name that the file states (may be a pod's).", "name"),
            _c("trace_id", "VARCHAR", "The producer's own id of the capture."),
            _c("versions", "VARCHAR[]", "key=value of torch, CUDA, NCCL, driver (allow-listed)."),
        ),
    ),
    _source(
        "ingest_stat",
        "What an ingestor skipped, repaired or found remarkable, counted by name and severity.",
        ("source_id", "counter", "place", "shape"),
        _c("counter", "VARCHAR", "Name of what was counted."),
        _c("severity", "VARCHAR", "info, warning or error."),
        _c("occurrence_count", "BIGINT", "How often."),
        _c("doc", "VARCHAR", "One sentence on what it means."),
        _c("shape", "VARCHAR", "Masked shape of the first such record; never its text."),
    ),
    _derived(
        "source_context",
        "Whom each source belongs to, and how its times move onto the job's clock.",
        ("source_id",),
        SOURCE_ID,
        _ATTEMPT,
        _c("capture_id", "INTEGER", "Capture window of the rank, from 0."),
        _c("clock_id", "INTEGER", "Clock that the source's times are on."),
        _c("rank", "INTEGER", "Global rank; null when unknown or not a rank's file."),
        _src("rank_source", "the rank"),
        _c("host", "VARCHAR", "Canonical host.", "name"),
        _src("host_source", "the host"),
        _c("offset_ns", "BIGINT", "Added to the source's times; 0 when no correction is known."),
        _c("drift_ratio", "DOUBLE", "Added per ns since drift_origin_ns (1e-6 is 1 ppm)."),
        _c("drift_origin_ns", "BIGINT", "Where the drift is zero, on the source's clock."),
    ),
    _derived(
        "run",
        "The job as a whole, one row an attempt.",
        ("attempt",),
        _ATTEMPT,
        _c("job_name", "VARCHAR", "Job name.", "name"),
        _c("job_id", "VARCHAR", "Scheduler's id.", "name"),
        _c("signature", "VARCHAR", "Hash of what makes two runs comparable (layout, model, GPU)."),
        _t("start_ns", "Start of the earliest window."),
        _t("end_ns", "End of the latest window."),
        _c("world_size", "INTEGER", "Ranks that the job has; null when unknown."),
        _src("world_size_source", "the world size"),
        _c("ranks_count", "INTEGER", "Ranks with a usable source."),
        _c("gpu_model", "VARCHAR", "GPU model when all ranks agree."),
        _c("torch_version", "VARCHAR", "PyTorch."),
        _c("cuda_version", "VARCHAR", "CUDA or ROCm runtime."),
        _c("nccl_version", "VARCHAR", "NCCL or RCCL."),
        _c("driver_version", "VARCHAR", "GPU driver."),
        _c("framework", "VARCHAR", "Training framework."),
        _c("registry_version", "INTEGER", "REGISTRY_VERSION that wrote the run."),
        _c("ingestor_versions", "VARCHAR[]", "name=version of each ingestor that took part."),
    ),
)

_IDENTITY_TABLES = (
    _derived(
        "clock",
        "A source of time. A clock is not a host: one machine may carry several 'hosts'.",
        ("clock_id",),
        _c("clock_id", "INTEGER", "Clock."),
        _c("kind", "VARCHAR", "realtime, monotonic, collector, switch or none."),
        _c("host", "VARCHAR", "Host whose clock it is; null when shared or unknown.", "name"),
        _c("resolution_ns", "BIGINT", "Smallest step."),
        _c("basis", "VARCHAR", "epoch, relative or none."),
        _c("is_shared", "BOOLEAN", "Whether job.toml says that all files share this clock."),
    ),
    _derived(
        "clock_offset",
        "Correction of a clock against the reference; empty while none is warranted.",
        ("clock_id", "valid_from_ns"),
        _c("clock_id", "INTEGER", "Clock that is corrected."),
        _c("offset_ns", "BIGINT", "Added to its times."),
        _c("drift_ratio", "DOUBLE", "Added per ns since valid_from_ns."),
        _t("valid_from_ns", "From when."),
        _t("valid_to_ns", "Until when."),
        _c("error_ns", "BIGINT", "Half the width of the causal interval."),
        _c("method", "VARCHAR", "How it was found."),
        _c("reference_clock_id", "INTEGER", "Clock that it is corrected to."),
    ),
    _derived(
        "clock_pair",
        "How far two clocks whose ranks share a communicator may be apart once both are corrected; "
        "only where that is less than their errors in clock_offset added up.",
        ("attempt", "capture_id", "clock_id", "other_clock_id"),
        _ATTEMPT,
        _c("capture_id", "INTEGER", "Capture window, from 0."),
        _c("clock_id", "INTEGER", "Clock."),
        _c("other_clock_id", "INTEGER", "The other one, with the higher id."),
        _c("error_ns", "BIGINT", "How far the difference of the two may be wrong."),
    ),
    _source(
        "process",
        "A process seen in a source. One process can drive several ranks.",
        ("source_id", "pid"),
        _c("pid", "BIGINT", "Process id."),
        _c("name", "VARCHAR", "Executable name.", "name"),
        _c("cuda_visible_devices", "VARCHAR", "CUDA_VISIBLE_DEVICES."),
        _c("local_rank", "INTEGER", "LOCAL_RANK."),
        _c("env", "VARCHAR[]", "key=value of allow-listed variables only."),
    ),
    _derived(
        "rank",
        "A rank of an attempt that has at least one source.",
        ("attempt", "rank"),
        _ATTEMPT,
        _RANK,
        _src("rank_source", "the rank"),
        _c("source_id", "INTEGER", "First source of the rank: names the file of a guessed rank."),
        _c("pid", "BIGINT", "Process id; null when several."),
        _c("host", "VARCHAR", "Canonical host.", "name"),
        _src("host_source", "the host"),
        _c("local_rank", "INTEGER", "Rank within its host; null when unknown."),
        _c("device_id", "VARCHAR", "Physical device: UUID or PCI address; null when unknown."),
        _c("device_model", "VARCHAR", "GPU model."),
        _c("captures_count", "INTEGER", "Capture windows."),
        _c("pp_rank", "INTEGER", "Pipeline coordinate; null until derived."),
        _c("tp_rank", "INTEGER", "Tensor coordinate; null until derived."),
        _c("dp_rank", "INTEGER", "Data coordinate; null until derived."),
        _c("ep_rank", "INTEGER", "Expert coordinate; null until derived."),
        _c("cp_rank", "INTEGER", "Context coordinate; null until derived."),
        _src("coordinates_source", "the coordinates"),
    ),
    _derived(
        "host",
        "A machine, by its canonical short name.",
        ("host",),
        _c("host", "VARCHAR", "Canonical short name.", "name"),
        _src("host_source", "the name"),
        _c("ranks_count", "INTEGER", "Ranks on it that have a source."),
    ),
    _derived(
        "host_alias",
        "Other names of a host.",
        ("host", "alias"),
        _c("host", "VARCHAR", "Canonical short name.", "name"),
        _c("alias", "VARCHAR", "The other name.", "name"),
        _c("kind", "VARCHAR", "fqdn, ip, pod, node or nccl."),
        _src("alias_source", "the alias"),
    ),
    _source(
        "device",
        "A device that a source describes. An ordinal is never an NVML index.",
        ("source_id", "ordinal", "nvml_index", "uuid", "pci", "node"),
        _c("ordinal", "INTEGER", "Ordinal relative to the process; null where counters tell."),
        _c("node", "VARCHAR", "Host as a counter file states it; null elsewhere.", "name"),
        _c("nvml_index", "INTEGER", "NVML index; null when unknown."),
        _c("uuid", "VARCHAR", "GPU UUID."),
        _c("pci", "VARCHAR", "dddddddd:bb:dd.f, lower case."),
        _c("model", "VARCHAR", "Model name."),
        _c("sm_count", "INTEGER", "Streaming multiprocessors (compute units)."),
        _c("memory_bytes", "BIGINT", "Device memory."),
        _c("is_used", "BOOLEAN", "Whether the source has operations on it."),
    ),
    _source(
        "process_group",
        "A process group as one source knows it; equal group_id means the same members.",
        ("source_id", "group_id", "name"),
        _c("group_id", "VARCHAR", "Hash of the sorted global ranks; null when incomplete."),
        _src("group_source", "the group's members"),
        _c("name", "VARCHAR", "Name, such as '0' or 'mesh_tp'."),
        _c("description", "VARCHAR", "Description, such as 'default_pg' or a DeviceMesh name."),
        _c("backend", "VARCHAR", "nccl, gloo, ..."),
        _c("group_size", "INTEGER", "Members."),
        _c("ranks", "INTEGER[]", "Global ranks as far as known."),
        _c("is_ranks_complete", "BOOLEAN", "False where the producer cut the list (after 30)."),
        _c("comm_hash", "VARCHAR", "Communicator: hash, commId or comms id."),
    ),
    _source(
        "link",
        "Which port leads to which host, NIC and rank.",
        ("source_id", "node", "port"),
        _c("node", "VARCHAR", "Switch or host.", "name"),
        _c("port", "VARCHAR", "Port."),
        _c("peer_host", "VARCHAR", "Host on the other side.", "name"),
        _c("nic", "VARCHAR", "Its NIC."),
        _src("link_source", "the mapping"),
    ),
    _source(
        "fabric_link",
        "A cable of the fabric, from one of its ends.",
        ("source_id", "node", "port"),
        _c("node", "VARCHAR", "Switch or host.", "name"),
        _c("node_kind", "VARCHAR", "switch, host or router."),
        _c("port", "VARCHAR", "Its port; of a host with its adapter: mlx5_0/1."),
        _c("peer", "VARCHAR", "Switch or host at the other end.", "name"),
        _c("peer_kind", "VARCHAR", "switch, host or router; null where nothing says."),
        _c("peer_port", "VARCHAR", "Its port there."),
        _c("lanes_count", "INTEGER", "Lanes; null where the map does not say."),
        _c("speed_bits_s", "DOUBLE", "Speed of all lanes, as its name says (4xNDR is 400e9)."),
    ),
    _source(
        "host_link",
        "What connects a GPU to another device of its host, as nvidia-smi or NCCL lists it.",
        ("source_id", "place", "gpu", "peer"),
        _c("node", "VARCHAR", "Host as the file's name states it; null elsewhere.", "name"),
        _c("gpu", "VARCHAR", "GPU, as the topology calls it: GPU0."),
        _c("nvml_index", "INTEGER", "Its NVML index."),
        _c("pci", "VARCHAR", "dddddddd:bb:dd.f, lower case; null where the source lacks it."),
        _c("peer", "VARCHAR", "The other device: a GPU, or a NIC by its name."),
        _c("peer_kind", "VARCHAR", "gpu or nic."),
        _c("connection", "VARCHAR", "X (itself), NV and lanes, PIX, PXB, PHB, NODE, SYS."),
        _c("nvlinks_count", "INTEGER", "NVLink lanes between them; null over PCIe."),
        _c("is_nearest", "BOOLEAN", "Whether no NIC is nearer to the GPU; null for a GPU."),
        _c("cpu_affinity", "VARCHAR", "CPUs beside the GPU."),
        _c("numa_node", "INTEGER", "NUMA node of the GPU."),
    ),
)

_TRACE_TABLES = (
    _derived(
        "step",
        "One training step of one rank in one capture.",
        ("attempt", "rank", "capture_id", "step"),
        _ATTEMPT,
        _RANK,
        _CAPTURE,
        _c("step", "BIGINT", "Job-level step."),
        _c("file_step", "BIGINT", "The file's own number."),
        _c("source_id", "INTEGER", "Source."),
        _t("start_ns", "Start on the host."),
        _t("end_ns", "End on the host."),
        _c("dur_ns", "BIGINT", "Host duration."),
        _t("gpu_start_ns", "First GPU operation launched by the step; null without one."),
        _t("gpu_end_ns", "End of the last GPU operation launched by the step."),
        _c("is_warmup", "BOOLEAN", "Before the job is steady; left out of statistics."),
        _c("is_partial", "BOOLEAN", "Cut by the window."),
        _c(
            "step_source",
            "VARCHAR",
            "annotation (it was marked), or inferred: optimizer (ranges of updates) or period.",
        ),
    ),
    _source(
        "gpu_op",
        "An operation on a device: kernel, copy or set.",
        _PLACE_GRAIN,
        _START,
        _DUR,
        _c("category", "VARCHAR", "kernel, memcpy, memset or graph (a whole CUDA graph)."),
        _c("class", "VARCHAR", "compute, communication, memory or other."),
        _c("class_source", "VARCHAR", "args, annotation, name or category."),
        _c("name", "VARCHAR", "Name as the producer wrote it."),
        _c("pid", "BIGINT", "Process as the file states it; null when it does not."),
        _c("device", "INTEGER", "Device ordinal."),
        _c("context", "BIGINT", "Context."),
        _c("stream", "BIGINT", "Stream."),
        _c("correlation", "BIGINT", "Joins to the launch, within this source and process only."),
        _c("external_id", "BIGINT", "Joins to host_op.external_id within this source."),
        _t("launch_start_ns", "Start of the launch call; null when before the window."),
        _t("launch_end_ns", "End of the launch call."),
        _c("launch_thread", "BIGINT", "Thread of the launch call."),
        _c("step", "BIGINT", "The file's step that launched it; null when none."),
        _c("step_source", "VARCHAR", "launch, time, period (an inferred step) or null."),
        _c("graph_id", "BIGINT", "CUDA graph; null outside one."),
        _c("graph_node_id", "BIGINT", "Node in the graph."),
        _c("grid", "INTEGER[]", "Grid of blocks."),
        _c("block", "INTEGER[]", "Threads a block."),
        _c("registers_count", "INTEGER", "Registers a thread."),
        _c("shared_memory_bytes", "BIGINT", "Shared memory a block."),
        _c("transfer_bytes", "BIGINT", "Bytes of a copy or set."),
        _c("copy_kind", "VARCHAR", "HtoD, DtoH, DtoD, HtoH, PtoP; null for kernels."),
    ),
    _source(
        "sync_op",
        "A synchronisation on a device's timeline. Never busy time.",
        _PLACE_GRAIN,
        _START,
        _DUR,
        _c("kind", "VARCHAR", "stream, event, context or stream_wait_event."),
        _c("name", "VARCHAR", "Name as the producer wrote it."),
        _c("device", "INTEGER", "Device ordinal."),
        _c("context", "BIGINT", "Context."),
        _c("stream", "BIGINT", "Stream that waits."),
        _c("correlation", "BIGINT", "Joins to the host call."),
        _c("wait_on_stream", "BIGINT", "Stream waited for."),
        _c("wait_on_event", "BIGINT", "Event waited for."),
        _c("recording_correlation", "BIGINT", "Correlation of the call that recorded the event."),
    ),
    _source(
        "memory_event",
        "An allocation or release as the framework reports it.",
        _PLACE_GRAIN,
        _t("time_ns", "When."),
        _c("device_type", "VARCHAR", "cpu or gpu."),
        _c("device", "INTEGER", "Device ordinal; -1 or null on the host."),
        _c("thread", "BIGINT", "Thread."),
        _c("change_bytes", "BIGINT", "Allocated (positive) or released (negative)."),
        _c("address", "UBIGINT", "Address."),
        _c("allocated_bytes", "BIGINT", "Allocated after it."),
        _c("reserved_bytes", "BIGINT", "Reserved after it."),
        _c("external_id", "BIGINT", "Host operation that did it; null when unknown."),
    ),
    _source(
        "host_op",
        "Work on a host thread: framework operators and runtime or driver calls.",
        _PLACE_GRAIN,
        _START,
        _DUR,
        _c("category", "VARCHAR", "operator, runtime, driver, overhead or the producer's word."),
        _c("name", "VARCHAR", "Name."),
        _c("pid", "BIGINT", "Process."),
        _c("thread", "BIGINT", "Thread."),
        _c("external_id", "BIGINT", "Joins launches and GPU work to operators in this source."),
        _c("correlation", "BIGINT", "Runtime or driver calls: joins to gpu_op."),
        _c("sequence_number", "BIGINT", "Autograd sequence number."),
        _c("forward_thread", "BIGINT", "Thread id of the forward operator."),
        _c("input_dims", "VARCHAR", "Input shapes as JSON text; null when not recorded."),
        _c("input_types", "VARCHAR", "Input types as JSON text."),
    ),
    _source(
        "python_frame",
        "A Python frame. Written only on request (--stacks): they are most of a file.",
        _PLACE_GRAIN,
        _START,
        _DUR,
        _c("name", "VARCHAR", "file(line): function", "name"),
        _c("pid", "BIGINT", "Process."),
        _c("thread", "BIGINT", "Thread."),
        _c("frame_id", "BIGINT", "The producer's id."),
        _c("parent_frame_id", "BIGINT", "Id of the calling frame."),
        _c("module_id", "BIGINT", "nn.Module instance."),
    ),
    _source(
        "annotation",
        "A named range that a user, a framework or a profiler set.",
        _PLACE_GRAIN,
        _START,
        _DUR,
        _c("domain", "VARCHAR", "user, profiler_step, collective, python_gc, python_input, ..."),
        _c("style", "VARCHAR", "push_pop, start_end or mark."),
        _c("name", "VARCHAR", "Name."),
        _c("pid", "BIGINT", "Process."),
        _c("thread", "BIGINT", "Thread that began it (stream for GPU twins)."),
        _c("end_thread", "BIGINT", "Thread that ended it; null when the same."),
        _c("level", "INTEGER", "Nesting level; null until derived."),
        _c("external_id", "BIGINT", "External id."),
        _c("step", "BIGINT", "Number in a step marker's name."),
        _c("is_gpu_twin", "BOOLEAN", "The GPU-side copy of a host range: never counted twice."),
        _c("producer_domain", "VARCHAR", "The producer's own domain (NVTX); null for its default."),
        _t("gpu_start_ns", "Start of the first GPU operation launched within it; null if none."),
        _t("gpu_end_ns", "End of the last GPU operation launched within it."),
        _c("gpu_launches_count", "BIGINT", "Calls within it that put work on a GPU."),
        _c("gpu_children_count", "BIGINT", "Ranges directly inside it that did."),
    ),
    _source(
        "collective",
        "One rank's part in one collective or point-to-point operation.",
        _PLACE_GRAIN,
        _START,
        _DUR,
        _t("enqueue_ns", "When the host asked for it; null when unknown."),
        _c("group_id", "VARCHAR", "Process group; null when unknown."),
        _src("group_source", "the group"),
        _c("group_name", "VARCHAR", "The group's name in this source."),
        _c("group_size", "INTEGER", "Members."),
        _c("group_rank", "INTEGER", "This rank within the group."),
        _c("sequence", "BIGINT", "Sequence number within the group."),
        _src("sequence_source", "the sequence"),
        _c("op", "VARCHAR", "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, ..."),
        _c("reduction", "VARCHAR", "sum, avg, max, ..."),
        _c("root", "INTEGER", "Root rank."),
        _c("src_rank", "INTEGER", "Sender of a point-to-point operation."),
        _c("dst_rank", "INTEGER", "Receiver of a point-to-point operation."),
        _c("peer_group_rank", "INTEGER", "Its other side, numbered within the group."),
        _c("in_elements_count", "BIGINT", "Input elements."),
        _c("out_elements_count", "BIGINT", "Output elements."),
        _c("dtype", "VARCHAR", "Element type, such as BFloat16."),
        _c("in_bytes", "BIGINT", "Input bytes."),
        _c("out_bytes", "BIGINT", "Output bytes."),
        _c("message_bytes", "BIGINT", "Total size S as nccl-tests defines it; null if unknowable."),
        _c("in_split_sizes", "BIGINT[]", "Input split sizes."),
        _c("out_split_sizes", "BIGINT[]", "Output split sizes."),
        _c("is_async", "BOOLEAN", "Whether the caller did not wait."),
        _c("is_p2p", "BOOLEAN", "Send or receive."),
        _c("timeline", "VARCHAR", "device (kernel) or host (worker thread)."),
        _c("gpu_op_place", "BIGINT", "Place of the kernel; null on the host's timeline."),
        _c("device", "INTEGER", "Device ordinal."),
        _c("stream", "BIGINT", "Stream."),
        _c("thread", "BIGINT", "Worker thread on the host's timeline."),
        _c("step", "BIGINT", "The file's step; null when none."),
        _c("step_source", "VARCHAR", "launch, time, period (an inferred step) or null."),
        _c("is_cut_start", "BOOLEAN", "Began before the window."),
        _c("is_cut_end", "BOOLEAN", "Ended after the window."),
        _c("library", "VARCHAR", "nccl, rccl, gloo, deepep, nvshmem, hccl, ..."),
        _c("class_source", "VARCHAR", "args, annotation or name."),
    ),
    _source(
        "open_collective",
        "A collective that the host asked for and whose kernel the trace does not show: those "
        "after the last finished one of their group.",
        _PLACE_GRAIN,
        _t("enqueue_ns", "When the host asked for it."),
        _c("group_id", "VARCHAR", "Process group; null when unknown."),
        _c("group_name", "VARCHAR", "The group's name in this source."),
        _c("group_size", "INTEGER", "Members."),
        _c("sequence", "BIGINT", "Sequence number within the group; null when none."),
        _c("op", "VARCHAR", "As in collective."),
        _c("is_p2p", "BOOLEAN", "Send or receive."),
        _c("message_bytes", "BIGINT", "Total size S as nccl-tests defines it; null if unknowable."),
        _c("dtype", "VARCHAR", "Element type, such as BFloat16."),
    ),
    _derived(
        "collective_match",
        "Which rows of collective are one instance; empty until matching runs.",
        ("source_id", "place"),
        SOURCE_ID,
        PLACE,
        _c("instance_id", "BIGINT", "Instance of the collective."),
        _c("call_index", "BIGINT", "Ordinal of the call within its group."),
        _c("method", "VARCHAR", "sequence, order, pair."),
        _c("is_trusted", "BOOLEAN", "Whether the match may carry a claim."),
        _c("reason", "VARCHAR", "Why, or why not."),
        _c("group_id", "VARCHAR", "Communicator that matching found; see comm_group."),
    ),
    _derived(
        "comm_group",
        "A communicator as the whole run shows it, one row each; a pair has one a direction.",
        ("attempt", "group_id"),
        _ATTEMPT,
        _c("group_id", "VARCHAR", "As in collective_match."),
        _src("group_source", "the group"),
        _c("name", "VARCHAR", "Name in the sources; null when none."),
        _c("description", "VARCHAR", "Description in the sources; null when none."),
        _c("ranks", "INTEGER[]", "Global ranks of all members; null when not all are known."),
        _c("members_count", "INTEGER", "Members; null when unknown."),
        _c("traced_ranks", "INTEGER[]", "Members that have calls in a trace."),
        _c("kind", "VARCHAR", "tp, pp, dp, ep, cp, world, ...; null where it cannot be told."),
        _src("kind_source", "the kind"),
    ),
    _source(
        "pipeline_timer",
        "An operation of a pipeline stage, as a timer file that covers many ranks states it.",
        _PLACE_GRAIN,
        _c("global_rank", "INTEGER", "Rank that the row states; the file itself is no rank's."),
        _c("dp_rank", "INTEGER", "Data coordinate (replica)."),
        _c("pp_rank", "INTEGER", "Stage."),
        _c("step", "BIGINT", "Step; sampled steps need not follow each other."),
        _c("operation", "VARCHAR", "forward-compute, backward-compute, forward-send, ..."),
        _c("sequence", "BIGINT", "Ordinal within step, rank and operation."),
        _c("microbatch", "BIGINT", "Microbatch; null where none applies."),
        _c("chunk", "INTEGER", "Model chunk in the stage."),
        _c("global_chunk", "INTEGER", "Model chunk overall."),
        _t("start_ns", "Start; every step of such a file begins at 0."),
        _t("end_ns", "End."),
    ),
    _derived(
        "pipeline_op",
        "A microbatch operation of a pipeline stage, from timers or from named ranges.",
        ("attempt", "rank", "step", "operation", "sequence"),
        _ATTEMPT,
        _RANK,
        _CAPTURE,
        _c("dp_rank", "INTEGER", "Data coordinate (replica)."),
        _c("pp_rank", "INTEGER", "Stage."),
        _c("step", "BIGINT", "Step."),
        _c("operation", "VARCHAR", "forward-compute, backward-compute, forward-send, ..."),
        _c("sequence", "BIGINT", "Ordinal within step, rank and operation."),
        _c("microbatch", "BIGINT", "Microbatch; null where none applies."),
        _c("chunk", "INTEGER", "Model chunk in the stage."),
        _c("global_chunk", "INTEGER", "Model chunk overall."),
        _t("start_ns", "Start."),
        _t("end_ns", "End."),
        _c(
            "compute_ns",
            "BIGINT",
            "Time of the kernels inside a computation, without what they waited for; null where "
            "only its start and end are known.",
        ),
    ),
)

_NCCL_KEY = (
    _c("comm_pointer", "UBIGINT", "Communicator pointer as logged."),
    _c("comm_generation", "INTEGER", "Pointers are reused: which use this is, from 0."),
    _c("pid", "BIGINT", "Process."),
    _c("ordinal", "BIGINT", "Order within process and communicator: INFO lines carry no time."),
    _t("time_ns", "When; null where the line has none."),
    _c("node", "VARCHAR", "Host as NCCL's own prefix names it: one log may hold several.", "name"),
)

_NCCL_TABLES = (
    _source(
        "nccl_comm",
        "A communicator as one rank logged it.",
        _PLACE_GRAIN,
        *_NCCL_KEY,
        _c("comm_hash", "VARCHAR", "commId or hash."),
        _c("parent_hash", "VARCHAR", "Communicator that it was split from."),
        _c("group_rank", "INTEGER", "Rank within the communicator."),
        _c("world_rank", "INTEGER", "Global rank; null unless proved."),
        _c("group_size", "INTEGER", "Members."),
        _c("nodes_count", "INTEGER", "Nodes."),
        _c("local_ranks_count", "INTEGER", "Ranks on this node."),
        _c("device", "INTEGER", "CUDA ordinal."),
        _c("nvml_index", "INTEGER", "NVML index."),
        _c("pci", "VARCHAR", "dddddddd:bb:dd.f, lower case."),
        _c("channels_count", "INTEGER", "Collective channels."),
        _c("nccl_version", "VARCHAR", "NCCL version."),
        _c("init_dur_ns", "BIGINT", "Time in init."),
        _c("state", "VARCHAR", "complete, incomplete, aborted."),
    ),
    _source(
        "nccl_edge",
        "A connection between two ranks of a communicator over one channel.",
        _PLACE_GRAIN,
        *_NCCL_KEY,
        _c("channel", "INTEGER", "Channel."),
        _c("from_group_rank", "INTEGER", "Sender."),
        _c("to_group_rank", "INTEGER", "Receiver."),
        _c("transport", "VARCHAR", "P2P, SHM, NET, COLLNET, NVLS."),
        _c("detail", "VARCHAR", "CUMEM/read, IB/0/GDRDMA, ..."),
        _c("nic", "VARCHAR", "NIC."),
        _c("is_gpudirect", "BOOLEAN", "Whether it says GDRDMA; null where that means nothing."),
        _c("direction", "VARCHAR", "NET: send or receive, by the side that logged it."),
        _c("connection", "INTEGER", "Connection index: 0 rings and trees, 1 send/receive."),
        _c("net_device", "INTEGER", "NET: index of the device in the node's own list."),
        _c("proxy_rank", "INTEGER", "Rank whose NIC is used (PXN); null when its own."),
    ),
    _source(
        "nccl_op",
        "An operation as NCCL logged its call.",
        _PLACE_GRAIN,
        *_NCCL_KEY,
        _c("op", "VARCHAR", "Operation."),
        _c("op_count", "BIGINT", "opCount: never a sequence number."),
        _c("elements_count", "BIGINT", "Elements."),
        _c("dtype", "VARCHAR", "Element type."),
        _c("reduction", "VARCHAR", "Reduction."),
        _c("root", "INTEGER", "Root."),
        _c("stream_pointer", "UBIGINT", "Stream pointer."),
    ),
    _source(
        "nccl_choice",
        "What NCCL chose for an operation: algorithm, protocol, channels.",
        _PLACE_GRAIN,
        *_NCCL_KEY,
        _c("op", "VARCHAR", "Operation."),
        _c("message_bytes", "BIGINT", "Size."),
        _c("algorithm", "VARCHAR", "Ring, Tree, NVLS, ..."),
        _c("protocol", "VARCHAR", "LL, LL128, Simple."),
        _c("channels_count", "INTEGER", "Channels."),
        _c("model_dur_ns", "BIGINT", "Time that NCCL's own model expects."),
    ),
    _source(
        "nccl_event",
        "Anything else in an NCCL log that a diagnosis may need.",
        _PLACE_GRAIN,
        *_NCCL_KEY,
        _c("code", "VARCHAR", "What kind of event."),
        _c("severity", "VARCHAR", "info, warning or error."),
        _c("template", "VARCHAR", "Masked shape of the line."),
        _c("fields", "VARCHAR[]", "key=value of recognised fields."),
    ),
    _source(
        "comm_call",
        "A call as Flight Recorder or Inspector recorded it.",
        _PLACE_GRAIN,
        _c("group_id", "VARCHAR", "Process group."),
        _c("group_name", "VARCHAR", "Its name."),
        _c("comm_hash", "VARCHAR", "Communicator."),
        _c("group_rank", "INTEGER", "Rank within the group."),
        _c("sequence", "BIGINT", "Sequence of collectives."),
        _c("p2p_sequence", "BIGINT", "Sequence of point-to-point operations."),
        _c("op", "VARCHAR", "Operation."),
        _c("state", "VARCHAR", "scheduled, started or completed."),
        _t("created_ns", "When enqueued."),
        _t("started_ns", "When started."),
        _t("completed_ns", "When completed."),
        _c("message_bytes", "BIGINT", "Total size."),
        _c("dtype", "VARCHAR", "Element type."),
        _c("bus_bytes_per_s", "DOUBLE", "busbw that the recorder states."),
        _c("stack", "VARCHAR[]", "file:line function of the caller.", "name"),
        _c("world_rank", "INTEGER", "Global rank; null unless the file or its name states it."),
        _c("group_size", "INTEGER", "Members; null when unknown."),
        _c("dur_ns", "BIGINT", "Execution time that the recorder states."),
        _c("is_retired", "BOOLEAN", "No longer watched; timed out unless completed."),
        _c("node", "VARCHAR", "Host that the record states.", "name"),
    ),
    _source(
        "comm_snapshot",
        "Progress of a communicator at one moment (RAS, watchdog).",
        _PLACE_GRAIN,
        _t("time_ns", "When; null where unknown."),
        _c("comm_hash", "VARCHAR", "Communicator."),
        _c("group_name", "VARCHAR", "Process group."),
        _c("group_rank", "INTEGER", "Member."),
        _c("op", "VARCHAR", "Operation; null for all."),
        _c("last_enqueued", "BIGINT", "Last sequence enqueued."),
        _c("last_started", "BIGINT", "Last sequence started."),
        _c("last_completed", "BIGINT", "Last sequence completed."),
        _c(
            "peers_enqueued",
            "BIGINT",
            "Last that any member had enqueued then; null if unsaid.",
        ),
        _c("status", "VARCHAR", "As stated."),
        _c("world_rank", "INTEGER", "Global rank; null unless the record states it."),
        _c("node", "VARCHAR", "Host that the record states.", "name"),
    ),
    _source(
        "bench_result",
        "A row of an nccl-tests table.",
        _PLACE_GRAIN,
        _c("benchmark", "VARCHAR", "all_reduce_perf, ..."),
        _c("ranks_count", "INTEGER", "Ranks."),
        _c("message_bytes", "BIGINT", "Size."),
        _c("elements_count", "BIGINT", "Elements."),
        _c("dtype", "VARCHAR", "Element type."),
        _c("reduction", "VARCHAR", "Reduction."),
        _c("root", "INTEGER", "Root."),
        _c("is_in_place", "BOOLEAN", "In place."),
        _c("dur_ns", "BIGINT", "Time."),
        _c("algorithm_bytes_per_s", "DOUBLE", "algbw."),
        _c("bus_bytes_per_s", "DOUBLE", "busbw."),
        _c("errors_count", "BIGINT", "Wrong elements; null when not checked."),
    ),
)

_SAMPLE = (
    _t("time_ns", "When; null where unknown."),
    _c("time_source", "VARCHAR", "content, name, mtime or start+interval."),
    _c("counter", "VARCHAR", "Canonical name."),
    _c("original_name", "VARCHAR", "Name or field id in the source."),
    _c("kind", "VARCHAR", "cumulative, gauge, watermark or window."),
    _c("unit", "VARCHAR", "Unit of value or counted."),
    _c("value", "DOUBLE", "Gauges; null for cumulative counters."),
    _c("counted", "UBIGINT", "Cumulative counters: exact beyond 2^53; null for gauges."),
)

_COUNTER_TABLES = (
    _source(
        "gpu_process",
        "A process on a GPU, as nvidia-smi lists it; never its command line.",
        ("source_id", "place", "device_id", "nvml_index", "pid"),
        _c("node", "VARCHAR", "Host as the source states it; null where it does not.", "name"),
        _c("device_id", "VARCHAR", "UUID or PCI address; null when only an index is known."),
        _c("nvml_index", "INTEGER", "NVML index."),
        _c("pid", "BIGINT", "Process id, as the host counts."),
        _c("kind", "VARCHAR", "C computes, G draws, M+C computes under MPS; null: computes."),
        _c("name", "VARCHAR", "File name of its executable; null where it may be none.", "name"),
        _c("readings_count", "BIGINT", "Readings in which it was listed."),
        _c("memory_bytes", "BIGINT", "Most GPU memory that it held; null where not stated."),
    ),
    _source(
        "gpu_sample",
        "One GPU counter at one moment.",
        (*_PLACE_GRAIN, "counter", "device_id", "nvml_index", "node"),
        _c("device_id", "VARCHAR", "UUID or PCI address; null when only an index is known."),
        _c("nvml_index", "INTEGER", "NVML index."),
        _c("node", "VARCHAR", "Host as the sample states it; null where it does not.", "name"),
        _c("pod", "VARCHAR", "Pod; a pod is not a host.", "name"),
        *_SAMPLE,
    ),
    _source(
        "net_sample",
        "One counter of a port, NIC or queue at one moment.",
        (*_PLACE_GRAIN, "node", "port", "counter", "priority", "queue", "lane"),
        _c(
            "node",
            "VARCHAR",
            "Switch or host that counts; null where unknown.",
            "name",
        ),
        _src("node_source", "the node"),
        _c("port", "VARCHAR", "Port or NIC."),
        _c("direction", "VARCHAR", "rx or tx as the node sees it; null where neither."),
        _c("priority", "INTEGER", "Priority or traffic class."),
        _c("queue", "INTEGER", "Queue."),
        _c("lane", "INTEGER", "Lane."),
        _c("interval_ns", "BIGINT", "Sampling interval that the source states."),
        *_SAMPLE,
    ),
    _source(
        "host_sample",
        "One counter of a machine, or of a control group on it, at one moment.",
        (*_PLACE_GRAIN, "cgroup", "counter"),
        _c(
            "cgroup",
            "VARCHAR",
            "Control group, as its path below the mount; null: the whole machine, or not said.",
            "name",
        ),
        _c("interval_ns", "BIGINT", "Time before time_ns that a window is of."),
        *_SAMPLE,
    ),
    _source(
        "log_event",
        "A recognised line of a host or job log (XID, watchdog, error); never the whole line.",
        _PLACE_GRAIN,
        _t("time_ns", "When; null where unknown."),
        _c("device_id", "VARCHAR", "UUID or PCI address."),
        _c("code", "VARCHAR", "What it is, such as xid-79."),
        _c("severity", "VARCHAR", "info, warning or error."),
        _c("template", "VARCHAR", "Masked shape of the line."),
        _c("fields", "VARCHAR[]", "key=value of recognised fields."),
    ),
)

_HISTORY_TABLES = (
    _source(
        "job_step",
        "A line of a training log that reports a step, as it stands: ranks that print the same "
        "step, and bars of evaluations, too.",
        (*_PLACE_GRAIN, "format", "epoch", "step", "total_steps_count"),
        _c("format", "VARCHAR", "Program whose line it is, such as megatron; tqdm for its bars."),
        _c("step", "BIGINT", "Number of the step; within the epoch where that is stated."),
        _c("epoch", "BIGINT", "Epoch that step counts in; null where it counts over the job."),
        _c("total_steps_count", "BIGINT", "Steps that the job, or the bar, will have."),
        _t("time_ns", "When it was printed; null where the line does not say."),
        _c("elapsed_ns", "BIGINT", "Since the bar began, in whole seconds."),
        _c("dur_ns", "BIGINT", "How long a step took, as stated; null where the line does not."),
        _c("is_averaged", "BOOLEAN", "Whether dur_ns is the mean since the line before."),
        _c("samples_count", "BIGINT", "Samples consumed so far."),
        _c("tokens_count", "BIGINT", "Tokens consumed so far."),
        _c("loss", "DOUBLE", "Loss."),
        _c("learning_rate", "DOUBLE", "Learning rate."),
        _c("grad_norm", "DOUBLE", "Norm of the gradients."),
        _c("mfu_ratio", "DOUBLE", "Model FLOP utilisation as the program states it."),
        _c("model_flops_per_s", "DOUBLE", "FLOP/s a GPU as the program states them."),
        _c("tag", "INTEGER", "Rank before the line, as the launcher or the program puts it."),
    ),
    _derived(
        "logged_step",
        "The job's history: its logs in order, each reported step once.",
        ("start_number", "step"),
        _c("start_number", "INTEGER", "Start of the training loop, from 1: each restart is one."),
        _c("step", "BIGINT", "Number of the step over the job."),
        _c("source_id", "INTEGER", "File that reports it."),
        PLACE,
        _t("end_ns", "When it was reported, on the file's clock put right; null without a clock."),
        _c("steps_count", "BIGINT", "Steps since the line before: what it stands for."),
        _c("dur_ns", "BIGINT", "How long each of them took: as stated, else by the clock."),
        _c("wall_ns", "BIGINT", "From the line before to this one; null without a clock."),
    ),
    _derived(
        "job_episode",
        "A stretch of the job's history that is unlike the rest, or a restart.",
        ("kind", "first_step", "last_step"),
        _c("kind", "VARCHAR", "stall, slow, fast, periodic, drift or restart."),
        _c("first_step", "BIGINT", "First step of it."),
        _c("last_step", "BIGINT", "Last step of it."),
        _t("start_ns", "When it began; null without a clock."),
        _t("end_ns", "When it ended; null without a clock."),
        _c("dur_ns", "BIGINT", "How long its steps usually take; null for a restart."),
        _c("usual_ns", "BIGINT", "How long the job's steps usually take."),
        _c("lost_ns", "BIGINT", "How much longer it took than as many usual steps."),
        _c("period_count", "BIGINT", "Steps from one stall to the next, where they are periodic."),
        _c("times_count", "BIGINT", "How often, where periodic."),
        _c("per_day_ratio", "DOUBLE", "Growth of the step in a day, of a drift; may be above 1."),
        _c("repeated_count", "BIGINT", "Steps that a restart did again."),
    ),
)

_JOIN_TABLES = (
    _derived(
        "gpu",
        "Which GPU each name in the samples means, one row a name and attempt.",
        ("attempt", "node", "host", "own_source_id", "device_id", "nvml_index"),
        _c("attempt", "INTEGER", "Attempt whose ranks are meant; null without traces."),
        _c("node", "VARCHAR", "As in gpu_sample; null where it names none.", "name"),
        _c("host", "VARCHAR", "Canonical host of the samples; null where unknown.", "name"),
        _c("own_source_id", "INTEGER", "File whose samples are meant; null where a host is known."),
        _c("device_id", "VARCHAR", "As in gpu_sample or log_event."),
        _c("nvml_index", "INTEGER", "As in gpu_sample; null for events."),
        _c(
            "gpu_id",
            "VARCHAR",
            "The same for all names of a GPU: UUID, else host and address.",
        ),
        _c("uuid", "VARCHAR", "UUID; null where unknown."),
        _c("pci", "VARCHAR", "dddddddd:bb:dd.f; null where unknown."),
        _c("gpu_index", "INTEGER", "NVML index; null where unknown."),
        _c("model", "VARCHAR", "Model; null where unknown."),
        _c("rank", "INTEGER", "Rank that uses it; null where nothing says so."),
        _src("rank_source", "the rank"),
        _c("host_ranks", "INTEGER[]", "Ranks of its host; null where unknown."),
    ),
    _derived(
        "port",
        "Where each port that has counters leads, one row an attempt.",
        ("attempt", "node", "port"),
        _c("attempt", "INTEGER", "Attempt whose ranks are meant; null without traces."),
        _c("node", "VARCHAR", "As in net_sample, else its file's host; null: unknown.", "name"),
        _c("port", "VARCHAR", "As in net_sample."),
        _c("host", "VARCHAR", "Host on the other side, or that owns it; null: unknown.", "name"),
        _src("host_source", "the host"),
        _c("nic", "VARCHAR", "The host's NIC."),
        _c("rank", "INTEGER", "Rank that uses it; null when several or unknown."),
        _c("ranks", "INTEGER[]", "Ranks of the host; null when unknown."),
        _c("is_on_host", "BOOLEAN", "Whether the host's own NIC counts: its tx leaves the host."),
    ),
    _derived(
        "counter_step",
        "What a counter of a port grew by in each steady step; only counters that moved.",
        ("attempt", "capture_id", "step", "node", "port", "counter"),
        _COUNTED_ATTEMPT,
        _CAPTURE,
        _c("step", "BIGINT", "Job-level step: from its first start to its last end."),
        _c("node", "VARCHAR", "As in port.", "name"),
        _c("port", "VARCHAR", "As in port."),
        _c("counter", "VARCHAR", "Canonical name; its priorities and queues are added up."),
        _c("growth", "DOUBLE", "Grown by, interpolated between readings."),
        _c("coverage_ratio", "DOUBLE", "Share of the step that readings cover without a hole."),
    ),
    _derived(
        "network_correlation",
        "Whether a counter of a port goes with slow steps; only counters that moved.",
        ("attempt", "node", "port", "counter"),
        _COUNTED_ATTEMPT,
        _c("node", "VARCHAR", "As in port.", "name"),
        _c("port", "VARCHAR", "As in port."),
        _c("counter", "VARCHAR", "Canonical name; its priorities and queues are added up."),
        _c("direction", "VARCHAR", "rx or tx as the node sees it; null where neither."),
        _c("is_on_path", "BOOLEAN", "Whether the port leads to a rank of the job."),
        _c("interval_ns", "DOUBLE", "Usual time between readings."),
        _c("steps_count", "BIGINT", "Steady steps that readings cover by 80 % or more."),
        _c("steps_together", "INTEGER", "Steps taken together: readings are too far apart for 1."),
        _c("windows_count", "BIGINT", "Steps, or stretches of steps, that the test could use."),
        _c("active_count", "BIGINT", "Of these, where the counter differs from its usual growth."),
        _c(
            "lag_s",
            "DOUBLE",
            "Seconds by which the counter follows the step time; below 0: leads.",
        ),
        _c("rho", "DOUBLE", "Rank correlation after prewhitening, strongest over the lags, -1..1."),
        _c("p_value", "DOUBLE", "How often shuffled steps do as well; null: not testable."),
        _c("q_value", "DOUBLE", "False discovery rate over all ports and counters."),
        _c(
            "effect_ratio",
            "DOUBLE",
            "Step time in its top quarter over its bottom one, less 1.",
        ),
        _c("cost_ratio", "DOUBLE", "Share of the mean step above steps in its bottom quarter."),
        _c("verdict", "VARCHAR", "cause, symptom, none or not_testable."),
        _c("reason", "VARCHAR", "What the verdict rests on, or what a test lacks."),
    ),
    _derived(
        "counter_clock",
        "How far the clock of a node's counters is from the traces', by the traffic.",
        ("attempt", "node"),
        _ATTEMPT,
        _c("node", "VARCHAR", "As in port.", "name"),
        _c("verdict", "VARCHAR", "agrees, off or unknown."),
        _c("reason", "VARCHAR", "What the verdict rests on, or what an estimate lacks."),
        _c("offset_ns", "BIGINT", "Its clock less the traces'; null where unknown."),
        _c("error_ns", "BIGINT", "How far the offset may be wrong."),
        _c("interval_ns", "DOUBLE", "Usual time between readings."),
        _c("intervals_count", "BIGINT", "Intervals between readings that the traces cover."),
        _c("strength_ratio", "DOUBLE", "Correlation of bytes and collectives at the offset."),
        _c("next_ratio", "DOUBLE", "The same at the best offset elsewhere: steps repeat."),
    ),
    _derived(
        "activity_period",
        "Whether GPU counters show the steps of a job without traces; empty where traces do.",
        ("attempt",),
        _COUNTED_ATTEMPT,
        _c("counter", "VARCHAR", "Canonical name of the counter that was looked at last."),
        _c("verdict", "VARCHAR", "steps or none."),
        _c("reason", "VARCHAR", "What the steps rest on, or why there are none."),
        _c("period_ns", "DOUBLE", "Its period, taken as the step; may be an echo where none."),
        _c("interval_ns", "DOUBLE", "Usual time between readings."),
        _c("gpus_count", "BIGINT", "GPUs whose readings vary."),
        _c("steps_count", "BIGINT", "Boundaries between steps, less one."),
        _c("strength_ratio", "DOUBLE", "Autocorrelation at the period and at twice it, the less."),
        _c("p_value", "DOUBLE", "How often noise of the same persistence repeats as strongly."),
    ),
    _derived(
        "activity_step",
        "A step that the period of GPU counters shows, of a job without traces.",
        ("attempt", "step"),
        _COUNTED_ATTEMPT,
        _c("step", "BIGINT", "Number, from 0 at the first boundary that was found."),
        _t("start_ns", "Where activity is least: the end of the step before."),
        _DUR,
        _c("error_ns", "BIGINT", "How exact both ends are, about: the sampling interval."),
        _c("step_source", "VARCHAR", "counters."),
    ),
)

TABLES: tuple[Table, ...] = (
    *_META_TABLES,
    *_IDENTITY_TABLES,
    *_TRACE_TABLES,
    *_NCCL_TABLES,
    *_COUNTER_TABLES,
    *_HISTORY_TABLES,
    *_JOIN_TABLES,
)

_BY_NAME = {t.name: t for t in TABLES}


def table(name: str) -> Table:
    """The table of that name; KeyError if there is none."""
    return _BY_NAME[name]

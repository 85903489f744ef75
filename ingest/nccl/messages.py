"""What NCCL's messages mean: patterns of 27 releases, and what is kept of each.

Values are kept only where a pattern names them and they are numbers, names of devices or words
of a closed list; an environment variable's value only if the variable is on the list.
"""

from __future__ import annotations

import re

from msgspec import Struct

from tracekit.ingest.nccl.rows import name_of

MAX_VALUE = 120

ENV_ALLOWED = frozenset(
    """
    NCCL_ALGO NCCL_PROTO NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_P2P_DISABLE NCCL_P2P_LEVEL
    NCCL_P2P_DIRECT_DISABLE NCCL_P2P_USE_CUDA_MEMCPY NCCL_P2P_PXN_LEVEL NCCL_PXN_DISABLE
    NCCL_SHM_DISABLE NCCL_SHM_LEVEL NCCL_SHM_USE_CUDA_MEMCPY NCCL_NET NCCL_NET_PLUGIN
    NCCL_NET_DISABLE_INTRA NCCL_NET_GDR_LEVEL NCCL_NET_GDR_READ NCCL_NET_GDR_C2C
    NCCL_NET_FORCE_FLUSH NCCL_NET_SHARED_BUFFERS NCCL_NET_OVERHEAD NCCL_NET_MERGE_LEVEL
    NCCL_IB_DISABLE NCCL_IB_HCA NCCL_IB_GID_INDEX NCCL_IB_TC NCCL_IB_SL NCCL_IB_TIMEOUT
    NCCL_IB_RETRY_CNT NCCL_IB_QPS_PER_CONNECTION NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_CUDA_SUPPORT
    NCCL_IB_PCI_RELAXED_ORDERING NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_AR_THRESHOLD
    NCCL_IB_ROCE_VERSION_NUM NCCL_IB_ADDR_FAMILY NCCL_IB_ADDR_RANGE NCCL_IB_MERGE_NICS
    NCCL_IB_MERGE_VFS NCCL_IB_USE_INLINE NCCL_IB_WARN_RAIL_LOCAL NCCL_IB_RETURN_ASYNC_EVENTS
    NCCL_SOCKET_IFNAME NCCL_SOCKET_FAMILY NCCL_SOCKET_NTHREADS NCCL_NSOCKS_PERTHREAD
    NCCL_CROSS_NIC NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_MIN_NRINGS NCCL_MAX_NRINGS
    NCCL_MIN_CTAS NCCL_MAX_CTAS NCCL_NCHANNELS_PER_NET_PEER NCCL_MIN_P2P_NCHANNELS
    NCCL_MAX_P2P_NCHANNELS NCCL_BUFFSIZE NCCL_LL_BUFFSIZE NCCL_LL128_BUFFSIZE NCCL_NTHREADS
    NCCL_LL128_NTHREADS NCCL_P2P_NET_CHUNKSIZE NCCL_P2P_NVL_CHUNKSIZE NCCL_P2P_PCI_CHUNKSIZE
    NCCL_NVLS_ENABLE NCCL_NVLS_NCHANNELS NCCL_NVLSTREE_MAX_CHUNKSIZE NCCL_NVB_DISABLE
    NCCL_COLLNET_ENABLE NCCL_COLLNET_NODE_THRESHOLD NCCL_SHARP_DISABLE NCCL_PAT_ENABLE
    NCCL_MNNVL_ENABLE NCCL_MNNVL_UUID NCCL_MNNVL_CLIQUE_ID NCCL_CUMEM_ENABLE
    NCCL_CUMEM_HOST_ENABLE NCCL_WIN_ENABLE NCCL_RUNTIME_CONNECT NCCL_LAUNCH_MODE
    NCCL_LAUNCH_ORDER_IMPLICIT NCCL_GRAPH_MIXING_SUPPORT NCCL_GRAPH_REGISTER NCCL_LOCAL_REGISTER
    NCCL_CHECKS_DISABLE NCCL_CHECK_POINTERS NCCL_IGNORE_CPU_AFFINITY NCCL_SET_STACK_SIZE
    NCCL_SET_THREAD_NAME NCCL_WORK_FIFO_BYTES NCCL_WORK_FIFO_DEPTH NCCL_DMABUF_ENABLE
    NCCL_GDRCOPY_ENABLE NCCL_GDR_FLUSH_DISABLE NCCL_COMM_BLOCKING NCCL_ASYNC_ERROR_HANDLING
    NCCL_BLOCKING_WAIT NCCL_RAS_ENABLE NCCL_OOB_NET_ENABLE NCCL_OOB_NET_IFNAME
    NCCL_UID_STAGGER_RATE NCCL_UID_STAGGER_THRESHOLD NCCL_THREAD_THRESHOLDS NCCL_TUNER_PLUGIN
    NCCL_PROFILER_PLUGIN NCCL_CGA_CLUSTER_SIZE NCCL_MAX_CGA_CLUSTER_SIZE NCCL_SPLIT_SHARE
    NCCL_NET_OPTIONAL_RECV_COMPLETION NCCL_IB_OOO_RQ NCCL_IB_ECE_ENABLE NCCL_IB_FIFO_TC
    NCCL_CTA_POLICY NCCL_NTHREADS_PER_PEER NCCL_SINGLE_RING_THRESHOLD NCCL_TREE_THRESHOLD
    """.split()  # noqa: SIM905  # a list that is read by eye
)
"""Variables whose values are kept; all name settings, none a place or a credential."""
ENV_PATHS = frozenset(
    {"NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE",
     "NCCL_DEBUG_FILE", "NCCL_CONF_FILE", "NCCL_TUNER_CONFIG_FILE"}
)  # fmt: skip
"""Variables of which only the fact that they are set is kept: their values are paths."""

_SAFE_VALUE = re.compile(rb"[\w.,:;^=+|/<>\[\]-]{0,120}")
_PATH_LIKE = re.compile(rb"^[/.~]|/.*/")


class Pattern(Struct, frozen=True):
    """A message: what must be in it, and how its values are named."""

    code: str
    severity: str
    key: bytes
    """A piece that every such message holds: cheaper to look for than the pattern."""
    regex: re.Pattern[bytes]


def _p(code: str, severity: str, key: str, regex: str) -> Pattern:
    return Pattern(code, severity, key.encode(), re.compile(regex.encode()))


_ADDRESS = r"[0-9a-zA-Z_.:%-]{2,60}<\d+>"
_WORD = r"[\w.+-]{1,60}"

PATTERNS: tuple[Pattern, ...] = (
    _p("version", "info", "CCL version",
       r"(?:N|R|rc|n)CCL version:? ?:? ?(?P<nccl>\d+\.\d+(?:\.\d+)?[\w.]{0,12})?"
       r"(?:[+-](?P<runtime>cuda|hip)(?P<runtime_version>[\d.]+))?"),
    _p("cuda_driver", "info", "cudaDriverVersion", r"cudaDriverVersion (?P<driver>\d+)"),
    _p("network", "info", "Using network",
       r"Using network (?P<network>[A-Za-z][\w .-]{0,40}?)\s*$"),
    _p("network", "info", "Using internal",
       r"Using internal [Nn]etwork (?!plugin)(?P<network>\w{1,20})"),
    _p("oob", "info", "Bootstrap",
       rf"Bootstrap ?: Using (?:\[\d+\])?(?P<interface>{_WORD}):(?P<address>{_ADDRESS})"),
    _p("no_ib_device", "info", "No device found", r"NET/IB ?: No device found"),
    _p("no_ibverbs", "info", "libibverbs", r"(?:Failed to open|could not load|not "
    r"found).{0,40}libibverbs"),
    _p("nic", "info", "uverbs",
       r"NET/IB ?: \[(?P<device>\d+)\] ?(?P<nic>[\w.-]++):uverbs\d++:(?P<port>\d++)/(?P<link>\w++)"
       r".*? speed=(?P<speed_mbit>\d+)"),
    _p("nic", "info", "Made virtual device",
       r"Made virtual device \[(?P<device>\d+)\] name=(?P<nic>[\w.+-]{1,120}) "
       r"speed=(?P<speed_mbit>\d+) ndevs=(?P<ports>\d+)(?: rail=(?P<rail>-?\d+))?"),
    _p("gdr_path", "info", "GPU Direct RDMA",
       r"GPU Direct RDMA (?P<state>Enabled|Disabled) for GPU (?P<gpu>\w+) / HCA (?P<device>\w+) "
       r"\(distance (?P<distance>\d+) (?P<relation><=?|>=?) (?P<limit>\d+)\)"),
    _p("gdr", "info", "GPU Direct RDMA",
       r"NET/(?P<net>\w[\w ]{0,30}?) ?: GPU Direct RDMA (?P<state>Enabled|Disabled) for HCA "
       r"(?P<device>\d+)(?: '(?P<nic>[\w.:+-]{1,120})')?(?: \((?P<why>no module|[\w -]{1,30})\))?"),
    _p("pattern", "info", "Pattern ",
       r"Pattern (?P<pattern>\d+), crossNic (?P<cross_nic>\d+), nChannels (?P<channels>\d+), "
       r"(?:bw|speed) (?P<bw_intra>[\d.]+)/(?P<bw_inter>[\d.]+), "
       r"(?:n[vV]links? [\d.]+, )?type (?P<type_intra>\w+)/(?P<type_inter>\w+)"),
    _p("system", "info", "=== System",
       r"=== System : max(?:Bw|Width) (?P<max_bw>[\d.]+)(?: total(?:Bw|Width) "
       r"(?P<total_bw>[\d.]+))?"),
    _p("rings_connected", "info", "Connected all rings",
       r"Connected all rings(?:, use ring PXN (?P<pxn>\d) GDR (?P<gdr>\d))?"),
    _p("trees_connected", "info", "Connected", r"Connected (?:all|binomial|NVLS) trees?"),
    _p("nvls", "info", "NVLS multicast",
       r"NVLS multicast support is (?P<absent>not )?available on dev (?P<device>\d+)"),
    _p("bootstrap_timings", "info", "Bootstrap timings",
       r"Bootstrap timings total (?P<total>[\d.]+) \(create (?P<create>[\d.]+), "
       r"send (?P<send>[\d.]+), recv (?P<recv>[\d.]+), ring (?P<ring>[\d.]+)"),
    _p("init_timings", "info", "Init timings",
       r"Init timings(?: - (?P<api>\w+))?: ?rank (?P<rank>\d+) nranks (?P<nranks>\d+) "
       r"total (?P<total>[\d.]+) \((?P<parts>[^)]{0,300})\)"),
    _p("plugin_loaded", "info", "/Plugin",
       r"(?P<kind>NET|TUNER|PROFILER|ENV|GIN)/Plugin ?: (?:Loaded|Using) (?P<what>[\w .-]{1,60})"),
    _p("plugin_missing", "info", "/Plugin",
       r"(?P<kind>NET|TUNER|PROFILER|ENV|GIN)/Plugin ?: (?:Could not find|No plugin found"
       r"|Plugin load|Failed to find|Failed to (?:open|load))"),
    _p("plugin_failed", "info", "Failed to initialize NET plugin",
       r"Failed to initialize NET plugin (?P<net>\w{1,30})"),
    _p("network", "info", "Assigned NET plugin",
       r"Assigned NET plugin (?P<assigned>[\w .-]{1,40}) to comm"),
    _p("topology_file", "info", "Loading topology file", r"Loading topology file"),
    _p("launch_mode", "info", "Launch mode", r"Launch mode (?P<mode>\w{1,30})"),
    # --- what goes wrong ----------------------------------------------------------------------
    _p("ib_async_event", "info", "async",
       r"(?:\[?(?P<nic>[\w.-]{1,40}):(?P<port>\d+)\]? )?Got (?:async|non-fatal async) (?:error "
       r")?event"
       r" ?: (?P<event>GID table change|client reregistration|LID change|P_Key change|SM change"
       r"|port active|last WQE reached|communication established|SQ drained)"),
    _p("ib_device_unopened", "warning", "to open device",
       r"NET/IB ?: Unable to open device (?P<nic>[\w.-]{1,40})"),
    _p("ib_async_event", "error", "async",
       r"(?:\[?(?P<nic>[\w.-]{1,40}):(?P<port>\d+)\]? )?Got (?:async|non-fatal async) (?:error "
       r")?event"
       r" ?: (?P<event>[A-Za-z][A-Za-z ]{1,40})"),
    _p("ib_async_event", "error", "async fatal event",
       r"(?:(?<![\w.-])(?P<nic>[\w.-]{1,40}+):(?P<port>\d{1,5})[ \])]{1,2})?(?:Got )?"
       r"async fatal event"
       r"(?: ?: (?P<event>[A-Za-z][A-Za-z ]{1,40}))?"),
    _p("ib_device_failed", "error", "marked as failed",
       r"Device (?P<device>\d+) marked as failed"),
    _p("ib_modify_qp", "error", "ibv_modify_qp",
       r"Call to ibv_modify_qp failed with (?:error )?(?P<reason>\d+)?"
       r"(?:[^,]{0,60}, on dev (?P<nic>[\w.-]{1,40}))?"),
    _p("connect_retry", "warning", "onnect",
       r"Call to connect (?:to \S+ )?(?:failed|returned|timed).{0,60}?(?:retrying|: "
       r"(?P<why>Connection refused|Connection timed out|No route to host))"),
    _p("connect_failed", "error", "ocketPollConnect",
       r"socketPollConnect.*?(?P<why>exceeded (?:error )?retr\w+|failed|timeout)"),
    _p("connect_failed", "error", "Call to connect",
       r"Call to connect .*?failed"),
    _p("peer_closed", "error", "onnection closed by",
       r"(?:socketProgress|Net) ?: Connection closed by remote peer(?: "
       r"(?P<peer>[0-9a-zA-Z_.:%-]{2,60})<\d+>)?"),
    _p("socket_failed", "error", "Call to ",
       r"Call to (?P<call>recv|send) (?:from|to) (?P<peer>[0-9a-zA-Z_.:%-]{2,60})<\d+> failed ?: "
       r"(?P<why>Connection timed out|Connection reset by peer|Connection refused|Broken pipe"
       r"|No route to host|Network is unreachable)?"),
    _p("truncated", "error", "message truncated",
       r"message truncated : receiving (?P<received_bytes>\d+) bytes instead of "
       r"(?P<expected_bytes>\d+)"),
    _p("cuda_failure", "error", "uda failure",
       r"Cuda failure (?:(?P<number>\d+))?(?: ?'(?P<what>out of memory|unspecified launch failure"
       r"|an illegal memory access was encountered|invalid argument|invalid device ordinal"
       r"|peer access is not supported between these two devices)')?"),
    _p("version_mismatch", "error", "ismatched NCCL version", r"Mismatched NCCL version detected"),
    _p("collective_mismatch", "error", "ismatched collective",
       r"Mismatched collective"),
    _p("duplicate_gpu", "error", "uplicate GPU",
       r"Duplicate GPU detected ?:? rank (?P<rank>\d+) and rank (?P<other>\d+)"),
    _p("rank_count_mismatch", "error", "mismatch in rank count",
       r"mismatch in rank count from procs (?P<first>\d+) : (?P<second>\d+)"),
    _p("rail_mismatch", "warning", "ismatched physical devices",
       r"mismatched physical devices between local \((?P<local>[\w.:/-]{1,60}+)\)? ?"
       r".*?remote \((?P<remote>[\w.:/-]{1,60})"),
    _p("register_failed", "error", "Unable to register memory",
       r"Unable to register memory(?: \(type = (?P<type>\d+)\))?.{0,200}?\bRC: (?P<rc>-?\d{1,6})"),
    _p("completion_failed", "error", "completed with error",
       r"completed with error\.? ?RC: (?P<rc>-?\d+)"),
    _p("init_timeout", "error", "imeout",
       r"(?:bootstrap|init|Bootstrap|Init)[\w ]{0,40}[Tt]imeout"),
    _p("missing_peer", "warning", "missing",
       r"(?<!\d)(?P<missing>\d++) ranks? (?:are |is )?missing"),
    _p("call_chain", "error", " -> ",
       r"^(?P<file>[\w/.-]{1,60}\.\w{1,4}):(?P<line>\d+) -> (?P<result>\d+)"),
    _p("aborted", "error", "bort", r"(?:aborting|Abort(?:ing|ed) by|abort flag set|ncclCommAbort)"),
)  # fmt: skip

ENV_LINE = re.compile(rb"(?P<name>NCCL_[A-Z0-9_]{2,60}) set (?:by environment )?to (?P<value>.*)")
NET_LIST = re.compile(rb"NET/(?P<net>\w[\w ]{0,30}?) ?: Using (?P<list>.*)$")
NET_ITEM = re.compile(
    rb"\[(?P<device>\d+)\](?P<nic>[\w.+-]{1,120}):(?P<port>\d+)(?:/(?P<link>[\w/]{1,20}))?"
)
SOCKET_ITEM = re.compile(
    rb"\[(?P<device>\d+)\](?P<nic>[\w.-]{1,40}):(?P<address>[0-9a-fA-F.:]{3,45})"
)
OOB = re.compile(rb"OOB (?P<interface>[\w.-]{1,40}):(?P<address>[0-9a-fA-F.:%\w]{2,60})<\d+>")
GPU_PATHS = re.compile(rb"^GPU/(?P<gpu>[\w-]{1,20}) :")
GPU_PATH = re.compile(rb"(?P<to>(?:GPU|NET)/[\w-]{1,20}) \((?P<path>\d+/[\d.]+/\w+)\)")

NOISE = re.compile(
    rb"^\s*(?:"
    rb"proxyProgressAsync|ncclPollProxyResponse|resp\.opId|Received and initiated operation"
    rb"|Connected to proxy|Allocated shareable buffer|New proxy (?:send|recv) connection"
    rb"|Ring \d+ : |Tree \d+ : |Trees \[|Channel \d+/\d+ : |Channel \d+ : |NVLS Trees"
    rb"|\d+ : (?:NET|GPU)/|\+ |\(|[A-Z]{3}/[\w-]+ |=+$|CPU/|GPU/|NET/[\w-]+ :|NIC/"
    rb"|threadThresholds|(?:Setting a|A)ffinity|ncclTopoGetCpuAffinity|P2P Chunksize|\[Proxy"
    rb"|Check P2P Type|MNNVL |Symmetric |Mem Realloc|misc/|memory stack hunk"
    rb"|[\w/]+\.(?:cc|h|cu):\d+ (?:Cuda|NCCL|Host|Mem|memory|Alloc|.{0,40}[Aa]lloc)"
    rb"|RAS |UDS|CC O(?:ff|n)|NVLS |Protocol +\||Algorithm +\||Max NThreads|Latency/AlgBw"
    rb"|TOPO/NET|TOPO|Retrieving state|Initialized (?:NET|state)|ncclTopo|Loading|dlvsym|Load"
    rb"|Plugin Path|P2P plugin|Successfully loaded|NET/OFI|NET/Plugin|ENV/Plugin|TUNER/Plugin"
    rb"|PROFILER/Plugin|GIN/Plugin|COLLNET/|NET/|NCCL git version|Initialized|Intra|Using tuner"
    rb"|DMA-BUF|Dmabuf|GPU Direct|Could not (?:enable|get)|Unable to load|Disabled|Enabled NCCL"
    rb"|comm 0x|ncclComm\w+ comm|Flush|Failed to (?:open|find|load|initialize)|Register"
    rb"|Deregister|\w+ allocate|Comm config|ncclCommFinalize|Destroy|DESTROY|CUMEM|cuMem|CUDA Dev"
    rb"|Attribute|Topology|Found|Skipping|Libfabric|CollNet|MSCCL|Kernel|kernel"
    rb"|Message:|NCCL_\w+|init\.cc|Broadcast \||Reduce \||AllGather \||ReduceScatter \|"
    rb"|AllReduce \|"
    rb"|Merged|Assuming|Ignoring|PXN |rank \d|Rank \d|Group|Proxy|Socket|RDMA|Transport|Sym"
    rb")"
)
"""Openings of messages that are known and carry nothing that a diagnosis needs."""


IB_ERROR = re.compile(
    rb"Got completion(?: from peer (?P<peer>[0-9a-zA-Z_.:%-]{2,60})<\d+>)? with "
    rb"(?:error|status)[ =](?:IBV_WC_\w+\()?(?P<status>\d+)"
)
_IB_WORDS = (
    ("opcode", re.compile(rb"opcode[ =](?:IBV_WC_\w+\()?(\d+)")),
    ("vendor", re.compile(rb"vendor[ _]err[ =](\d+)")),
    ("direction", re.compile(rb"(?:\(|req_type=)(Send|Recv)")),
    ("local_gid", re.compile(rb"localGid ([0-9a-fA-F:.]{2,45})")),
    ("remote_gid", re.compile(rb"remoteGids? ?([0-9a-fA-F:.]{2,45})")),
    ("nic", re.compile(rb" hca ([\w.-]{1,40})")),
)
"""Words of a failed completion; which there are, and where, changed five times."""


def ib_fields(text: bytes, completion: re.Match[bytes]) -> list[str]:
    """What a failed completion says, by word."""
    fields = fields_of(completion)
    for name, word in _IB_WORDS:
        value = word.search(text)
        if value:
            fields.append(f"{name}={value[1].decode()}")
    return fields


FREE = frozenset(("network", "assigned", "net", "what", "mode"))
"""Fields with words that the pattern does not know."""


def fields_of(matched: re.Match[bytes]) -> list[str]:
    """``name=value`` of the groups that matched."""
    fields = []
    for name, value in matched.groupdict().items():
        if value:
            text = value[:MAX_VALUE].decode("ascii", "replace").strip()
            fields.append(f"{name}={name_of(text) if name in FREE else text}")
    return fields


def env_fields(variable: re.Match[bytes]) -> list[str]:
    """Name and value of an environment variable, as far as it may be kept."""
    name = variable["name"].decode()
    value = variable["value"].strip().removesuffix(b".").strip()
    if name in ENV_PATHS:
        return [f"name={name}", "value=(path)"]
    is_kept = name in ENV_ALLOWED and _SAFE_VALUE.fullmatch(value) and not _PATH_LIKE.search(value)
    return [f"name={name}", f"value={value.decode()}" if is_kept else "value=(not kept)"]


def devices_of(net_list: re.Match[bytes]) -> list[str]:
    """The devices of a ``NET/X : Using [0]...`` line, and the interface beside them."""
    text = net_list["list"]
    fields = [f"net={net_list['net'].decode()}"]
    items = list(NET_ITEM.finditer(text)) if net_list["net"] != b"Socket" else []
    for item in items[:64]:
        link = item["link"]
        name = item["nic"].decode() + ":" + item["port"].decode()
        fields.append(f"{item['device'].decode()}={name}" + (f"/{link.decode()}" if link else ""))
    if not items:
        fields += [
            f"{i['device'].decode()}={i['nic'].decode()}" for i in SOCKET_ITEM.finditer(text)
        ][:64]
    oob = OOB.search(text)
    if oob:
        fields += [f"oob={oob['interface'].decode()}", f"address={oob['address'].decode()}"]
    return fields


def event_of(text: bytes) -> tuple[str, str, list[str]] | None:
    """Code, severity and fields of a message; None if no pattern knows it."""
    if b"set " in text and text.startswith(b"NCCL_"):
        env = ENV_LINE.match(text)
        if env:
            return "env", "info", env_fields(env)
    if b"Got completion" in text:
        failed = IB_ERROR.search(text)
        if failed:
            return "ib_error", "error", ib_fields(text, failed)
    for pattern in PATTERNS:
        if pattern.key in text:
            matched = pattern.regex.search(text)
            if matched:
                return pattern.code, pattern.severity, fields_of(matched)
    if text.startswith(b"NET/"):
        listed = NET_LIST.match(text)
        if listed:
            return "net_devices", "info", devices_of(listed)
    paths = GPU_PATHS.match(text)
    if paths:
        peers = [f"{p['to'].decode()}={p['path'].decode()}" for p in GPU_PATH.finditer(text)]
        return "gpu_paths", "info", [f"gpu={paths['gpu'].decode()}", *peers[:64]]
    return None

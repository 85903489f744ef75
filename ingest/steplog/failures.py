"""What ended a job, in its own output: tracebacks, torchrun's summary, kills by Slurm or kernel.

Of an exception its type, and the file, line and function of the program's own last frame are kept;
of its text only which of a closed list of things it says (memory ran out, a peer went away). Texts
hold what programs were given, secrets too.

Rows are ``log_event`` of these codes: ``python-exception``, ``fatal-signal`` (faulthandler, and
PyTorch's watchdog where it ends its process for a CUDA error),
``worker-exit`` (torchrun's, DeepSpeed's or Lightning's line when it sees a worker fail),
``worker-failed`` (an entry of torchrun's summary, what mpirun says of the first), ``task-ended``
and ``job-cancelled`` (srun, slurmstepd, a shell, Ray of a worker), ``oom-kill`` (kernel),
``job-state`` (torchrun, when it is told to end) and ``store-lost`` (PyTorch, of a rank whose store
went away with the process that kept it).
``round`` counts the launches that one file tells of, from 0.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field

from tracekit.ingest.base import Severity, Sink, stated_host, write_columns
from tracekit.ingest.steplog.silence import Silence

_CHAINS = (b"During handling of the above exception", b"direct cause of the following exception")
_WATCHDOG = b"atchdog thread terminated with exception: CUDA error"
"""PyTorch's thread that meets a CUDA error first: it aborts its process, without a traceback."""
_IN_THREAD = b"Exception in thread "
_ASIDE = (
    _IN_THREAD, b"Exception ignored in", b"--- Logging error ---", b"Error in atexit._run_exit",
    b"Task exception was never retrieved", b"Exception in callback ",
)  # fmt: skip
"""What Python prints before the traceback of an exception that ends no process."""
_ASIDE_LINES = 3
"""Lines from that to the traceback's first, at most."""
_ALONE = {
    b"Killed": "SIGKILL", b"Segmentation fault": "SIGSEGV", b"Bus error": "SIGBUS",
    b"Aborted": "SIGABRT", b"Illegal instruction": "SIGILL",
}  # fmt: skip
"""All that a shell at a terminal says of the command that it ran, on a line of its own."""
WORDS = (
    b"Traceback (most", b"(exitcode: ", b"Root Cause (first", b"Failures:", b"srun: error",
    b"slurmstepd: ", *_ALONE, b"Fatal Python error", _WATCHDOG, *_CHAINS, *_ASIDE,
    b" noticed that process rank ", b"Process name: [[", b"Exit code: ",
    b"exits with return code = ", b"Child process with PID ", b": line ",
    b"Worker exit detail: ", b" death signal, shutting down workers",
    b"-- Process ", b"HW Exception by GPU", b"Memory access fault by GPU",
    b" failed on SocketImpl(", b" died unexpectedly, shutting down executor",
    b"=>> PBS: job killed: ", b"TERM_", b" heartbeat timeout", b"Unable to shutdown process ",
    b" crashed with exit code ", b"Global rank ", b"-Begin global rank ", b"-End global rank ",
    b"MPI_ABORT was invoked on rank ", b" has exited due to process rank ", b" RUNNING AT ",
    b"=   EXIT ", b"=   KILLED BY", b"rrorcode",
    b" EXIT STRING: ", b"Node failure on ",
)  # fmt: skip
"""A line with which something begins holds one of these."""
_KEY = re.compile(b"|".join(map(re.escape, WORDS)))
MAX_EVENTS = 20_000
"""Events of one file that are kept: more than as many ranks that all fail."""
MAX_OPEN = 4096
"""Tracebacks that are printed into each other at a time: one a rank."""
MAX_PREFIX_BYTES = 200
MAX_JSON_DEPTH = 4
"""Objects within a record that are looked into."""
MAX_RANK = 10_000_000
MAX_FRAMES = 2000
"""Lines of a traceback; Python itself shortens recursion."""

_RANK = re.compile(rb"\[[Rr]ank ?(\d{1,7})\]")
_LOCAL = re.compile(rb"\[default(\d{1,5})\]")
_POD = re.compile(rb"\[pod/([a-z0-9.-]{1,253})/[a-z0-9.-]{1,63}\] ")
"""What kubectl logs --prefix puts before a line; a pod's name is its host's to its processes."""
_STERN = re.compile(
    rb"([a-z0-9][a-z0-9.-]{0,200}-(?:\d{1,5}|[bcdfghjklmnpqrstvwxz2456789]{5})) [a-z0-9-]{1,63} "
)
"""What stern puts there: a pod of a set or a job, and its container."""
_MPI_RANK = re.compile(rb"\[\d{1,7},(\d{1,7})\]<std(?:out|err)>")
_TASK = re.compile(rb"\s*(\d{1,7}): ")
_TRACEBACK = b"Traceback (most recent call last):"
_FRAME = re.compile(rb'\s+File "([^"]{1,1000})", line (\d{1,9}), in ([\w<>.]{1,80})')
_TYPE = re.compile(rb"([A-Za-z_][\w.<>]{1,120})(?::|$)")
_RICH = b"Traceback (most recent call last) \xe2"
"""The head of a traceback that the package rich draws in a box, whose lines begin with a bar."""
_BOX = b"\xe2"
_RICH_FRAME = re.compile(rb"\xe2\x94\x82 (\S{1,1000}):(\d{1,9}) in ([\w<>.]{1,80})")
_FILE = re.compile(r"[\w.-]{1,80}")
_NOT_OWN = re.compile(rb"site-packages|dist-packages|/lib/python\d|<frozen|<string>|importlib")
_EXIT = re.compile(
    rb"(?:(?P<agent>\d{1,10}) \S{1,200}:\d{1,6}\] )?failed \(exitcode: (?P<code>-?\d{1,5})\) "
    rb"local_rank: (?P<local>\d{1,5}) \(pid: (?P<pid>\d{1,10})\)"
)
_ENTRY = re.compile(rb"(time|host|rank|exitcode|traceback) {0,10}: ?(.{0,400})")
_ENTRY_HEAD = re.compile(rb"\[\d{1,7}\]:$")
_LABEL = re.compile(rb"(?:\d{1,7}: )?")
_PART_HEAD = re.compile(rb"(?P<label>\d{1,7}: |)\s*(?:Failures:\s*$|(?P<root>Root Cause \(first))")
"""Of torchrun's summary, which srun --label may have labelled."""
_ENTRY_TIME = re.compile(rb"(\d{4})-(\d\d)-(\d\d)_(\d\d):(\d\d):(\d\d)")
_ENTRY_RANK = re.compile(rb"(\d{1,9}) \(local_rank: (\d{1,5})\)")
_ENTRY_CODE = re.compile(rb"(-?\d{1,5}) \(pid: (\d{1,10})\)")
_MPI_LEFT = re.compile(
    rb"noticed that process rank (\d{1,7}) with PID (\d{1,10}) on node ([\w.-]{1,200}) exited on\b"
)
_MPI_SIGNAL = re.compile(rb"(?:exited on|^) ?signal (\d{1,2})\b")
"""In the same line, or in the next where that is a long one."""
_MPI_FIRST = re.compile(rb"Process name: \[\[\d{1,10},\d{1,10}\],(\d{1,7})\]")
_MPI_CODE = re.compile(rb"\s*Exit code: +(\d{1,3})\s*$")
_MPI_ABORT = re.compile(rb"MPI_ABORT was invoked on rank (\d{1,7}) in communicator MPI_COMM_WORLD")
_MPI_ABORT_CODE = re.compile(rb"\s*(?:Errorcode: |with errorcode )(-?\d{1,10})\b")
_PRTERUN = re.compile(
    rb" has exited due to process rank (\d{1,7}) with PID (\d{1,10}) on node ([\w.-]{1,200})"
)
_HYDRA = re.compile(rb"=   (?:RANK (\d{1,7}) )?PID (\d{1,10}) RUNNING AT ([\w.-]{1,200})")
_HYDRA_CODE = re.compile(rb"=   (?:EXIT CODE|EXIT STATUS|KILLED BY (SIGNAL)): (\d{1,3})\b")
_HYDRA_SIGNAL = re.compile(rb" EXIT STRING: .{0,60}\(signal (\d{1,2})\)")
"""MPICH's mpiexec: its exit code is what wait() gave, so that a signal may look like a code."""
_LOST_NODE = re.compile(rb"srun: error: Node failure on ([\w.,\[\]-]{1,200})")
_DEEPSPEED = re.compile(
    rb"(?:(?!\d+:)([\w.-]{1,200}): (?=\[))?.*exits with return code = (-?\d{1,5})\s*$"
)
_IS_ALONE = re.compile(rb"--local_rank=0\b")
"""DeepSpeed's launcher prints the command of the process that it began last, whichever failed: of
local rank 0 only where that is the one process of its host."""
_VLLM = re.compile(rb"Worker proc \w{1,40}-(\d{1,5}) died unexpectedly")
_LIGHTNING = re.compile(
    rb"\[rank: (\d{1,5})\] Child process with PID (\d{1,10}) terminated with code (-?\d{1,5})\."
)
_RAY = re.compile(
    rb"A worker died or was killed while executing .{0,2000}?"
    rb"Worker IP address: ([0-9A-Fa-f.:]{3,45}) .{0,200}?"
    rb"Worker PID: (\d{1,10}) Worker exit type: (\w{1,40})"
)
_TOLD_TO_END = re.compile(rb"Received (?:Signals\.)?(15|SIGTERM|2|SIGINT|1|SIGHUP) death signal, ")
"""torchrun, when it is told to end: its workers are ended by it, whatever they say then."""
_FORCED = re.compile(rb"Unable to shutdown process (\d{1,10}) via ")
"""torchrun, of a process that did not end at its signal: it is killed."""
_SPAWNED = re.compile(rb"-- Process (\d{1,5}) terminated with the following error:")
_LAUNCHER_FILE = re.compile(
    rb"(?:torch/multiprocessing/spawn|(?:torch/distributed|accelerate/commands|deepspeed/launcher)"
    rb"/launch)\.py$"
)
"""What is raised there only says how another process ended."""
_LAUNCHED = re.compile(
    rb"CalledProcessError: Command '\[?'?[^ ,']{0,200}?"
    rb"(?:torchrun|accelerate|deepspeed|python[\d.]{0,6})'?[ ,]"
)
"""So is what a program raises that began it as a command."""
_LEFT = re.compile(
    rb"(?:process (\d{1,5}) terminated with (?:signal|exit code) |died with <Signals\."
    rb"|returned non-zero exit status )(?:(SIG[A-Z]{2,8})|(\d{1,3}))"
)
"""How PyTorch's multiprocessing.spawn says that, and Python's subprocess of a command."""
_RAY_TASK = re.compile(
    rb"ray\.exceptions\.\w{1,40}(?:\(\w{1,80}\))?: .{0,120}?ray::.{0,300}?"
    rb"\(pid=\d{1,10}"
)
"""What Ray raises where a task or an actor did: its own traceback follows, without a head."""
_ACTOR = re.compile(rb"\((?:\w{1,60} )?(?:rank=\d{1,5} )?pid=(\d{1,10})(?:, ip=([\w.:-]{1,200}))?")
"""Whose a line is by Ray, and by vLLM."""
_ACTOR_PART = re.compile(rb"(?:^|\) )[\s>]*(pid|ip): ([\w.:-]{1,200})\s*$")
_ACTOR_ENDED = re.compile(rb"Worker exit type: (\w{1,40})|ray\.kill|all references to the actor")
_ACTOR_LINES = 20
"""Lines behind Ray's word that an actor died for which, and how."""
_CAUGHT = re.compile(rb": Caught \w{1,80} in \w{1,40} worker process \d")
_ORIGINAL = b"Original "
_OF_GROUP = re.compile(rb"  \+ Exception Group $")
"""Before the traceback of a group of exceptions, whose lines stand behind a bar."""
"""PyTorch's data loader raises what its worker raised, and prints that one's traceback behind."""
_SHELL = re.compile(
    rb": line \d{1,7}: +(\d{1,10}) (Killed|Segmentation fault|Bus error|Aborted|Terminated)\b"
)
_STORE = re.compile(
    rb"(?:recv|send)(?:Value|Vector|Bytes) failed on SocketImpl\(fd=\d{1,9}, "
    rb"addr=\[[^\]]{1,200}\]:\d{1,5}, remote=\[([^\]]{1,200})\]:\d{1,5}\)"
)
_SRUN = re.compile(rb"srun: error: ([\w.-]{1,200}): tasks? ([\d,\[\]-]{1,200}): (.{1,80})")
_SLURM = re.compile(
    rb"slurmstepd: (?:error: )?(?:([\w.-]{1,200}): )?.{0,20}?"
    rb"(?:(?:JOB|STEP) \S{1,40} ON ([\w.-]{1,200}) CANCELLED AT (\S{1,30})"
    rb"(?: DUE TO ([A-Z ]{1,40}))?"
    rb"|Detected (\d{1,6}) oom.kill event)"
)
_OOM_KILL = re.compile(
    rb"(?P<cgroup>[Mm]emory cgroup o|O)ut of memory: Killed process (?P<pid>\d{1,10}) "
    rb"\((?P<name>[^)]{1,20})\)(?:.{0,80}?anon-rss:(?P<rss>\d{1,15})kB)?"
)
_FATAL_SIGNALS = {
    b"Segmentation fault": "SIGSEGV", b"Bus error": "SIGBUS", b"Aborted": "SIGABRT",
    b"Illegal instruction": "SIGILL", b"Floating-point exception": "SIGFPE",
}  # fmt: skip
_FATAL = re.compile(b"Fatal Python error: (" + b"|".join(_FATAL_SIGNALS) + b")")
_CUDA = re.compile(rb"CUDA error: (an illegal memory access|device-side assert|unspecified launch"
                   rb" failure|uncorrectable (?:NVLink|ECC) error|misaligned address)")  # fmt: skip

_ROCM = re.compile(
    rb"(HW Exception|Memory access fault) by GPU node-\d{1,5} .{0,200}?reason ?: ?(GPU Hang)?", re.I
)
"""How ROCm's runtime ends a process whose GPU hangs or was given a wrong address."""
_OWN_RANK = re.compile(rb"communicator was aborted on rank (\d{1,7})\b|: \[Rank (\d{1,7})\] ")
"""Where PyTorch's exception says whose it is."""
_NCCL_ERRORS = (b"NCCL error in", b"OPS function error: Hccl")
_NCCL_LINES = 4
"""Lines behind PyTorch's exception for NCCL's kind of error and the last one that it met."""
_NCCL_AGE_LINES = 1000
"""Lines of all ranks behind which a rank that says no more is not waited for."""
_NCCL_SAYS: tuple[tuple[str, tuple[bytes, ...]], ...] = (
    ("link_failed", (b"Got completion",)),
    (
        "peer_lost",
        (
            b"onnection closed by", b"onnection reset by", b"onnection refused", b"Connect to ",
            b"onnection timed out", b"No route to host", b"Socket recv failed", b"ncclRemoteError",
            b"connect abort",
        ),
    ),
    ("timeout", (b" times out",)),
    ("gpu_memory", (b"'out of memory'",)),
    ("duplicate_gpu", (b"Duplicate GPU detected",)),
    ("nccl_shared_memory", (b"shared memory segment",)),
)  # fmt: skip
_NCCL_CUDA = re.compile(
    rb"Cuda failure (?:\d{1,4} )?'(initialization error|an illegal memory access was encountered"
    rb"|unspecified launch failure|invalid device ordinal|unknown error|invalid argument"
    rb"|peer access is not supported between these two devices|system not yet initialized)'"
)

_SAYS: tuple[tuple[str, tuple[bytes, ...]], ...] = (
    (
        "storage",
        (
            b"Stale file handle", b"Input/output error", b"Remote I/O error",
            b"ransport endpoint is not connected", b"transport endpoint shutdown",
            b"Connection timed out: '",
        ),
    ),
    (
        "peer_lost",
        (
            b"onnection closed by peer", b"onnection reset by peer", b"onnection refused",
            b"Broken pipe", b"ncclRemoteError", b"remote process exit", b"connectFullMesh failed",
            b"communicator was aborted", b"failed to connect to", b"oneway delay",
            b"Socket closed", b"onnection was likely closed",
            b"received errors while waiting for send/recv", b"there are other ranks that didn't",
            b"RendezvousClosedError",
        ),
    ),
    ("gpu_memory", (b"CUDA out of memory", b"CUDA error: out of memory", b"HIP out of memory")),
    ("host_memory", (b"can't allocate memory", b"Cannot allocate memory")),
    ("disk_full", (b"No space left on device",)),
    ("address_in_use", (b"EADDRINUSE", b"ddress already in use")),
    (
        "no_gpu",
        (
            b"no NVIDIA driver", b"No CUDA GPUs are available", b"not compiled with CUDA enabled",
            b"CUDA driver version is insufficient", b"No HIP GPUs are available",
        ),
    ),
    ("shared_memory", (b"is killed by signal: Bus error", b"out of shared memory")),
    ("loader_killed", (b"is killed by signal: Killed",)),
    ("loader_died", (b"DataLoader worker (pid",)),
    ("timeout", (b"imed out", b"imeout", b"failed to pass monitoredBarrier")),
    ("mismatch", (b"mismatch between collectives on ranks", b"DDP expects same model across")),
)  # fmt: skip
"""What an exception's text may say, by words of it; the first counts."""
_OTHERS = (
    (
        "service",
        re.compile(
            rb"/(?:urllib3|requests|httpx|httpcore|aiohttp|botocore|s3transfer|s3fs|gcsfs|azure"
            rb"|google|grpc|redis|huggingface_hub|wandb|mlflow)/|/http/client\.py$|/ssl\.py$"
        ),
    ),
    ("process_lost", re.compile(rb"/multiprocessing/\w{1,40}\.py$")),
)
"""Whom a connection was to that broke, or was waited for, by the file that raises it: no rank."""
_LAUNCHERS_OWN = (
    "ChildFailedError", "SignalException", "RendezvousConnectionError", "ProcessRaisedException",
    "ProcessExitedException",
)  # fmt: skip
"""Exceptions of launchers: they only report."""
_REPORTS = (
    b"See root cause above", b"See stack trace", b"exception in a background process",
    b"Executor failed.",
)  # fmt: skip
"""Words of exceptions that only say so of another process: vLLM's."""
_DIED = ("ActorDiedError", "RayActorError")
_ENDS = (
    (b"Out Of Memory", "out of memory"),
    (b"oom", "out of memory"),
    (b"Segmentation fault", "SIGSEGV"),
    (b"Bus error", "SIGBUS"),
    (b"Aborted", "SIGABRT"),
    (b"Killed", "SIGKILL"),
    (b"Terminated", "SIGTERM"),
)
_RAY_ENDS: dict[str, list[str]] = {
    "SYSTEM_ERROR": [],
    "NODE_OUT_OF_MEMORY": ["signal=SIGKILL", "why=out of memory", "of=host"],
}
"""How a worker of Ray ended, by what Ray calls it: of the first it does not know how."""
_CODE = re.compile(rb"(?:[Ee]xited with )?exit code (\d{1,3})")
_COMPOSER = re.compile(rb"\bRank (\d{1,7}) crashed with exit code (-?\d{1,3})\.")
_COMPOSER_LEFT = re.compile(
    rb"Global rank (\d{1,7}) \(PID (\d{1,10})\) exited with code (-?\d{1,3})\s*$"
)
_COMPOSER_OUTPUT = re.compile(rb"-{10}(Begin|End) global rank (\d{1,7}) ")
"""Composer's launcher: who ended first, how each ended, and what each had printed."""
_JAX = re.compile(rb"/job:\w{1,60}/replica:\d{1,5}/task:(\d{1,7}) heartbeat timeout")
"""JAX's and TensorFlow's coordinator, and all that it tells."""
_JOB_KILLED = re.compile(
    rb"^(?:=>> PBS: job killed: (walltime|mem|vmem|pmem)\b|TERM_([A-Z]{3,12}): job killed)"
)
"""PBS and LSF, in the job's own output."""
_JOB_ENDS = {
    b"walltime": "time limit", b"mem": "out of memory", b"vmem": "out of memory",
    b"pmem": "out of memory", b"RUNLIMIT": "time limit", b"DEADLINE": "deadline",
    b"MEMLIMIT": "out of memory", b"OWNER": "cancelled", b"PREEMPT": "preempted",
}  # fmt: skip
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)(?: \|)? ")
"""What kubectl, docker and clouds put before each line: no two lines of a traceback share it."""


_BY_SIGNAL = 128
"""From here on an exit code is this and a signal's number."""


class _Event(NamedTuple):
    place: int
    code: str
    severity: Severity
    fields: list[str]
    time_ns: int | None = None
    is_said_after: bool = False
    """Whether a launcher says it, after its workers have ended."""


class _Traceback(Struct):
    """One that is being read: all its lines stand behind the same prefix."""

    place: int
    who: list[str]
    is_chained: bool = False
    """Whether it is of no account: raised behind another one, or where it ends nothing."""
    is_in_thread: bool = False
    is_in_summary: bool = False
    own_frame: tuple[bytes, bytes, bytes] | None = None
    """The last that lies in no library."""
    last: tuple[bytes, bytes, bytes] | None = None
    lines_count: int = 0


class _Entry(Struct):
    """A failed worker in torchrun's summary."""

    place: int
    is_root: bool
    given: dict[str, bytes] = field(default_factory=dict)


class _Summary(Struct):
    """What torchrun says of failed workers, as far as it is read."""

    is_root: bool
    """Whether in the part of the first failure."""
    entry: _Entry | None = None


class FailureReader:
    """Takes what ended a job out of its output. Shows each line; consumes none."""

    def __init__(self, sink: Sink, whose: Sequence[str] = ()) -> None:
        """``whose``: the rank or local rank that the file's place names, as fields of an event; its
        one exception is theirs."""
        self._sink = sink
        self._whose = whose
        self._events: list[_Event] = []
        self._left_out = 0
        self._torn = 0
        self._open: dict[bytes, _Traceback] = {}
        self._chained: set[bytes] = set()
        self._aside: dict[bytes, tuple[int, bool]] = {}
        """Where Python said by prefix that an exception ends nothing, and whether in a thread."""
        self._caught: dict[bytes, int] = {}
        """Events of exceptions that were raised in a worker, whose own traceback is to follow."""
        self._nccl: dict[bytes, tuple[int, int]] = {}
        """Events of exceptions of NCCL's by prefix, and how many lines more may say what it was."""
        self._nccl_age = 0
        self._headed: bytes | None = None
        """What stood before the head of a traceback in the line before."""
        self._actor: tuple[int, int] | None = None
        """The event of an actor of Ray that died, and how many lines more may say which."""
        self._told: set[tuple[str, ...]] = set()
        """What is said again and again: that a store went away, or heartbeats."""
        self._forced: set[int] = set()
        """Processes that their launcher had to kill."""
        self._crashed: set[int] = set()
        """Ranks that Composer saw end before it ended the others."""
        self._printed_by: list[str] = []
        """Whose output Composer prints."""
        self._spawned: list[str] = []
        """Whose traceback multiprocessing.spawn is about to print."""
        self._mpi: tuple[int, list[str]] | None = None
        """Place and fields of the process of which mpirun is about to say how it ended."""
        self._summaries: dict[bytes, _Summary] = {}
        """Of torchrun, that have begun: by what stands before each of their lines."""

    @property
    def is_open(self) -> bool:
        """Whether something has begun that further lines belong to."""
        is_told = self._actor is not None or bool(self._summaries)
        return is_told or bool(self._open or self._nccl)

    @property
    def count(self) -> int:
        """What was found so far."""
        return len(self._events)

    def take(self, line: bytes, place: int) -> None:
        """Look at a line."""
        if line[10:11] == b"T" and (stamp := _STAMP.match(line)):
            line = line[stamp.end() :]
        if line[:1] == b"{" and b"Traceback (most" in line:
            self._of_json(line, place)
            return
        if self._actor is not None:
            self._of_actor(line, *self._actor)
        if self._nccl:
            self._last_error(line)
            self._nccl_age += 1
            if self._nccl_age > _NCCL_AGE_LINES:
                self._nccl.clear()
        if self._open:
            self._continue(line)
        if self._summaries:
            self._in_summary(line, place)
        if _KEY.search(line):
            self._begin(line, place)

    def _of_json(self, line: bytes, place: int) -> None:
        """A record of a logger that writes JSON: the traceback is one of its texts."""
        try:
            record = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return
        texts, rank = _texts_and_rank(record, MAX_JSON_DEPTH)
        # What it says twice, as text and as a part of its own, was raised once.
        text = min((t for t in texts if "Traceback (most" in t), key=len, default="")
        printed_by, opened = self._printed_by, dict(self._open)
        self._printed_by, self._open = rank, {}
        for part in text.encode().split(b"\n"):
            if self._open:
                self._continue(part)
            if _KEY.search(part):
                self._begin(part, place)
        self._printed_by, self._open = printed_by, opened

    # --- tracebacks -----------------------------------------------------------------------------

    def _begin(self, line: bytes, place: int) -> None:
        at = line.find(_TRACEBACK)
        if at < 0 and _RICH in line:
            at = max(line.find(_BOX), 0)  # its corner
        if left := _EXIT.search(line):  # behind a bar the launcher's traceback follows in the line
            agent = left["agent"].decode() if left["agent"] else "0"
            fields = [f"agent={agent}", f"local_rank={int(left['local'])}"]
            self._add(
                place, "worker-exit", [*fields, *_ended(left["code"]), f"pid={int(left['pid'])}"]
            )
        if at >= 0:
            prefix = _OF_GROUP.sub(b"  | ", line[:at].removesuffix(_ORIGINAL))
            who = (_who(prefix) or self._printed_by) + self._spawned
            label = _label_of(line)
            summary = self._summaries.get(label)
            entry = None if summary is None else summary.entry
            self._spawned = []
            if entry is not None:
                prefix = label + b"  "  # torchrun's, before each line of a worker's traceback
                rank = _ENTRY_RANK.match(entry.given.get("rank", b""))
                who = [f"rank={int(rank[1])}"] if rank else []
            if len(self._open) < MAX_OPEN and len(prefix) <= MAX_PREFIX_BYTES:
                said_at, is_thread_s = self._aside.pop(prefix, (-_ASIDE_LINES, False))
                is_aside = place - said_at < _ASIDE_LINES
                self._open[prefix] = _Traceback(
                    place,
                    who,
                    prefix in self._chained or (is_aside and not is_thread_s),
                    is_aside and is_thread_s,
                    entry is not None,
                )
                self._headed = prefix
            self._chained.discard(prefix)
        elif part := _PART_HEAD.match(line):
            self._end_entry(part["label"])
            if len(self._summaries) < MAX_OPEN:
                self._summaries[part["label"]] = _Summary(is_root=part["root"] is not None)
        elif srun := _SRUN.search(line):
            ends = _how(srun[3])
            if ends:
                tasks = srun[2].strip(b"[]").decode()
                told = [*_host(srun[1]), f"tasks={tasks}", *ends]
                self._add(place, "task-ended", told, is_said_after=True)
        elif slurm := _SLURM.search(line):
            self._slurm(place, slurm)
        elif event := oom_kill(line):
            self._add(place, *event)
        elif aside := next((words for words in _ASIDE if words in line), None):
            if len(self._aside) < MAX_OPEN:
                self._aside[line[: line.find(aside)]] = place, aside == _IN_THREAD
        elif chain := next((c for c in _CHAINS if c in line), None):
            if len(self._chained) < MAX_OPEN:
                prefix = line[: line.find(chain)]
                self._chained.add(prefix.removesuffix(b"The above exception was the "))
        elif fatal := _FATAL.search(line):
            told = [*_who(line[: fatal.start()]), f"signal={_FATAL_SIGNALS[fatal[1]]}"]
            self._add(place, "fatal-signal", told)
        elif rocm := _ROCM.search(line):
            what = "a hang" if rocm[2] else "a memory access fault"
            told = [*_who(line[: rocm.start()]), "signal=SIGABRT", f"cuda={what}"]
            self._add(place, "fatal-signal", told)
        elif (at := line.find(_WATCHDOG)) >= 0 and (cuda := _CUDA.search(line, at)):
            told = [*_who(line[:at]), "signal=SIGABRT", f"cuda={cuda[1].decode()}"]
            self._add(place, "fatal-signal", told)
        else:
            self._launchers(line, place)

    def _launchers(self, line: bytes, place: int) -> None:
        """What mpirun, DeepSpeed's and Lightning's launchers and shells say of a process."""
        if forced := _FORCED.search(line):
            if len(self._forced) < MAX_EVENTS:
                self._forced.add(int(forced[1]))
        elif spawned := _SPAWNED.search(line):
            self._spawned = [f"local_rank={int(spawned[1])}"]
        elif left := _MPI_LEFT.search(line):
            self._mpi = place, [f"rank={int(left[1])}", *_host(left[3]), f"pid={int(left[2])}"]
            if signal := _MPI_SIGNAL.search(line):
                self._of_mpi(b"-" + signal[1])
        elif aborted := _MPI_ABORT.search(line):
            self._mpi = place, [f"rank={int(aborted[1])}"]
        elif left := _PRTERUN.search(line):
            told = [f"rank={int(left[1])}", *_host(left[3]), f"pid={int(left[2])}", "is_root=1"]
            self._add(place, "worker-failed", told, is_said_after=True)
        elif left := _HYDRA.match(line):
            rank = [f"rank={int(left[1])}"] if left[1] else []
            self._mpi = place, [*rank, *_host(left[3]), f"pid={int(left[2])}"]
        elif self._mpi is not None and (code := _HYDRA_CODE.match(line)):
            (place, fields), self._mpi = self._mpi, None
            number = int(code[2])
            is_signal = code[1] is not None or number > _BY_SIGNAL
            how = _ended(b"-%d" % (number % _BY_SIGNAL) if is_signal else code[2])
            self._add(place, "worker-failed", [*fields, *how], is_said_after=True)
        elif (signal := _HYDRA_SIGNAL.search(line)) and self._events:
            # Of the process that it named just before.
            last = self._events[-1]
            if last.code == "worker-failed":
                kept = [f for f in last.fields if not f.startswith(("exit_code=", "signal="))]
                self._events[-1] = last._replace(fields=[*kept, *_ended(b"-" + signal[1])])
        elif lost := _LOST_NODE.search(line):
            told = ["why=node failure", *_host(lost[1])]
            self._add(place, "job-state", told, is_said_after=True)
        elif first := _MPI_FIRST.search(line):
            self._mpi = place, [f"rank={int(first[1])}"]
        elif self._mpi is not None and (
            code := _MPI_CODE.match(line) or _MPI_ABORT_CODE.match(line)
        ):
            self._of_mpi(code[1])
        elif self._mpi is not None and (signal := _MPI_SIGNAL.match(line)):
            self._of_mpi(b"-" + signal[1])
        elif left := _DEEPSPEED.match(line):
            host = _host(left[1] or b"")
            fields = [f"agent={''.join(host) or 0}", *host]
            fields += ["local_rank=0"] if _IS_ALONE.search(line) else []
            self._add(place, "worker-exit", [*fields, *_ended(left[2])])
        elif died := _VLLM.search(line):
            self._add(place, "worker-exit", ["agent=0", f"local_rank={int(died[1])}"])
        elif crashed := _COMPOSER.search(line):
            self._crashed.add(int(crashed[1]))
            told = [f"rank={int(crashed[1])}", *_ended(crashed[2]), "is_root=1"]
            self._add(place, "worker-failed", told, is_said_after=True)
        elif left := _COMPOSER_LEFT.match(line):
            if int(left[3]):
                told = [f"rank={int(left[1])}", *_ended(left[3]), f"pid={int(left[2])}"]
                # Who does not end at its first signal is killed.
                is_forced = int(left[3]) == -9 and int(left[1]) not in self._crashed
                told += ["is_forced=1"] if is_forced else []
                self._add(place, "worker-failed", told, is_said_after=True)
        elif output := _COMPOSER_OUTPUT.match(line):
            self._printed_by = [f"rank={int(output[2])}"] if output[1] == b"Begin" else []
        elif silent := _JAX.search(line):
            self._add_once(place, "task-ended", [f"task={int(silent[1])}", "says=no_heartbeat"])
        elif killed := _JOB_KILLED.match(line):
            if why := _JOB_ENDS.get(killed[1] or killed[2]):
                self._add(place, "job-state", [f"why={why}"], is_said_after=True)
        elif left := _LIGHTNING.search(line):
            fields = ["agent=0", f"local_rank={int(left[1])}", *_ended(left[3])]
            self._add(place, "worker-exit", [*fields, f"pid={int(left[2])}"])
        elif left := _RAY.search(line):
            # Of an intended end Ray says another type, and so of a worker that its monitor of the
            # host's memory killed.
            ends = _RAY_ENDS.get(left[3].decode())
            if ends is not None:
                told = [*_host(left[1]), *ends, f"pid={int(left[2])}"]
                self._add(place, "task-ended", told)
        elif lost := _STORE.search(line):
            # A port is no host: where the store is kept is all that is of use.
            told = [*_who(line[: lost.start()]), "says=peer_lost"]
            told += [f"lost_{host}" for host in _host(lost[1].removeprefix(b"::ffff:"))]
            self._add_once(place, "store-lost", told)
        elif _TOLD_TO_END.search(line):
            told = ["why=terminated", *_of_pod(line)]
            self._add(place, "job-state", told, is_said_after=True)
        elif left := _SHELL.search(line):
            self._add(
                place, "task-ended", [*_how(left[2]), f"pid={int(left[1])}"], is_said_after=True
            )
        elif alone := _ALONE.get(line.strip().removesuffix(b" (core dumped)")):
            self._add(place, "task-ended", [f"signal={alone}"], is_said_after=True)

    def _of_mpi(self, code: bytes) -> None:
        """How the process ended that mpirun has named."""
        if self._mpi is not None:
            (place, fields), self._mpi = self._mpi, None
            told = [*fields, *_ended(code), "is_root=1"]
            self._add(place, "worker-failed", told, is_said_after=True)

    def _of_actor(self, line: bytes, at: int, left: int) -> None:
        """Which actor died, and how, in the lines behind Ray's exception."""
        fields = self._events[at].fields
        self._actor = (at, left - 1) if left > 1 else None
        if part := _ACTOR_PART.search(line):
            fields += [f"pid={int(part[2])}"] if part[2].isdigit() else _host(part[2])
        elif ended := _ACTOR_ENDED.search(line):
            ends = _RAY_ENDS.get(ended[1].decode()) if ended[1] else None
            # Whatever else Ray calls an end was meant.
            fields += ["signal=SIGTERM"] if ends is None else ends
            self._actor = None

    def _continue(self, line: bytes) -> None:
        head, self._headed = self._headed, None
        if head is not None and not line.startswith(head):
            # A message that ends with the text of a traceback: only its first line has its words.
            at = line.find(b'  File "')
            short, is_first = line[: max(at, 0)], at >= 0
            words = head.removeprefix(short).strip()
            is_text = b" " in words and not words.startswith(b"(")
            if is_first and head.startswith(short) and is_text:
                self._open[short] = self._open.pop(head)
        lengths = sorted({len(p) for p in self._open}, reverse=True)
        prefix = next((line[:n] for n in lengths if line[:n] in self._open), None)
        if prefix is None:
            return
        traceback, rest = self._open[prefix], line[len(prefix) :]
        traceback.lines_count += 1
        if frame := _FRAME.match(rest) or _RICH_FRAME.match(rest):
            traceback.last = frame[1], frame[2], frame[3]
            if not _NOT_OWN.search(frame[1]):
                traceback.own_frame = traceback.last
        elif rest[:1] in (b" ", b"\t", b"", b"\r", b"|", b"+", _BOX):
            if traceback.lines_count > MAX_FRAMES:
                self._torn += 1
                del self._open[prefix]
        elif _RAY_TASK.match(rest):
            self._open[prefix] = _Traceback(traceback.place, _of_actor(rest))
        else:
            del self._open[prefix]
            kind = _TYPE.match(rest)
            if kind is None or not _is_type(kind[1]):
                self._torn += 1
            elif not traceback.is_chained:
                self._raised(traceback, kind[1].decode(), rest, prefix)

    def _raised(self, traceback: _Traceback, kind: str, text: bytes, prefix: bytes) -> None:
        """An exception; the one of a worker instead of the one that passes it on."""
        count = len(self._events)
        self._exception(traceback, kind, text)
        at = self._caught.pop(prefix, None)
        if len(self._events) == count:
            return
        if any(e in text for e in _NCCL_ERRORS) and len(self._nccl) < MAX_OPEN:
            self._nccl[prefix] = count if at is None else at, _NCCL_LINES
            self._nccl_age = 0
        if at is not None:
            self._events[at] = self._events.pop()._replace(place=self._events[at].place)
        elif _CAUGHT.search(text) and len(self._caught) < MAX_OPEN:
            self._caught[prefix] = count

    def _last_error(self, line: bytes) -> None:
        """What NCCL says of the error that PyTorch has raised, in the lines behind."""
        prefix = max((p for p in self._nccl if line.startswith(p)), key=len, default=None)
        if prefix is None:
            return
        at, left = self._nccl.pop(prefix)
        text, event = line[len(prefix) :], self._events[at]
        says = next((what for what, words in _NCCL_SAYS if any(w in text for w in words)), None)
        if cuda := _NCCL_CUDA.search(text):
            fields = [f"cuda={cuda[1].decode()}"]
        elif says is not None:
            fields = [f"says={says}"]
        elif left > 1 and _TRACEBACK not in line:
            self._nccl[prefix] = at, left - 1
            return
        else:
            return
        kept = [f for f in event.fields if not f.startswith(("says=", "cuda="))]
        self._events[at] = event._replace(fields=[*kept, *fields])

    def _exception(self, traceback: _Traceback, kind: str, text: bytes) -> None:
        name = kind.rsplit(".", 1)[-1]
        raised_in = traceback.last[0] if traceback.last is not None else b""
        is_launcher_s = _LAUNCHER_FILE.search(raised_in) or _LAUNCHED.search(text)
        if name in _LAUNCHERS_OWN or is_launcher_s or any(words in text for words in _REPORTS):
            if left := _LEFT.search(text):
                # The launcher that printed it may itself be what another one began.
                fields = [f"agent={name}", *([f"local_rank={int(left[1])}"] if left[1] else [])]
                fields += [f"signal={left[2].decode()}" if left[2] else f"exit_code={int(left[3])}"]
                self._add(traceback.place, "worker-exit", fields)
            return
        if name in _DIED:
            if len(self._events) < MAX_EVENTS:
                self._actor = len(self._events), _ACTOR_LINES
            self._add(traceback.place, "task-ended", [], is_said_after=True)
            return
        who = traceback.who
        if not who and (own := _OWN_RANK.search(text)):
            who = [f"rank={int(own[1] or own[2])}"]
        fields = [*who, f"type={kind}"]
        says = next((what for what, words in _SAYS if any(w in text for w in words)), None)
        if says in ("peer_lost", "timeout"):
            says = next((what for what, files in _OTHERS if files.search(raised_in)), says)
        if name == "OutOfMemoryError":
            says = "host_memory" if kind.startswith("ray.") else "gpu_memory"
        elif name == "MemoryError":
            says = "host_memory"
        fields += [f"says={says}"] if says else []
        fields += ["in_thread=1"] if traceback.is_in_thread else []
        if cuda := _CUDA.search(text):
            fields.append(f"cuda={cuda[1].decode()}")
        frame = traceback.own_frame or traceback.last
        if frame is not None:
            base = frame[0].rpartition(b"/")[2].decode("utf-8", "replace")
            if _FILE.fullmatch(base):
                fields.append(f"file={base}")
            fields += [f"line={int(frame[1])}", f"function={frame[2].decode('ascii', 'replace')}"]
        self._add(
            traceback.place, "python-exception", fields, is_said_after=traceback.is_in_summary
        )

    # --- torchrun's summary ---------------------------------------------------------------------

    def _in_summary(self, line: bytes, place: int) -> None:
        label = _label_of(line)
        summary = self._summaries.get(label)
        if summary is None:
            return  # of another task, or nobody's
        text = line[len(label) :].strip()
        if _ENTRY_HEAD.match(text):
            self._end_entry(label)
            summary.entry = _Entry(place, is_root=summary.is_root)
        elif text.startswith(b"====") and summary.is_root:
            self._end_entry(label)
            del self._summaries[label]
        elif summary.entry is not None and (stated := _ENTRY.match(text)):
            summary.entry.given.setdefault(stated[1].decode(), stated[2])

    def _end_entry(self, label: bytes) -> None:
        summary = self._summaries.get(label)
        if summary is None or summary.entry is None:
            return
        entry, summary.entry = summary.entry, None
        rank = _ENTRY_RANK.match(entry.given.get("rank", b""))
        code = _ENTRY_CODE.match(entry.given.get("exitcode", b""))
        if rank is None or code is None:
            self._torn += 1
            return
        fields = [f"rank={int(rank[1])}", f"local_rank={int(rank[2])}"]
        fields += [*_host(entry.given.get("host", b"")), *_ended(code[1]), f"pid={int(code[2])}"]
        fields += ["is_root=1"] if entry.is_root else []
        fields += ["is_forced=1"] if int(code[2]) in self._forced else []
        at = local_moment(entry.given.get("time", b""))
        self._add(entry.place, "worker-failed", fields, at, is_said_after=True)

    def _slurm(self, place: int, cancelled: re.Match[bytes]) -> None:
        if cancelled[5]:
            ends = ["signal=SIGKILL", "why=out of memory"]
            self._add(place, "task-ended", [*_host(cancelled[1] or b""), *ends], is_said_after=True)
            return
        why = (cancelled[4] or b"").strip().lower().decode() or "cancelled"
        why = "preempted" if why == "preemption" else why
        told, at = [*_host(cancelled[2]), f"why={why}"], local_moment(cancelled[3])
        told += ["of=job"] if b" JOB " in cancelled[0] else []
        self._add(place, "job-cancelled", told, at, is_said_after=True)

    # --- the end --------------------------------------------------------------------------------

    def _add_once(self, place: int, code: str, fields: list[str]) -> None:
        if tuple(fields) not in self._told and len(self._told) < MAX_EVENTS:
            self._told.add(tuple(fields))
            self._add(place, code, fields)

    def _add(
        self,
        place: int,
        code: str,
        fields: list[str],
        time_ns: int | None = None,
        *,
        is_said_after: bool = False,
    ) -> None:
        if len(self._events) < MAX_EVENTS:
            event = _Event(place, code, "error", fields, time_ns, is_said_after)
            self._events.append(event)
        else:
            self._left_out += 1

    @property
    def window_ns(self) -> tuple[int, int] | None:
        """First and last time, without a zone."""
        known = [e.time_ns for e in self._events if e.time_ns is not None]
        return (min(known), max(known)) if known else None

    @property
    def is_any(self) -> bool:
        """Whether anything was found so far."""
        has_entry = any(summary.entry for summary in self._summaries.values())
        return bool(self._events or self._open or has_entry)

    def finish(self, *, keeps_times: bool, silence: Silence | None = None) -> None:
        """Write what was found; times, which state no zone, only where the file's others do not.
        The first of what stands behind a ``silence`` tells of it."""
        for label in self._summaries:
            self._end_entry(label)
        self._torn += len(self._open)
        events = sorted(self._events)
        if silence is not None:
            behind = next((e for e in events if e.place >= silence.place), None)
            if behind is not None:
                behind.fields.append(f"silent_ns={silence.lasted_ns}")
        if self._whose and len(events) == 1 and _is_nobodys(events[0]):
            # Of several the file may be a console's, which shows what all of a node print.
            events = [events[0]._replace(fields=[*self._whose, *events[0].fields])]
        if events:
            rows = [
                (e.place, e.code, e.severity, [f"round={number}", *e.fields],
                 e.time_ns if keeps_times else None)
                for number, e in zip(_rounds(events), events, strict=True)
            ]  # fmt: skip
            columns = ("place", "code", "severity", "fields", "time_ns")
            write_columns(
                self._sink, "log_event",
                dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)),
            )  # fmt: skip
        count = self._sink.count
        count("failure_line", len(events), severity="info", doc="Lines that tell of a failure.")
        count("torn_traceback", self._torn, severity="info", doc="Tracebacks without their end.")
        count("failure_left_out", self._left_out, doc="Failures beyond those kept of one file.")


def _is_nobodys(event: _Event) -> bool:
    """Whether it is an exception, and nothing says whose."""
    whose = ("rank=", "local_rank=", "task=", "host=", "agent=", "pid=")
    return event.code == "python-exception" and not any(f.startswith(whose) for f in event.fields)


def oom_kill(line: bytes) -> tuple[str, list[str]] | None:
    """Code and fields of the kernel's line that it killed a process for want of memory."""
    killed = _OOM_KILL.search(line)
    if killed is None:
        return None
    fields = [f"pid={int(killed['pid'])}", "signal=SIGKILL", "why=out of memory"]
    fields += ["of=cgroup"] if killed["cgroup"] != b"O" else ["of=host"]
    if killed["rss"]:
        fields.append(f"anonymous_bytes={int(killed['rss']) * 1024}")
    return "oom-kill", fields


def _rounds(events: list[_Event]) -> Iterator[int]:
    """Which launch each event belongs to. A launch ends with the last of the exits that several
    launchers see of it; what one launcher sees twice are two launches."""
    exits = [e for e in events if e.code == "worker-exit"]
    number, seen, numbers = 0, set[str](), list[int]()
    for event in exits:
        agent = event.fields[0]
        if agent in seen:
            number, seen = number + 1, set()
        seen.add(agent)
        numbers.append(number)
    places = [e.place for e in exits]
    for event in events:
        at = bisect_left(places, event.place)
        if event.is_said_after:
            yield numbers[at - 1] if at else 0
        else:  # up to the next exit; behind the last one, of a launch that nobody saw end
            yield numbers[at] if at < len(numbers) else number + bool(numbers)


def _texts_and_rank(value: Any, depth: int) -> tuple[list[str], list[str]]:
    """The texts within a value of JSON, and the rank that a part of it states."""
    texts: list[str] = []
    rank: list[str] = []
    for key, inner in value.items() if isinstance(value, dict) and depth else ():
        if isinstance(inner, str):
            texts.append(inner)
        elif key == "rank" and type(inner) is int and 0 <= inner < MAX_RANK:
            rank = [f"rank={inner}"]
        elif isinstance(inner, dict):
            further, stated = _texts_and_rank(inner, depth - 1)
            texts, rank = texts + further, rank or stated
    return texts, rank


def _who(prefix: bytes) -> list[str]:
    """Rank, local rank and task that stand before a line."""
    who = []
    for name, pattern in (("rank", _RANK), ("local_rank", _LOCAL)):
        if part := pattern.search(prefix):
            who.append(f"{name}={int(part[1])}")
    if not who and (part := _MPI_RANK.search(prefix)):
        who.append(f"rank={int(part[1])}")
    if not who and (part := _TASK.match(prefix)):
        who.append(f"task={int(part[1])}")
    return who + _of_pod(prefix) + _of_actor(prefix)


def _of_actor(text: bytes) -> list[str]:
    part = _ACTOR.search(text)
    return [f"pid={int(part[1])}", *_host(part[2] or b"")] if part else []


def _label_of(line: bytes) -> bytes:
    """What srun put before a line."""
    at = _LABEL.match(line)
    return at[0] if at else b""


def _of_pod(prefix: bytes) -> list[str]:
    part = _POD.match(prefix) or _STERN.fullmatch(prefix)
    return _host(part[1]) if part else []


def _host(name: bytes) -> list[str]:
    known = stated_host(name.decode("utf-8", "replace"))
    return [f"host={known}"] if known else []


def _ended(code: bytes) -> list[str]:
    """Exit code, or the signal's number where it is negative."""
    number = int(code)
    return [f"exit_code={number}"] if number >= 0 else [ended_by_signal(-number)]


def ended_by_signal(number: int) -> str:
    """The field that names a signal: ``signal=SIGKILL``, or its number where it has no name."""
    import signal

    try:
        return f"signal={signal.Signals(number).name}"
    except ValueError:
        return f"signal={number}"


def _how(text: bytes) -> list[str]:
    """What srun says of a task's end."""
    if code := _CODE.search(text):
        return [f"exit_code={int(code[1])}"]
    for word, name in _ENDS:
        if word in text:
            is_memory = name == "out of memory"
            return ["signal=SIGKILL", f"why={name}"] if is_memory else [f"signal={name}"]
    return []


def local_moment(text: bytes) -> int | None:
    """ns as if in UTC of a time without a zone."""
    moment = _ENTRY_TIME.match(text.replace(b"T", b"_"))
    if moment is None:
        return None
    try:
        at = datetime(*(int(x) for x in moment.groups()), tzinfo=UTC)  # type: ignore[misc,arg-type]  # six integers
    except ValueError:
        return None
    return int(at.timestamp()) * 10**9


def _is_type(word: bytes) -> bool:
    """Whether a word is the name of an exception: of a module, or with capitals inside."""
    name = word.rsplit(b".", 1)[-1]
    return name[:1].isupper() and any(c.islower() for c in name.decode("ascii", "replace"))

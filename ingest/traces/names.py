"""What a name says: pure functions from the name of a kernel or range to what it is."""

from __future__ import annotations

import re
from typing import NamedTuple


class KernelClass(NamedTuple):
    """Class (communication or compute), library and operation that a kernel's name shows."""

    klass: str
    library: str | None
    op: str | None
    reduction: str | None = None
    dtype: str | None = None


COMPUTE = KernelClass("compute", None, None)
POINT_TO_POINT = {"send", "recv", "send_recv"}
"""Operations of two ranks."""


def is_point_to_point(op: str) -> bool | None:
    """Whether an operation is one of two ranks; None where the operation is unknown."""
    return None if op == "unknown" else op in POINT_TO_POINT


def may_be(shown: str | None, op: str) -> bool:
    """Whether a kernel whose name shows ``shown`` can be what else is said to be ``op``."""
    return shown in (None, "unknown", op) or (
        shown == "send_recv" and op in ("send", "recv", "all_to_all", "scatter", "gather")
    )


_NCCL = re.compile(r"nccl(?:Sym)?(?:Dev|Sym)?Kernel|^nccl[A-Z_:]|^void nccl|ncclSymk")
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\bmscclpp\b|\bmsccl\w*(?:Kernel|::)|mscclKernel", re.I), "mscclpp"),
    (re.compile(r"\bdpsk::ep::|\bdeep_ep::|\bdeepep::|\bdeep_ep\w*(?:dispatch|combine)"), "deepep"),
    (re.compile(r"nvshmem", re.I), "nvshmem"),
    (
        re.compile(
            r"multimem_|symm_?mem|one_shot_all_reduce|two_shot_all_reduce|stream_write_value"
        ),
        "symm_mem",
    ),
    (
        re.compile(
            r"cross_device_reduce|custom_all_?reduce|\bvllm::.{0,400}all_?reduce"
            r"|(?:trtllm|lamport)\w{0,200}all_?reduce|allreduce_fusion_kernel|quickreduce",
            re.I,
        ),
        "custom_all_reduce",
    ),
    (re.compile(r"^hccl(?:::|_|[A-Z])|\bhccl::|^hcom_", re.I), "hccl"),
    (re.compile(r"^gloo[:_]|^gloo_"), "gloo"),
    (re.compile(r"^rccl|\brccl[A-Z_]|\brccl::"), "rccl"),
    (re.compile(r"oneccl|\bccl::|^ccl_", re.I), "oneccl"),
    (_NCCL, "nccl"),
)

_WORDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.I), op)
    for pattern, op in (
        (r"dispatch", "dispatch"),
        (r"combine", "combine"),
        (r"reduce_?scatter", "reduce_scatter"),
        (r"all_?gather", "all_gather"),
        (r"all_?to_?all|alltoall", "all_to_all"),
        (r"all_?reduce|cross_device_reduce|quickreduce", "all_reduce"),
        (r"send_?recv", "send_recv"),
        (r"broadcast|\bbcast", "broadcast"),
        (r"barrier", "barrier"),
        (r"scatter", "scatter"),
        (r"gather", "gather"),
        (r"reduce", "reduce"),
        (r"isend|\bsend|_send", "send"),
        (r"irecv|\brecv|_recv|receive", "recv"),
    )
)

_REDUCTION = re.compile(
    r"_(Sum|Prod|MinMax|Min|Max|Avg|PreMulSum|SumPostDiv)_([A-Za-z0-9_]{1,40}?)(?:\(|$|_RING|_TREE)"
)
_GROUPED = re.compile(r"^(?:start|end)?_?coalesc|^group", re.I)


def classify_kernel(name: str) -> KernelClass:
    """Class, library and operation of a kernel, from its name alone.

    ROCm's own ``hip*`` kernels are compute: only communication libraries are communication.
    """
    for pattern, library in _RULES:
        if pattern.search(name):
            return KernelClass("communication", library, operation(name, library), *_typed(name))
    return COMPUTE


def operation(name: str, library: str | None = None) -> str:
    """The operation that a kernel's name shows; ``unknown`` where it shows none."""
    head = name.replace("(anonymous namespace)", "").split("(", 1)[0]
    if library == "nccl" and "Generic" in head:
        return "unknown"
    return _word(head) or "unknown"


def _word(text: str) -> str | None:
    return next((op for pattern, op in _WORDS if pattern.search(text)), None)


def _typed(name: str) -> tuple[str | None, str | None]:
    reduction = _REDUCTION.search(name)
    if not reduction or ("AllReduce" not in name and "Reduce" not in name):
        return None, None
    return reduction[1].lower(), reduction[2]


_PLAIN = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allreduce_sparse": "all_reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "_all_gather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_allv": "all_to_all",
    "recvanysource": "recv",
    "wait": "wait",
    "monitored_barrier": "barrier",
}


def collective_name(text: str) -> str:
    """The registry's word for a producer's collective name (``allreduce`` -> ``all_reduce``)."""
    plain = text.strip().lower()
    if plain in _PLAIN:
        return _PLAIN[plain]
    if _GROUPED.search(plain):
        return "unknown"
    return _word(plain) or "unknown"


_RANGE = re.compile(r"^(nccl|gloo|rccl|hccl|xccl|ucc|mpi):\s*([A-Za-z_]+)")


def collective_range(name: str) -> tuple[str, str] | None:
    """Library and operation of a range such as ``nccl:all_reduce``; None for other ranges."""
    range_match = _RANGE.match(name)
    return (range_match[1], collective_name(range_match[2])) if range_match else None


_STEP = re.compile(r"^ProfilerStep#?\s*(\d{1,15})$")
_GC = re.compile(
    r"^Python GC|\bgc\.collect\b|\bgc_collect\b|<built-in (?:function|method) collect\b"
)
_INPUT = re.compile(
    r"^enumerate\(DataLoader\)#|(?:^|[./ ])DataLoader\w*(?:\.|: )__next__"
    r"|utils/data/dataloader\.py\(\d+\): __next__"
    # Ranges of people and trainers whose whole name says that the loop takes its batch there.
    r"|^(?:data(?:[_ -]?load(?:er|ing)?)?"
    r"|(?:load|get|fetch|next|read)[_ -](?:next[_ -])?(?:batch|data)"
    r"|batch[_ -](?:generator|fetch)|data[_ -](?:fetch|wait|prep|iter)|train_dataloader_next)$",
    re.I,
)
_CHECKPOINT = re.compile(
    r"save_?checkpoint|checkpoint_?(?:save|saving|write)|^torch\.save\b"
    r"|torch/serialization\.py\(\d+\): save$"
    r"|\b(?:dcp|distributed[./]checkpoint)\S*(?:\(\d+\): |[._: ])(?:async_)?save\b"
    r"|^(?:checkpoint|checkpointing|ckpt|write_checkpoint|async_save)$",
    re.I,
)
_NOT_SAVING = re.compile(
    r"activation|recompute|CheckpointFunction|checkpoint_wrapper|utils[./]checkpoint", re.I
)


def step_number(name: str) -> int | None:
    """N of ``ProfilerStep#N``; None for other names."""
    step = _STEP.match(name)
    return int(step[1]) if step else None


def special_domain(name: str) -> str | None:
    """The domain of a range or frame that a diagnosis looks for; None for ordinary ones."""
    if name.startswith("ProfilerStep"):
        return "profiler_step" if step_number(name) is not None else None
    if collective_range(name):
        return "collective"
    if _INPUT.search(name):
        return "python_input"
    if _GC.search(name):
        return "python_gc"
    if _CHECKPOINT.search(name) and not _NOT_SAVING.search(name):
        return "checkpoint"
    return None


_LAUNCH = re.compile(r"launch|memcpy|memset|graph|dispatch|enqueue|copy|fill", re.I)


def is_launch(name: str) -> bool:
    """Whether a CUDA or HIP call of that name can put work on a device."""
    return bool(_LAUNCH.search(name))


_SYNC_KINDS = (
    ("wait event", "stream_wait_event"),
    ("event", "event"),
    ("stream", "stream"),
    ("context", "context"),
    ("device", "context"),
)


def sync_kind(text: str) -> str | None:
    """The registry's word for a synchronisation (``Stream Wait Event``)."""
    plain = text.lower()
    return next((kind for word, kind in _SYNC_KINDS if word in plain), None)


_COPY = re.compile(r"\b([HDPAU])to([HDPAU])\b")


def copy_kind(name: str) -> str | None:
    """``HtoD`` of ``Memcpy HtoD (Pinned -> Device)``."""
    copied = _COPY.search(name)
    return copied[0] if copied else None


_NAME_RANKS = (
    re.compile(r"(?:^|[^a-z])(?:global_?)?rank[-_.]?(\d{1,6})(?!\d)", re.I),
    re.compile(r"kineto[-_](\d{1,6})(?!\d)", re.I),
    re.compile(r"(?:^|[^a-z])worker[-_]?(\d{1,6})(?!\d)", re.I),
)


def rank_of_name(name: str) -> int | None:
    """The rank that a file's name suggests; None when none."""
    for pattern in _NAME_RANKS:
        rank_match = pattern.search(name)
        if rank_match:
            return int(rank_match[1])
    return None


_WORDS_OF_SECRETS = (
    r"(?:token|secret|passw(?:or)?d|passphrase|api[-_]?key|access[-_]?key|private[-_]?key"
    r"|credentials?|authorization)"
)
_IN_VALUE = r"^\s\"',;&)"
# Each repetition that may fail has a limit: without one, a long word would take its square.
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            rf"({_WORDS_OF_SECRETS}\w{{0,64}}+[\"']?\s{{0,8}}+(?:=\s{{0,8}}+[\"']?(?=[{_IN_VALUE}]{{3}})"
            rf"|:(?!:)\s{{0,8}}+[\"']?(?=\S{{0,128}}?\d)(?=[{_IN_VALUE}]{{6}})))[{_IN_VALUE}]+",
            re.I,
        ),
        r"\1***",
    ),
    (
        re.compile(
            rf"((?<![\w-])--?[\w-]{{0,40}}{_WORDS_OF_SECRETS}(?![a-z])[\w-]{{0,40}}\s{{1,4}})"
            rf"(?!-)[{_IN_VALUE}]{{3,}}",
            re.I,
        ),
        r"\1***",
    ),
    (re.compile(r"(\bbearer\s+)[\w.~+/-]{6,}=*", re.I), r"\1***"),
    (re.compile(r"(://[^\s/:@]+:)[^\s/@]+(?=@)"), r"\1***"),
    (
        re.compile(
            r"\b(?:hf_\w{20,}|gh[pousr]_\w{20,}|glpat-[\w-]{16,}|AKIA[0-9A-Z]{16}|sk-[\w-]{20,}"
            r"|xox[abprs]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]+(?:\.[\w-]+)?)"
        ),
        "***",
    ),
)
"""What a secret looks like in a name that a user chose, and what is left of it."""


_PROGRAM = re.compile(r"[\w.+-]{1,64}")


def program(name: str | None) -> str | None:
    """The program of a process's name; never its arguments, of which one may be a credential."""
    word = next(iter((name or "").split()), "").rsplit("/", 1)[-1]
    return word if _PROGRAM.fullmatch(word) else None


def redact(name: str) -> str:
    """A name without what looks like a secret in it; nearly always the name itself."""
    for pattern, replacement in _SECRETS:
        name = pattern.sub(replacement, name)
    return name

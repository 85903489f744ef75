"""What frameworks name the operations of a pipeline.

torch pipelining (``PP:0F3``, ``Forward 3``), Megatron (``forward-compute``, ``weight_grad``,
``W3.0``), DeepSpeed (``_exec_forward_pass``) or the loop's own ``pp_fwd mb3``.
"""

from __future__ import annotations

import re

from msgspec import Struct

FORWARD, BACKWARD, WEIGHT = "forward-compute", "backward-compute", "weight-compute"
_TORCH_COMPUTE = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": WEIGHT}
_TORCH = re.compile(r"PP:(\d+)(?:(SEND|RECV)_)?(F|B|I|W)(\d+)")
_NUMBERED = re.compile(
    r"(?:pp[_ -]?)?(f(?:or)?wa?r?d|b(?:ack)?wa?r?d)[_ -]*(?:pass|step|compute)?[_ :-]*"
    r"(?:mb|micro_?batch)?[_ :#-]*(\d+)",
    re.IGNORECASE,
)
_UNNUMBERED = re.compile(
    r"(?:[\w.]*\.)?_?(?:exec_)?(forward|backward)(?:[-_](?:compute|step|pass))?", re.IGNORECASE
)
# The weights' part of a split backward.
_WEIGHT = re.compile(
    r"(?:[\w.]*\.)?_?(?:exec_)?"
    r"(?:weight[-_]?grad(?:ient)?s?|wgrad|weight[-_]compute|"
    r"b(?:ack)?wa?r?d[-_](?:weights?|wgrad|dw))(?:[-_](?:compute|step|pass))?"
    r"(?:[_ :-]*(?:mb|micro_?batch)[_ :#-]*(\d+))?|Weight (\d+)",
    re.IGNORECASE,
)
# Zero-bubble Megatron: kind and microbatch, then chunk and part of the sequence.
_CHUNKED = re.compile(r"(F|BW?|W)(\d+)\.(\d+)(?:\.(\d+))?")
_CHUNKED_KINDS = {"F": FORWARD, "B": BACKWARD, "BW": BACKWARD, "W": WEIGHT}


class RangeName(Struct, frozen=True):
    """What the name of a range says of a pipeline operation."""

    operation: str
    stage: int | None = None
    microbatch: int | None = None


def read_name(name: str) -> RangeName | None:
    """What a range's name says; None where it is no pipeline operation."""
    torch = _TORCH.fullmatch(name)
    if torch:
        stage, direction, kind, microbatch = torch.groups()
        if direction is None:
            return RangeName(_TORCH_COMPUTE[kind], int(stage), int(microbatch))
        word = {"F": "forward", "B": "backward"}.get(kind)
        if word is None:
            return None
        return RangeName(f"{word}-{direction.lower()}", int(stage), int(microbatch))
    weight = _WEIGHT.fullmatch(name)
    if weight:
        microbatch = weight[1] or weight[2]
        return RangeName(WEIGHT, None, int(microbatch) if microbatch else None)
    chunked = _CHUNKED.fullmatch(name)
    if chunked:
        return (
            None if is_part(name) else RangeName(_CHUNKED_KINDS[chunked[1]], None, int(chunked[2]))
        )
    numbered = _NUMBERED.fullmatch(name)
    if numbered:
        return RangeName(_kind(numbered[1]), None, int(numbered[2]))
    unnumbered = _UNNUMBERED.fullmatch(name)
    return RangeName(_kind(unnumbered[1])) if unnumbered else None


def is_part(name: str) -> bool:
    """Whether a range is one of several chunks or parts: which stage that is, it does not say."""
    chunked = _CHUNKED.fullmatch(name)
    return chunked is not None and any(int(part) for part in chunked.groups()[2:] if part)


def _kind(word: str) -> str:
    return FORWARD if word[:1].lower() == "f" else BACKWARD

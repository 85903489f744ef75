"""Readers of text take time in proportion to the text, whatever it holds."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from memory_sink import MemorySink, source_of

from hostile_patterns import slowest_s
from soaks import soak
from tracekit.ingest import IngestOptions, ingestor, recognise
from tracekit.ingest.kineto import salvage

LENGTH = 8000
LIMIT_S = 0.03
"""A linear pattern takes about 0.0002 s for a text of this length, a quadratic one 0.05 and up."""
PACKAGES = ("tracekit.ingest", "tracekit.jobs_import")
BOUNDED: dict[str, int] = {
    # The reader cuts what it gives these.
    "tracekit.ingest.nccl.messages.": 4096,  # lines.MAX_MESSAGE_BYTES
    "tracekit.ingest.nsys.steps._MARKER": 300,  # MAX_NAME
    "tracekit.ingest.counters.times._STAMP_LINE": 100,  # of_line's own limit
}


def _modules() -> Iterator[ModuleType]:
    for name in PACKAGES:
        package = importlib.import_module(name)
        yield package
        for found in pkgutil.walk_packages(package.__path__, name + "."):
            yield importlib.import_module(found.name)


def _patterns(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, re.Pattern[Any]]]:
    if isinstance(value, re.Pattern):
        yield name, value
    elif hasattr(value, "regex"):
        yield from _patterns(f"{name}.regex", value.regex, depth)
    elif isinstance(value, (tuple, list)) and depth < 3:
        for index, item in enumerate(value):
            yield from _patterns(f"{name}[{index}]", item, depth + 1)
    elif isinstance(value, dict) and depth < 3:
        for index, item in enumerate(value.values()):
            yield from _patterns(f"{name}[{index}]", item, depth + 1)


def _methods(module: ModuleType, name: str) -> list[str]:
    """How the module applies a pattern; searching where that is not seen."""
    base = re.split(r"[.\[]", name)[0]
    used = set(
        re.findall(
            rf"\b{re.escape(base)}\.(search|match|fullmatch|finditer|findall|sub|split)\b",
            inspect.getsource(module),
        )
    )
    return sorted({m if m in ("match", "fullmatch") else "search" for m in used} or {"search"})


_METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split")


def _inline(module: ModuleType) -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Patterns that a function writes where it uses them: place, pattern, method."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr=method),
                args=[ast.Constant(value=str() | bytes() as text), *_],
            ) if method in _METHODS:
                flags = 0
                for keyword in node.keywords:
                    if keyword.arg == "flags":
                        code = compile(ast.Expression(keyword.value), "flags", "eval")
                        flags = eval(code, {"re": re})  # noqa: S307 - the module's own source
                method = method if method in ("match", "fullmatch") else "search"
                yield f"line {node.lineno}", re.compile(text, flags), method


def _slow(module: ModuleType) -> Iterator[str]:
    for place, pattern, method in _inline(module):
        took = slowest_s(pattern, method, LENGTH, LIMIT_S)
        if took > LIMIT_S:
            yield f"{module.__name__} {place}: {took:.2f} s for {LENGTH} characters"
    for variable, value in vars(module).items():
        for name, pattern in _patterns(variable, value):
            whole = f"{module.__name__}.{name}"
            length = next((n for key, n in BOUNDED.items() if whole.startswith(key)), LENGTH)
            for method in _methods(module, name):
                took = slowest_s(pattern, method, length, LIMIT_S)
                if took > LIMIT_S:
                    yield f"{whole}.{method}: {took:.2f} s for {length} characters"


@pytest.mark.slow
@pytest.mark.parametrize("module", list(_modules()), ids=lambda m: m.__name__)
def test_no_pattern_takes_the_square_of_its_text(module: ModuleType) -> None:
    assert list(_slow(module)) == []


def test_a_pattern_that_takes_the_square_is_found() -> None:
    assert slowest_s(re.compile(r"[a-z]+:\d"), "search", LENGTH, LIMIT_S) > LIMIT_S
    assert slowest_s(re.compile(r"(?<![a-z])[a-z]++:\d"), "search", LENGTH, LIMIT_S) <= LIMIT_S


WORDS = ("a", "0", "a.", "a:1:1 ", " NCCL INFO ", "h:1:1 [0] NCCL INFO ", "{", "[rank0] ", "\x1b[")
READERS = ("nccl", "job_log", "nccl_ras", "nccl_inspector", "slurm_jobs")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("word", WORDS)
def test_one_long_line_is_read_in_bounded_time(reader: str, word: str) -> None:
    sizes = (100_000, 400_000)
    took = []
    for size in sizes:
        log = word * (size // len(word)) + " NCCL INFO x\nh:1:1 [0] NCCL INFO NCCL version 2.20.5\n"
        begun = time.process_time()
        ingestor(reader).read(source_of(log.encode(), "slurm-1.out"), MemorySink(), IngestOptions())
        took.append(time.process_time() - begun)
    # Four times the text: four times the time, or little; its square is sixteen times.
    assert took[1] < 9 * took[0] + 0.3


DAMAGED = (b'"', b'\\"', b'"name":"', b':"', b",", b", ", b"{,", b'"a', b'{"a', b":  ", b"\\")


@pytest.mark.parametrize("word", soak(DAMAGED, fast=4))
def test_damaged_events_are_repaired_in_bounded_time(word: bytes) -> None:
    took = []
    for size in (50_000, 200_000):
        begun = time.process_time()
        salvage.repair(b'{"ph":"X",' + word * (size // len(word)) + b"X")
        took.append(time.process_time() - begun)
    assert took[1] < 9 * took[0] + 0.3


HEADS = (*WORDS, '{"schema":"1', '{"schema": "1" ')


@pytest.mark.parametrize("word", HEADS)
def test_a_file_of_one_long_word_is_recognised_at_once(word: str) -> None:
    begun = time.process_time()
    recognise(source_of((word * 70_000).encode(), "slurm-1.out"))
    assert time.process_time() - begun < 1.5

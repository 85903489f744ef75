"""Every command that a report prints does what it says when it is pasted into a shell.

A shell reads the words, in the folder in which the report was made; then they run as a user's do.
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nsys_exports import export_of

import nccl_logs
from soaks import soak
from tracekit import api
from tracekit.cli import app as cli
from tracekit.dashboards import look
from traces import make_trace, write_job

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"
CODE = re.compile(r"<code>(tracekit .*?)</code>")
SPAN = re.compile(r"(?<!`)(`+)(?!`) ?(tracekit .*?) ?\1(?!`)")
VERBS = {
    "diagnose", "show", "query", "explain", "capture", "job", "plot", "whatif", "expect", "timeline"
}  # fmt: skip
DESCRIPTION = """\
name = "it's mine"
[parallelism]
dp = 2
"""

Words = list[str]


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("NO_COLOR", "1")
        # Commands stand beside a page's figures, never in them: to draw these takes longest.
        patch.setattr(look, "inline_svg", lambda _, name: f"<svg><title>{name}</title></svg>")
        yield


def copied(name: str, to: str) -> str:
    """Files of a fixture under another name."""
    source = FIXTURES / name
    (shutil.copytree if source.is_dir() else shutil.copy)(source, to)
    return to


def ranks(name: str, to: str) -> Words:
    """Traces of a fixture, each of them named."""
    return sorted(str(p) for p in Path(copied(name, to)).glob("*.json.gz"))


def written(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def described() -> Words:
    write_job(Path("job"), stall_ms=50)
    return [
        *("job", "--job", written("my job.toml", DESCRIPTION)),
        *("--config", written("my $limits.toml", "[rules.dataloader-stall]\n")),
    ]


def kept() -> Words:
    write_job(Path("job"), stall_ms=50)
    with api.ingest("job", run="runs & more; rm -rf"):
        return ["runs & more; rm -rf"]


def counters() -> Words:
    rows = ["timestamp, index, uuid, temperature.gpu, clocks.current.sm [MHz]"]
    rows += [
        f"2026/07/21 03:01:{second:02}.000, {gpu}, GPU-{gpu}, {60 + gpu}, 1980 MHz"
        for second in range(20)
        for gpu in range(4)
    ]
    return [written("$HOME `id` !!.csv", "\n".join(rows) + "\n")]


def dead_gpu() -> Words:
    line = (
        "[Mon Jul 20 03:01:07 2026] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n"
    )
    return [written("dmesg\twith\x1b[31m.log", line)]


def nsys() -> Words:
    Path("[a-z]*").mkdir()
    traces = [make_trace(rank, stall_ms=50) for rank in range(2)]
    return [str(export_of(traces, Path("[a-z]*/job?.sqlite")))]


INPUTS: dict[str, Callable[[], Words]] = {
    "a folder with blanks and quotes": lambda: [
        copied("twins/ddp-two-faults", "traces of monday, it's \"here\"")
    ],
    "each rank's file": lambda: ranks("recorded/pp-uneven-stages", "two  blanks"),
    "some steps of some ranks": lambda: [
        copied("recorded/ep-hot-expert", "ep"), "--ranks", "0-2", "--steps", "7-10",
    ],
    "a description and thresholds": described,
    "a kept run": kept,
    "nothing to fix": lambda: [copied("recorded/ddp-healthy", "healthy|sick")],
    "a training log": lambda: ["./" + copied("logs/huggingface-trainer.log", "-of <tuesday>.log")],
    "a launcher's log": lambda: [copied("logs/torchrun-raise.log", "it's;here.log")],
    "pressure of hosts": lambda: [copied("hosts", "~")],
    "NCCL's log": lambda: [written("nccl (1).log", nccl_logs.job("2.21.5"))],
    "counters alone": counters,
    "a kernel's log": dead_gpu,
    "an export of Nsight": nsys,
    "unprintable names": lambda: [copied("recorded/tp-healthy", "\u202egnp.exe\n$(id)'\\")],
}  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    shown = capsys.readouterr()
    return int(str(ended.value.code)), shown.out, shown.err


def in_shell(command: str) -> Words:
    """The words that a shell makes of a line."""
    done = subprocess.run(
        ["bash", "-c", f"set -f; tracekit() {{ printf '%s\\0' \"$@\"; }}; {command}"],
        check=True, capture_output=True, timeout=20,
    )  # fmt: skip
    assert done.stderr == b"", command
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


def printed(text: str) -> set[str]:
    """Commands of a text for a terminal: from their first word to where a sentence goes on, which
    is outside of quotes a semicolon, three blanks, or the end."""
    found = set()
    for start in re.finditer(r"\btracekit (?=[a-z])", text):
        quote, end = "", start.end()
        while end < len(text) and text[end] != "\n":
            char = text[end]
            if quote:
                end += char == "\\" and quote == "$'"
                quote = "" if char == quote[-1] else quote
            elif char in "'\"":
                quote = "$'" if text[end - 1] == "$" else char
            elif char == ";" or text.startswith("   ", end):
                break
            end += 1
        found.add(text[start.start() : end].rstrip())
    return {c for c in found if c.split()[1] in VERBS}


def shown(capsys: pytest.CaptureFixture[str], words: Words) -> set[str]:
    """Commands in everything that is made of one input."""
    code, text, _ = run(capsys, "diagnose", *words)
    assert code == 0
    commands = printed(text) | printed(run(capsys, "diagnose", *words, "--all")[1])
    page = run(capsys, "diagnose", *words, "--format", "html")[1]
    listed = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", page, re.DOTALL)
    in_page = {html.unescape(c) for c in CODE.findall(page)}
    in_page |= {html.unescape(c) for block in listed for c in block.splitlines()}
    ticket = run(capsys, "diagnose", *words, "--format", "markdown")[1]
    in_ticket = {
        (found[2].replace("\\|", "|") if line.startswith("| ") else found[2])
        for line in ticket.splitlines() for found in SPAN.finditer(line)
    }  # fmt: skip
    assert any(c.startswith("tracekit diagnose ") for c in in_page)
    for show in [c for c in commands if c.startswith("tracekit show ")]:
        commands |= printed(run(capsys, *in_shell(show))[1])
    assert {c for c in commands if " explain " in c} <= in_page | in_ticket | commands
    return commands | in_page | in_ticket


@pytest.mark.parametrize(
    "name",
    soak(INPUTS, fast=["a description and thresholds", "unprintable names"]),
)
def test_commands_of_a_report_run_as_they_are_pasted(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = INPUTS[name]()
    commands = shown(capsys, words)
    asked = [c for c in commands if c.split()[1] not in ("explain", "capture", "expect")]
    assert asked
    for command in sorted(commands):
        code, _, errors = run(
            capsys, *in_shell(command), *(["--force"] if " -o " in command else [])
        )
        assert (code, errors if code else "") == (0, ""), command

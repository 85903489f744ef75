"""What to do next, in the words of the files that were given, so that commands run as printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from tracekit.findings import Finding
from tracekit.report.model import InputFile
from tracekit.report.without_steps import CAPTURE_STEPS
from tracekit.rules.base import Facts
from tracekit.wording import shell_path

EXPORT_COMMAND = "nsys export --type=sqlite --include-blobs=true REPORT.nsys-rep"

MARKED_RANGES = (
    "mark each step with an NVTX range (torch.cuda.nvtx.range_push('step 12')) and capture five "
    "or more after warm-up"
)


def command(text: str | None, facts: Facts) -> str | None:
    """The text with its commands about the files that were given, so that they run as printed."""
    if text is None:
        return None
    job = facts.description.files if facts.description is not None else ()
    if len(job) == 1:
        text = text.replace("--job job.toml", f"--job {shell_path(job[0])}")
    return facts.job.target.filled(text) if facts.job.target is not None else text


def filled(finding: Finding, facts: Facts) -> Finding:
    """The finding with its commands about the files that were given."""

    def each(texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(command(text, facts) or "" for text in texts)

    return replace(
        finding,
        confirm=each(finding.confirm),
        remedy=each(finding.remedy),
        next_capture=each(finding.next_capture),
    )


def next_step(inputs: Sequence[InputFile], judged: str | None) -> str | None:
    """The judgement's next step, in the words of the kind of files that were given."""
    usable = {i.kind for i in inputs if i.status in ("ok", "partial")} - {"nsys_report"}
    if not usable:
        reports = [i for i in inputs if i.kind == "nsys_report"]
        if reports:
            from tracekit.ingest.nsys.sniff import export_command

            path, told = reports[0].path, (reports[0].reason or "").partition(": ")[2]
            # The reader of a head knows the name; a command needs the way there.
            return told.replace(export_command(path.rsplit("/", 1)[-1]), export_command(path))
        exports = [i for i in inputs if i.kind == "nsys" and i.status == "unreadable"]
        if exports:
            wait = (exports[0].reason or "").partition("; ")[2]
            return wait or f"export it again with nsys 2023 or later: {EXPORT_COMMAND}"
        return judged
    return MARKED_RANGES if judged == CAPTURE_STEPS and usable == {"nsys"} else judged

"""What the user named, as the words of the next command: MORE, DO and hints run as printed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct, field

from tracekit.wording import shell_path, shell_word

_VERBS = (
    "sources|ingest|diagnose|show|query|sql|compare|timeline|plot|job|expect|whatif|capture|explain"
    "|simulate|cache|rollup|site|lake"
)
COMMAND = re.compile(
    rf"""\b(?:tracekit (?:{_VERBS})|nsys export)\b"""
    r"""(?:\$'(?:[^'\\]|\\.)*'|'[^']*'|"[^"]*"|\$(?!')|[^;'"$])*?(?=   |;|$)"""
)
"""A command inside a sentence: to its end, three blanks or a semicolon."""
PLACEHOLDER = re.compile(r"\btracekit (\w+) RUN\b([^;,:()]*?)(?=   |[;,:()]|$)")
"""A command of ours about the run that is read, in the words of a rule or of an error."""
_PARTS: Mapping[str, frozenset[str]] = {
    "job": frozenset(),
    "whatif": frozenset(("--ranks", "--hosts", "--steps", "--attempt", "--window")),
}
"""Options of a selection that a command knows; the others know all."""


class Target(Struct, frozen=True):
    """Paths of the files or of a run, and the options that decide what of them is read."""

    paths: tuple[str, ...]
    jobs: tuple[str, ...] = ()
    """Job descriptions that were given beside them."""
    part: Mapping[str, str] = field(default_factory=dict)
    """Option of a selection to its value."""
    config: str | None = None
    """tracekit.toml that was named."""

    def command(self, verb: str, *arguments: str) -> str:
        """A command about the same files, quoted for a shell; ``arguments`` follow the paths."""
        words = ["tracekit", verb, *(shell_path(p) for p in self.paths)]
        words += [shell_word(a) for a in arguments]
        for job in self.jobs:
            words += ["--job", shell_path(job)]
        known = _PARTS.get(verb)
        for option, value in self.part.items():
            if known is None or option in known:
                words += [option, shell_word(value)]
        if self.config is not None and verb == "show":
            words += ["--config", shell_path(self.config)]
        return " ".join(words)

    def filled(self, text: str) -> str:
        """The text with each command about RUN as one about these files."""

        def fill(placeholder: re.Match[str]) -> str:
            return self.command(placeholder[1]) + placeholder[2]

        return PLACEHOLDER.sub(fill, text)

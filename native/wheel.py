"""Build hook of the wheel: with ``TRACEKIT_BUILD_NATIVE=1`` it carries the native reader.

Without it, and in editable installs, the wheel is the pure one for every machine, and no toolchain
is asked for. The tag states the oldest glibc whose symbols the library asks for.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "libtracekit_kineto.so"


class NativeReader(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the library and puts it beside the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library to the wheel, where it is asked for."""
        if version == "editable" or os.environ.get("TRACEKIT_BUILD_NATIVE") != "1":
            return
        crate = Path(self.root) / "native"
        command = ["cargo", "build", "--release", "--locked", "--offline"]
        subprocess.run(command, cwd=crate, check=True)  # noqa: S603
        built = crate / "target" / "release" / NAME
        asked = re.findall(rb"\0GLIBC_2\.(\d+)(?:\.\d+)?(?=\0)", built.read_bytes())
        oldest = max(17, *map(int, asked))
        build_data["force_include"][str(built)] = f"tracekit/{NAME}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{oldest}_{platform.machine()}"

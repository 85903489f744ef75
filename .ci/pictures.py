"""The pictures of README.md and docs/, from committed fixtures: ``make pictures``.

Needs a Chromium on the PATH, as the tests of pages do (tests/browser.py).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image

import browser
import tracekit
from tracekit.dashboards import look

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
JOB = "fixtures/twins/ddp-two-faults"
PIPELINE = "fixtures/recorded/pp-uneven-stages"
COLOURS = 128
"""Of a picture: a third of the bytes, and the eye sees no difference."""
WIDTH, HEIGHT = 1180, 860


def shrink(path: Path) -> None:
    """The picture with a palette of its own."""
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def main() -> None:
    """Write all of them."""
    if browser.program() is None:
        sys.exit("error: no Chromium here\nhint: apt-get install chromium")
    PICTURES.mkdir(exist_ok=True)
    with tracekit.open(JOB) as run:
        text = run.page()
    with tempfile.TemporaryDirectory() as folder, browser.running() as chromium:
        page = Path(folder) / "report.html"
        page.write_text(text)
        for look_name, dark in (("light", False), ("dark", True)):
            visit = chromium.visit(page, width=WIDTH, height=HEIGHT, dark=dark)
            visit.picture(PICTURES / f"report-{look_name}.png", whole=False)
            visit.ask("document.getElementById('steps').scrollIntoView()")
            visit.picture(PICTURES / f"figures-{look_name}.png", whole=False)
    for path in PICTURES.glob("*.png"):
        shrink(path)
    with tracekit.open(PIPELINE) as run:
        figure = run.plot("stage_replicas")
    (PICTURES / "stage_replicas.svg").write_bytes(look.picture(figure, ".svg"))
    print(*(f"{p.relative_to(ROOT)}  {p.stat().st_size:,} B" for p in sorted(PICTURES.iterdir())),
          sep="\n")  # fmt: skip


if __name__ == "__main__":
    main()

"""One look for every figure: size, type, palette, and how one becomes a file or part of a page.

Colours are the eight of Okabe and Ito, which people with any colour vision tell apart, and one
scale of orange that grows darker. In a page each is a CSS variable, so that one figure serves light
and dark.

Source of the palette: M. Okabe and K. Ito, Color Universal Design (2008).
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from tracekit.errors import UsageError
from tracekit.wording import safe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
PNG_DOTS_PER_INCH = 150
WIDTH_INCHES = 5.8
PAGE_PIXELS_PER_INCH = 100
"""A figure's size in a page: type of 9 points is read at 12.5 pixels."""
NAME_CHARS = 44
"""Characters of a foreign name on an axis; the middle of a longer one is left out."""
KEY_EMS = 4.8
"""Of a legend: a key with the space around it, as Matplotlib has them."""
MANY_DECADES = 1000.0
"""From this ratio of its ends on, a logarithmic axis has a tick a decade, below it three."""
MAX_DECADES = 7
"""Ticks of a logarithmic axis: of more decades, every second or third has one."""
MAX_TICKS = 24
MAX_ROWS = 96
"""Rows of a heat map; of more ranks, several share a row and the worst of them shows."""
MAX_COLUMNS = 200
"""Columns of a heat map, likewise."""

# Names of CSS variables, and what they are in a picture of its own and in a light page.
PALETTE = {
    "ink": "#1c2228",
    "muted": "#5b6672",
    "rule": "#c9d0d8",
    "blue": "#0072b2",
    "orange": "#e69f00",
    "green": "#009e73",
    "red": "#d55e00",
    "mark": "#b04400",  # red, as text: 4.5 to 1 on paper
    "sky": "#56b4e9",
    "pink": "#cc79a7",
    "grey": "#b6bec7",
    "heat1": "#fdebd8",
    "heat2": "#fbd3ac",
    "heat3": "#f7b272",
    "heat4": "#ec8a3d",
    "heat5": "#bb5208",
    "heat6": "#9e4508",
    "heat7": "#662a02",
}
DARK = {
    "ink": "#e8ecf0",
    "muted": "#a3aeb9",
    "rule": "#3a434d",
    "blue": "#4aa8e0",
    "orange": "#f0b429",
    "green": "#2fc79b",
    "red": "#ff8b4a",
    "mark": "#ff9a62",
    "sky": "#8fd0f5",
    "pink": "#e39cc4",
    "grey": "#68737f",
    "heat1": "#47301f",
    "heat2": "#65401f",
    "heat3": "#7f4616",
    "heat4": "#9a5314",
    "heat5": "#dd8530",
    "heat6": "#f6b26b",
    "heat7": "#fde3c4",
}
ON_HEAT = "#fffaf4"
"""Text on the strong end of the scale: dark in a dark page, where that end is bright."""
PALETTE["onheat"], DARK["onheat"] = ON_HEAT, "#2b1400"
FIRST_STRONG = 4
"""Place in HEAT from which text on the colour is ON_HEAT, not ink."""
HEAT = tuple(f"heat{i}" for i in range(1, 8))

_RC: Any = {
    "font.family": "DejaVu Sans",  # comes with Matplotlib: the same picture everywhere
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.labelcolor": PALETTE["ink"],
    "axes.edgecolor": PALETTE["rule"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "axes.facecolor": "none",
    "axes.formatter.useoffset": False,
    "grid.color": PALETTE["rule"],
    "grid.linewidth": 0.6,
    "text.color": PALETTE["ink"],
    "xtick.color": PALETTE["rule"],
    "ytick.color": PALETTE["rule"],
    "xtick.labelcolor": PALETTE["muted"],
    "ytick.labelcolor": PALETTE["muted"],
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "white",
    "lines.linewidth": 1.6,
    # Text stays text: a fifth of the size of drawn letters, and it can be read aloud and searched.
    "svg.fonttype": "none",
    "svg.hashsalt": "tracekit",  # the same rows give the same bytes
    "text.usetex": False,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
}
_NO_DATE: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@contextmanager
def style() -> Iterator[None]:
    """Within, figures are made and written in the one look."""
    from matplotlib import rc_context

    with rc_context(_RC), warnings.catch_warnings():
        # A name in a script that the font lacks is no reason to speak to the user: a page shows it
        # in a font of the reader's, an image shows boxes.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font")
        warnings.filterwarnings("ignore", message=r"Matplotlib currently does not support .*")
        yield


def new_figure(height_inches: float, width_inches: float = WIDTH_INCHES) -> Figure:
    """An empty figure."""
    from tracekit.dashboards.notebook_figure import NotebookFigure

    return NotebookFigure(figsize=(width_inches, height_inches), layout="constrained")


def check_name(path: Path) -> None:
    """UsageError where no figure can be written under this name."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"{path}: no kind of figure", hint=f"the name ends in {', '.join(SUFFIXES)}"
        )


def picture(figure: Figure, suffix: str, *, transparent: bool = False) -> bytes:
    """The figure as the bytes of a file; the same rows give the same bytes."""
    out = io.BytesIO()
    kind = suffix.lower()
    engine = figure.get_layout_engine()
    with style():
        if engine is not None:
            # Matplotlib would draw the whole figure once more, only to lay it out.
            engine.execute(figure)
            figure.set_layout_engine("none")
        figure.savefig(
            out,
            format=kind[1:],
            dpi=PNG_DOTS_PER_INCH,
            metadata=_NO_DATE[kind],
            transparent=transparent,
        )
        figure.set_layout_engine(engine)
    return out.getvalue()


def shown_name(name: str, limit: int = NAME_CHARS) -> str:
    """A foreign name as an axis shows it: printable, and a long one without its middle."""
    text = safe(re.sub(r"\s+", " ", name))
    if len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}\N{HORIZONTAL ELLIPSIS}{text[-(limit - head - 1) :]}"


def number(value: float) -> str:
    """A value on a scale, with three significant digits at most."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def time_unit(largest_ns: float) -> tuple[float, str]:
    """What to divide nanoseconds by for an axis, and the unit: the largest that reaches 1."""
    for divisor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if largest_ns >= divisor:
            return divisor, unit
    return 1.0, "ns"


def byte_unit(largest_bytes: float) -> tuple[float, str]:
    """The same of bytes."""
    for divisor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest_bytes >= divisor:
            return divisor, unit
    return 1.0, "B"


def amount_of_bytes(value: float) -> str:
    """Bytes in the unit that suits them, with three digits."""
    divisor, unit = byte_unit(value)
    return f"{number(value / divisor)} {unit}"


def some_ticks(labels: Sequence[str], chars: int = 110) -> tuple[list[int], list[str]]:
    """Places and texts of ticks, evenly apart from the first: as many as fit where so many
    characters do."""
    widest = max((len(label) for label in labels), default=1) + 2
    step = max(1, -(-len(labels) * widest // chars))
    places = list(range(0, len(labels), step))
    return places, [labels[i] for i in places]


def row_ticks(labels: Sequence[str], limit: int = MAX_TICKS) -> tuple[list[int], list[str]]:
    """The same for ticks below each other: at most so many."""
    places = list(range(0, len(labels), max(1, -(-len(labels) // limit))))
    return places, [labels[i] for i in places]


def legend(
    figure: Figure,
    columns: int,
    handles: Sequence[Any] = (),
    names: Sequence[str] = (),
    *,
    is_right: bool = False,
) -> None:
    """A legend above the figure, in as many columns as fit, at most these; of all that has a label
    where nothing is given."""
    if not handles:
        for axes in figure.axes:
            own_handles, own_names = axes.get_legend_handles_labels()
            handles, names = [*handles, *own_handles], [*names, *own_names]
    room = figure.get_figwidth() - 0.2
    while columns > 1 and _legend_inches(names, columns) > room:
        columns -= 1
    where: Any = "outside upper right" if is_right else "outside upper left"
    figure.legend(handles, names, loc=where, ncols=columns)


def _legend_inches(names: Sequence[str], columns: int) -> float:
    """How wide a legend is: its names column by column, each below the other."""
    from matplotlib.textpath import TextPath

    size = _RC["legend.fontsize"]
    widths = [TextPath((0, 0), name, size=size).get_extents().width for name in names]
    rows, longer = divmod(len(names), columns)  # the first columns have one more
    edges = [i * rows + min(i, longer) for i in range(columns + 1)]
    widest = [max(widths[a:b], default=0.0) for a, b in pairwise(edges)]
    points: float = sum(width + KEY_EMS * size for width in widest)
    return points / 72


def log_scale(axes: Axes, which: str, words: Callable[[float], str] = number) -> None:
    """A logarithmic axis (x or y) with plain numbers at its ticks, or these words: Matplotlib would
    write them as mathematics, which is text here."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    low, high = axis.get_view_interval()
    axis.set_major_locator(
        LogLocator(
            subs=(1.0, 2.0, 5.0) if high < MANY_DECADES * low else (1.0,), numticks=MAX_DECADES
        )
    )
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axis.set_minor_formatter(NullFormatter())


def grid(axes: Axes, which: str = "y") -> None:
    """Thin lines across, and no more of the box than is needed."""
    axes.grid(visible=True, axis=which)  # type: ignore[arg-type]  # x, y or both
    axes.tick_params(length=0)


# ---------------------------------------------------------------- parts of a page

_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_KEPT_TAGS = {"svg", "g", "path", "text", "tspan", "use", "defs", "clipPath", "rect"}
_KEPT = {
    "d", "x", "y", "width", "height", "transform", "viewBox", "clip-path", "id",
    "fill", "fill-opacity", "fill-rule", "stroke", "stroke-width", "stroke-dasharray",
    "stroke-dashoffset", "stroke-opacity", "stroke-linejoin", "stroke-linecap", "opacity",
    "font-size", "font-weight", "font-style", "text-anchor",
}  # fmt: skip
_VARIABLE = {colour: f"var(--{name})" for name, colour in PALETTE.items()}
_REFERENCE = re.compile(r"#([\w-]+)")
_LONG_NUMBER = re.compile(r"(\d+\.\d\d)\d+")


def inline_svg(figure: Figure, name: str) -> str:
    """The figure as an ``<svg>`` for a page: colours are CSS variables, ids begin with ``name``.

    No style sheet, style attribute, link, script or picture is in it, whatever the names that it
    shows: elements and attributes that are not known to be harmless are left out, so that a page
    may forbid everything in its Content-Security-Policy. The page supplies label and font.
    """
    root = ElementTree.fromstring(picture(figure, ".svg", transparent=True))  # noqa: S314  # Matplotlib wrote it
    referenced = {
        reference
        for element in root.iter()
        for value in (element.get(_HREF, ""), element.get("clip-path", ""))
        for reference in _REFERENCE.findall(value)
    }
    whole = _part(root, name, referenced)
    assert whole is not None  # noqa: S101  # the root is an svg
    # No wider than this; the view box keeps the proportions.
    whole.set("width", f"{figure.get_figwidth() * PAGE_PIXELS_PER_INCH:.0f}")
    whole.attrib.pop("height", None)
    whole.set("aria-hidden", "true")
    whole.set("focusable", "false")
    return ElementTree.tostring(whole, encoding="unicode")


def _part(element: ElementTree.Element, name: str, referenced: set[str]) -> Any:
    """The element as a page may hold it, None where it may not."""
    if not isinstance(element.tag, str) or not element.tag.startswith(_SVG):
        return None
    tag = element.tag.removeprefix(_SVG)
    if tag not in _KEPT_TAGS:
        return None
    copied = ElementTree.Element(tag)
    copied.text, copied.tail = element.text, None
    given = dict(element.attrib)
    for rule in given.pop("style", "").split(";"):
        key, _, value = rule.partition(":")
        given[key.strip()] = value.strip()
    # A font's shorthand, as Matplotlib writes it: only size and weight are the figure's business.
    if "font" in given:
        size = re.search(r"([\d.]+)px", given["font"])
        given |= {"font-size": size[1]} if size else {}
    for key, value in given.items():
        if key == "id":
            if value in referenced:
                copied.set("id", f"{name}-{value}")
        elif key in (_HREF, "href"):
            if value.startswith("#"):
                copied.set("href", f"#{name}-{value[1:]}")
        elif key == "clip-path":
            copied.set(key, value.replace("#", f"#{name}-", 1))
        elif key in _KEPT and value and not (key == "stroke" and value == "none"):
            text = _VARIABLE.get(value.lower(), value)
            if key in ("d", "transform", "x", "y", "width", "height"):
                text = _LONG_NUMBER.sub(r"\1", re.sub(r"\s+", " ", value)).strip()
            copied.set(key, text)
    for child in element:
        part = _part(child, name, referenced)
        if part is not None and (len(part) or part.attrib or part.text):
            copied.append(part)
    if tag == "g" and not len(copied):
        return None
    return copied

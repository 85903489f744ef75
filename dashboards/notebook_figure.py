"""A figure that a notebook shows, whether or not pyplot was imported there."""

from __future__ import annotations

from matplotlib.figure import Figure

from tracekit.dashboards import look


class NotebookFigure(Figure):
    """Matplotlib's, which a kernel shows as a picture only after ``%matplotlib`` or pyplot."""

    def _repr_png_(self) -> bytes:
        return look.picture(self, ".png")

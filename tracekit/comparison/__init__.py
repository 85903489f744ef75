"""Two sides of a comparison, each of one run or several: what a step takes more, and of what.

Rows in, a comparison out: nothing here opens a run (``tracekit.sides`` asks them).
"""

"""Reports: a diagnosis as data, and its renderings."""

from __future__ import annotations

from tracekit.report.build import build_report
from tracekit.report.config import DiagnoseConfig, Silence
from tracekit.report.model import InputFile, InputIssue, Report

__all__ = [
    "DiagnoseConfig",
    "InputFile",
    "InputIssue",
    "Report",
    "Silence",
    "build_report",
]

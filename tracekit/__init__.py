"""Trace-driven training telemetry analysis: from the files a slow job leaves behind to a verdict."""

__version__ = "0.1.0"

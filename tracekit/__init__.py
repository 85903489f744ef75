"""Finds out why a training job is slow, from the files that it left behind."""

__version__ = "0.1.0"

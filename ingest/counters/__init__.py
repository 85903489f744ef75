"""Counters of GPUs, switches, NICs and interfaces: one module a family of formats (formats.py)."""

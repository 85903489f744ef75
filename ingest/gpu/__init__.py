"""Counters of GPUs: one module a family of formats."""

from __future__ import annotations

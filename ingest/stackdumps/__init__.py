"""Stacks of threads, wherever they are printed: in files of their own, and in a job's output."""

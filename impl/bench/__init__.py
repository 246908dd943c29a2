"""Kernels side by side: every operation on every backend, timed and checked: `python -m impl.bench`."""

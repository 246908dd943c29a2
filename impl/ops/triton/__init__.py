"""Kernels in Triton: one module an operation, each with `OPERATIONS` and the points at which it may be tuned."""

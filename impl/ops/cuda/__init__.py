"""Kernels in CUDA C++ for Hopper: a `.cu` source each, built by nvcc, and `OPERATIONS` as the other backends have."""

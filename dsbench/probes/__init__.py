"""Probes: one module a measuring procedure inside a boot; each yields observations and computes no comparison."""

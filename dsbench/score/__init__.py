"""Scorers: pure functions on what a model said, the same for probes and for files of other programs."""

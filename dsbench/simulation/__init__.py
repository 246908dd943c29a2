"""Simulated experiments: readings with known noise, judged by the real rules, and how often those are wrong."""

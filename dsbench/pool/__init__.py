"""Experiments spread over hosts: every block stays whole on one of them, and its records come to the driver."""

"""Readers of what engines print and export. They compute nothing that was not there: unknown stays None."""

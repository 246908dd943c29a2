"""Engines: servers that are started, measured over HTTP, and stopped with their whole process group."""

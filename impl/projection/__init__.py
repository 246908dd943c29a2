"""The memory of an engine at full size, projected on a machine that holds none of it."""

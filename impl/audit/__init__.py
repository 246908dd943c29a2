"""The review's questions about this tree as executable checks."""

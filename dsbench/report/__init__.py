"""Reports: verdicts as text for people. Nothing here computes a figure."""

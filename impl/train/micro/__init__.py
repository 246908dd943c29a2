"""What micro learns from, and what it is tested on: generated text in two disjoint parts (torch-free)."""

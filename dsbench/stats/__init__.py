"""Statistics over boots and items, thin over scipy. Every function is pure and knows nothing of plans."""

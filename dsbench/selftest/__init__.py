"""A harness that tests itself: defects planted in real runs, and whether the verdict names them."""

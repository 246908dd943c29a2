"""`python -m dsbench`."""

from dsbench.cli import main

if __name__ == "__main__":
    main(prog_name="dsbench")

"""Train the target on generated text: `python -m impl.train --dims pico --minutes 20`."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    from impl.train.target_command import main as train  # worker processes import this module, and need no torch

    return train(argv)


if __name__ == "__main__":
    raise SystemExit(main())

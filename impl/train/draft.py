"""Train the draft of a target: `python -m impl.train.draft --target impl/weights/pico.safetensors --minutes 8`."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    from impl.train.draft_command import main as train  # worker processes import this module, and need no torch

    return train(argv)


if __name__ == "__main__":
    raise SystemExit(main())

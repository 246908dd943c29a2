"""The card of trained weights: `python -m impl.train.card WEIGHTS --scores FILE --curve FILE --command TEXT`.

Writes WEIGHTS.json, the figures for programs, and the tables that WEIGHTS.md holds between its two marks; text outside
the marks is written by hand and stays. Scores are what `impl.train.evaluate --json` printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from impl.model.weights import load_weights

BEGIN, END = "<!-- made by impl.train.card -->", "<!-- end of what is made -->"
ROWS = 16
"""At most so many rows of a curve are shown."""


def main(argv: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="python -m impl.train.card", description=__doc__)
    options.add_argument("weights", type=Path)
    options.add_argument("--scores", type=Path, required=True, help="what impl.train.evaluate --json printed")
    options.add_argument("--curve", type=Path, required=True, help="curve.jsonl of the run")
    options.add_argument("--command", required=True, help="the command of the run")
    options.add_argument("--where", required=True, help="the machine of the run")
    args = options.parse_args(argv)
    curve = [json.loads(line) for line in args.curve.read_text().splitlines()]
    facts = card(args.weights, json.loads(args.scores.read_text()), curve, args.command, args.where)
    args.weights.with_suffix(".json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    page = args.weights.with_suffix(".md")
    text = page.read_text() if page.exists() else f"# {args.weights.stem} weights\n\n"
    page.write_text(with_made_part(text, made_part(facts)))
    return 0


def card(
    weights: Path, scores: dict[str, Any], curve: list[dict[str, Any]], command: str, where: str
) -> dict[str, Any]:
    """Everything the card says, by name."""
    values, dims = load_weights(weights)
    last = curve[-1]
    return {
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "parameters": sum(tensor.numel() for tensor in values.values()),
        "dims": dims.to_json(),
        "run": {
            "command": command,
            "where": where,
            "steps": last["step"],
            "tokens": last["tokens"],
            "minutes": last["minutes"],
            "curve": curve,
        },
        "scores": scores,
    }


def made_part(facts: dict[str, Any]) -> str:
    """Markdown: the run, the scores, what is missed, the curve."""
    run, scores = facts["run"], facts["scores"]
    with_target = {name: score for name, score in scores.items() if "target" in score}
    missed = [name for name, score in with_target.items() if not score["met"]]
    lines = [
        f"{facts['parameters']:,} values, sha256 `{facts['sha256']}`",
        "",
        "| run | |",
        "|---|---|",
        f"| command | `{run['command']}` |",
        f"| where | {run['where']} |",
        f"| steps, tokens (padding counted) | {run['steps']:,}, {run['tokens']:,} |",
        f"| minutes of training steps | {run['minutes']} |",
        "",
        f"{len(with_target) - len(missed)} of {len(with_target)} targets are met. 95 % Wilson intervals.",
        "",
        "| what | right | target | |",
        "|---|---|---|---|",
        *(_score(name, score) for name, score in scores.items()),
        "",
        *_curve(run["curve"]),
    ]
    return "\n".join(lines)


def _score(name: str, score: dict[str, Any]) -> str:
    share = f"{score['right']} of {score['n']}, {score['share']:.1%} [{score['low']:.1%}, {score['high']:.1%}]"
    met = "" if "target" not in score else "met" if score["met"] else "**missed**"
    return f"| {name} | {share} | {score.get('target', '')} | {met} |"


def _curve(curve: list[dict[str, Any]]) -> list[str]:
    """Mean cross-entropy of answer characters by kind of text, in nats, at some steps."""
    kinds = list(dict.fromkeys(kind for point in curve for kind in point["answer_loss"]))
    every = -(-len(curve) // ROWS)
    shown = [*curve[:-1:every], curve[-1]]
    return [
        "Mean cross-entropy of answer characters, nats.",
        "",
        f"| step | tokens | minutes | {' | '.join(kinds)} | index KL |",
        "|" + "---|" * (len(kinds) + 4),
        *(
            f"| {point['step']:,} | {point['tokens']:,} | {point['minutes']:.1f} | "
            + " | ".join(f"{point['answer_loss'][kind]:.3f}" if kind in point["answer_loss"] else "" for kind in kinds)
            + f" | {point['index_kl']:.3f} |"
            for point in shown
        ),
    ]


def with_made_part(text: str, made: str) -> str:
    """`text` with what stands between the marks replaced, or with marks at its end."""
    begin, end = text.find(BEGIN), text.find(END)
    block = f"{BEGIN}\n{made}\n{END}"
    if begin < 0 or end < begin:
        return f"{text.rstrip()}\n\n{block}\n"
    return text[:begin] + block + text[end + len(END) :]


if __name__ == "__main__":
    sys.exit(main())

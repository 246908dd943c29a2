"""The gate of sequence-parallel MoE: both rules row by row, and the shared expert that flips with it (torch-free).

Source: source_pr.md section 7, item 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from impl.audit.report import Finding, Outcome
from impl.audit.source import place
from impl.dims import FLASH
from impl.sp_moe import (
    ModelKind,
    MoeConfig,
    SharedExpert,
    config_aware,
    pad_shared_expert,
    requires_dp,
    shared_expert,
    truth_table,
)

Rule = Callable[[MoeConfig], bool]

EXPECTED: dict[tuple[ModelKind, bool], tuple[bool, bool]] = {
    ("moe", False): (False, False),
    ("moe", True): (True, True),
    ("deepseek_v4", False): (False, True),
    ("deepseek_v4", True): (True, True),
    ("deepseek_v4_dspark", False): (False, True),
    ("deepseek_v4_dspark", True): (True, True),
}
"""(kind, DP > 1) with expert parallelism, TP > 1 and a backend that takes token shards: what vLLM's rule and the
config-aware one say. Without any of these, and for a dense model, both are off."""
TPS = (2, 4, 8)


def check(
    today: Rule = requires_dp,
    aware: Rule = config_aware,
    pad: Callable[[bool], bool] = pad_shared_expert,
    shapes: Callable[..., SharedExpert] = shared_expert,
) -> Outcome:
    rows = [row.config for row in truth_table()]
    findings = [*_gate(rows, today, aware), *_shared(pad, shapes)]
    differing = [row for row in rows if today(row) != aware(row)]
    evidence: dict[str, int | float | str] = {
        "rows": len(rows),
        "rows that differ": len(differing),
        "they are": "; ".join(f"{row.kind} EP TP {row.tp} DP {row.dp}" for row in differing),
    }
    for tp in TPS:
        off, on = (shapes(FLASH, tp, sequence) for sequence in (False, True))
        evidence[f"shared expert up, TP {tp}, off and on"] = f"{list(off.up)} {list(on.up)}"
        evidence[f"bytes a layer and rank more with it on, TP {tp}"] = on.nbytes - off.nbytes
    return Outcome(tuple(findings), evidence)


def _gate(rows: list[MoeConfig], today: Rule, aware: Rule) -> Iterator[Finding]:
    for row in rows:
        possible = row.expert_parallel and row.token_shards and row.tp > 1
        expected = EXPECTED.get((row.kind, row.dp > 1), (False, False)) if possible else (False, False)
        for rule, name, want in ((today, "today's rule", expected[0]), (aware, "the config-aware rule", expected[1])):
            if rule(row) != want:
                what = f"{name} says {'on' if not want else 'off'} for {row}"
                yield Finding("gate", what, place(rule), "expert parallelism and TP > 1 first, then DP or the kind")
    for row in rows:
        if row.kind == "deepseek_v4":
            draft = MoeConfig("deepseek_v4_dspark", row.expert_parallel, row.tp, row.dp, row.token_shards)
            if aware(row) != aware(draft):
                what = f"target and draft disagree for {row}"
                yield Finding("target-and-draft", what, place(aware), "one answer for a model and its draft")


def _shared(pad: Callable[[bool], bool], shapes: Callable[..., SharedExpert]) -> Iterator[Finding]:
    where = place(shapes)
    for sequence in (False, True):
        if pad(sequence) is sequence:
            what = f"pad_shared_expert is {sequence} with the gate {'on' if sequence else 'off'}"
            yield Finding("padding", what, place(pad), "weights are padded where they are shared out, and only there")
    whole = (2 * FLASH.expert_width, FLASH.hidden_size), (FLASH.hidden_size, FLASH.expert_width)
    for tp in TPS:
        off, on = shapes(FLASH, tp, False), shapes(FLASH, tp, True)
        if (on.up, on.down) != whole or on.padded:
            what = f"TP {tp}, gate on: a rank loads {on.up} and {on.down}, not the whole {whole[0]} and {whole[1]}"
            yield Finding(
                "shapes", what, where, "under sequence parallelism every rank holds the whole expert, unpadded"
            )
        if tp * off.width < FLASH.expert_width or off.up == on.up:
            what = f"TP {tp}, gate off: {tp} shares of {off.width} for a width of {FLASH.expert_width}"
            yield Finding("shapes", what, where, "shares cover the inner width, padded to whole quantization blocks")

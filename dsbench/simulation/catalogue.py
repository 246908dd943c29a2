"""What is simulated: cases by kind of metric and by shipped suite, each with what its test can attain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dsbench.simulation import noise
from dsbench.simulation.clocks import blocked, in_sequence, unblocked
from dsbench.simulation.comparing import ALPHA
from dsbench.simulation.counted import Drafts, Exact, Items, Law
from dsbench.simulation.noise import Rng
from dsbench.simulation.suites import Whole
from dsbench.simulation.tally import Outcome
from dsbench.stats.power import u_counts


class Experiment(Protocol):
    """One kind of experiment, which can be run n times."""

    def claim(self) -> float | None:
        """Change that is seen with 80 % power, as a fraction; None if none is claimed."""
        ...

    def run(self, rng: Rng, n: int, planted: bool) -> list[Outcome]:
        """n experiments without an effect, or each with the claimed one."""
        ...


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    kind: str
    """Kind of metric, or `suite`."""
    name: str
    design: str
    experiment: Experiment
    attainable: float | None = None
    """Largest size that the test can have up to 5 %; 0 if it cannot fire, None if that depends on the data."""
    held: bool = True
    """Whether the targets hold for it; the others show what goes wrong, and why."""
    cost: float = 1.0
    """Time of one experiment, of that of a row of 6 blocks; dear cases run less often with --quick."""
    remark: str = ""


def _sign_flip(n: int) -> float:
    patterns: int = 2 ** (n - 1)
    return math.floor(ALPHA * patterns) / patterns


def _permutation(n: int) -> float:
    patterns = math.comb(2 * n, n) // 2
    return math.floor(ALPHA * patterns) / patterns


def _mann_whitney(n: int) -> float:
    tails = np.cumsum(u_counts(n, n)) / math.comb(2 * n, n)
    return 2 * float(tails[tails <= ALPHA / 2].max(initial=0.0))


def _blocked(name: str, blocks: int) -> Case:
    fires = _sign_flip(blocks)
    remark = "" if fires else f"the test cannot go below p={2.0 ** (1 - blocks):.4g}: improved or regressed needs 6"
    return Case("sample-blocked", name, f"{blocks} blocks", blocked(name, blocks), fires, remark=remark)


def _unblocked(name: str, boots: int) -> Case:
    return Case("sample-unblocked", name, f"{boots} + {boots} boots in any order", unblocked(name, boots),
                _mann_whitney(boots))  # fmt: skip


KINDS = (
    Case("exact", "kv.available_bytes", "2 + 2 boots", Exact(2)),
    Case("exact", "kv.available_bytes, not exact", "2 + 2 boots", Exact(2, noise.ONE_FAULT_IN), held=False,
         remark="one boot in 20 reads otherwise: an exact metric that does not repeat is called nondeterminism"),
    _blocked("decode.tps", 5),
    _blocked("decode.tps", 6),
    _blocked("decode.tps", 12),
    _blocked("prefill.tps", 6),
    _blocked("prefill.tps", 12),
    _blocked("kv.device_bytes", 6),
    _blocked("decode.ttft_ms", 12),
    _blocked("decode.itl_ms", 12),
    _unblocked("decode.tps", 6),
    _unblocked("kv.device_bytes", 4),
    Case("sample-unblocked", "decode.tps", "6 boots, then 6 of the other arm", in_sequence("decode.tps", 6),
         _mann_whitney(6), held=False, remark="one arm after the other: drift of the machine is taken for the change"),
    Case("counter-ratio", "accept.length", "5 + 5 boots", Drafts(5), _permutation(5), cost=2,
         remark="so few blocks cannot be paired: boots are permuted, which levels of blocks make cautious"),
    Case("counter-ratio", "accept.length", "8 blocks", Drafts(8), _sign_flip(8), cost=2),
    Case("item", "gsm8k", "2 + 2 boots, 1,319 items", Items("gsm8k", 2, noise.GSM8K, 0.005), cost=20),
    Case("item-clustered", "toolcall", "2 + 2 boots, 135 items in 15 clusters",
         Items("toolcall", 2, noise.TOOLCALL, 0.02), _sign_flip(15), cost=10),
    Case("item", "coherence, boots with luck of 0.3", "2 + 2 boots, 200 items",
         Items("coherence", 2, noise.RECALL[0.3], 0.02), held=False, cost=5,
         remark="0.3 logits that all items of a boot share: too little for two boots to show, and enough for items to "
                "take for a change; more boots are the cure, not more items"),
    Case("item", "coherence, boots with luck of 0.3", "8 blocks, 200 items",
         Items("coherence", 8, noise.RECALL[0.3], 0.02), held=False, cost=20,
         remark="eight boots show such luck more often, and are then the unit"),
    Case("item", "coherence, boots with luck of 2.3", "2 + 2 boots, 200 items",
         Items("coherence", 2, noise.RECALL[2.3], 0.02), held=False, cost=5,
         remark="2.3 logits: boots of one arm are mostly seen not to repeat, and two blocks say nothing then"),
    Case("item", "coherence, boots with luck of 2.3", "8 blocks, 200 items",
         Items("coherence", 8, noise.RECALL[2.3], 0.02), cost=20,
         remark="the boot is the unit"),
    Case("law", "output_law", "2 + 2 boots", Law(2), cost=3,
         remark="a boot fails at 0.001; the claimed effect is total variation in one of two prompts"),
)  # fmt: skip

SUITES = (
    Case("suite", "kv", "2 blocks", Whole("kv"), cost=2),
    Case("suite", "quick", "5 blocks", Whole("quick"), cost=5),
    Case("suite", "quick, dspark", "5 blocks", Whole("quick", "dspark"), cost=15),
    Case("suite", "spec, dspark", "2 blocks", Whole("spec", "dspark"), cost=8),
    Case("suite", "full", "12 blocks", Whole("full"), cost=10),
    Case("suite", "full, dspark", "12 blocks", Whole("full", "dspark"), cost=60),
)

CASES = (*KINDS, *SUITES)


def chosen(kind: str | None, suite: str | None) -> list[Case]:
    """Cases of one kind of metric, of one suite, or all."""
    if kind is None and suite is None:
        return list(CASES)
    of_kind = [case for case in KINDS if case.kind == kind]
    return of_kind + [case for case in SUITES if suite is not None and case.name.split(",")[0] == suite]


def kinds() -> list[str]:
    return list(dict.fromkeys(case.kind for case in KINDS))


def suites() -> list[str]:
    return list(dict.fromkeys(case.name.split(",")[0] for case in SUITES))

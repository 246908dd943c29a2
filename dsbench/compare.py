"""One metric of one candidate arm against the baseline: from boots to one verdict row, by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low

from dsbench.by_host import ByHost, exact_by_host, samples_by_host, steady_by_host
from dsbench.coherence_findings import CLEAN, asked_apart
from dsbench.comparison import Comparison, Numbers
from dsbench.decide import decide_exact
from dsbench.errors import InputError
from dsbench.evidence import BootEvidence
from dsbench.item_row import compare_by_item
from dsbench.metrics import Metric
from dsbench.ratios import compare_ratios
from dsbench.records import ALPHA, Arm, Observation, Plan, Verdict
from dsbench.reuse import across_time
from dsbench.sample_row import compare_samples
from dsbench.stats.exact import FAR, compare_exact, far_apart, spread
from dsbench.tests_row import compare_tests

LEAST_BOOTS = 2
"""Boots an arm from which exact, item and draft metrics can be judged: one boot cannot show that it repeats."""
ONE_BOOT = "one boot an arm: nothing shows that it repeats; exact, item and draft metrics need 2"

WITHIN_BASELINE = "no boot of the candidate reads beyond the baseline's own boots"
"""Of a drift control that is not exact: nothing shows that it moved."""


def compare(
    plan: Plan, boots: Sequence[BootEvidence], arm: Arm, metric: Metric, rank: int | None, role: str
) -> Verdict:
    """Judge one metric of one arm by the rules of its kind. `boots` are the measured boots that ended well."""
    this = Comparison(plan, arm, metric, rank, role)
    baseline = _observed(boots, plan.baseline.name, metric.key, rank)
    candidate = _observed(boots, arm.name, metric.key, rank)
    if not baseline or not candidate:
        return this.row("not-run", notes=["no reading in both arms"])
    few = min(len(baseline), len(candidate)) < LEAST_BOOTS
    if metric.own_items:
        tests = compare_tests(this, baseline, candidate)
        return _undecided(tests) if few else tests
    blocks = {boot.number: boot.planned.block for boot in boots}
    if metric.kind == "counter-ratio":
        ratios = compare_ratios(this, baseline, candidate, blocks)
        return _undecided(ratios) if few else ratios
    if any(o.value is None for seen in (*baseline.values(), *candidate.values()) for o in seen):
        return this.row("inconclusive", notes=["unknown on this platform"])
    if metric.key == CLEAN and (why := asked_apart((plan.baseline.name, arm.name), (baseline, candidate))):
        return this.row("inconclusive", notes=[why])
    if metric.kind == "item":
        items = compare_by_item(this, baseline, candidate, blocks)
        return _undecided(items) if few else items
    numbers = {number: float(_one(seen)) for number, seen in {**baseline, **candidate}.items()}
    a, b = ({number: numbers[number] for number in arm} for arm in (baseline, candidate))
    if metric.kind == "exact":
        steady = steady_by_host(a, b, boots)
        exact = _exact_on_hosts(this, steady) if steady else _exact(this, list(a.values()), list(b.values()))
        if exact:
            return _undecided(exact) if few else exact
    notes = ["varies between the baseline's own boots: judged as a sample"] if metric.kind == "exact" else []
    if notes and role == "drift control" and min(a.values()) <= min(b.values()) <= max(b.values()) <= max(a.values()):
        notes.append(WITHIN_BASELINE)
    row = across_time(plan, compare_samples(this, a, b, blocks, notes))
    return samples_by_host(row, a, b, boots, ALPHA)


def _undecided(row: Verdict) -> Verdict:
    """A row from one boot an arm: a loss stands and says so, a drift control's move as well; nothing good is."""
    if row.role == "drift control" or row.word not in ("improved", "equivalent", "regressed"):
        return row
    word = row.word if row.word == "regressed" else "inconclusive"
    return row.model_copy(update={"word": word, "notes": [*row.notes, ONE_BOOT]})


# --- exact ----------------------------------------------------------------------------------------------------------


def _exact(this: Comparison, baseline: Numbers, candidate: Numbers) -> Verdict | None:
    """The row of an exact metric; None if the baseline varies, so that it has to be judged as a sample.

    Readings of an arm agree if they differ by no more than the margin. A baseline that varies by more still shows a
    change that is far beyond what its boots differ by.
    """
    base = median_low(baseline)
    in_unit = this.metric.absolute or not base
    outcome = compare_exact(baseline, candidate, this.margin_in_unit(base))
    counts = {"n_baseline": len(baseline), "n_candidate": len(candidate), "baseline": base}
    wobble = max(spread(baseline), spread(candidate))
    notes: list[str] = []
    if outcome == "baseline-varies":
        if not far_apart(baseline, candidate, this.plan.alpha):
            return None
        notes.append(
            f"boots of one arm differ by up to {wobble:,.10g} {this.metric.unit}; the arms lie more than {FAR} times "
            "as far apart"
        )
    elif outcome == "candidate-varies":
        seen = ", ".join(f"{value:,.10g}" for value in sorted(set(candidate)))
        return this.row("regressed", **counts, notes=[f"not deterministic: its boots read {seen}"])
    elif wobble:
        notes.append(
            f"boots of one arm differ by up to {wobble:,.10g} {this.metric.unit}, within the margin: taken as agreeing"
        )
    level = median_low(candidate)
    delta = level - base
    expected = this.arm.expected.get(this.metric.key)
    if expected is not None and expected != delta:
        notes.append(_unexpected(this, expected, delta))
    # Wherever in its arm's range a boot reads, the word has to be the same.
    changes = (min(candidate) - max(baseline), max(candidate) - min(baseline))
    words = {
        decide_exact(change if in_unit else change / abs(base), this.margin(base), this.metric.better)
        for change in changes
    }
    if len(words) > 1:
        notes.append("the boots lie on both sides of the margin")
    return this.row(
        words.pop() if len(words) == 1 else "inconclusive",
        **counts,
        candidate=level,
        delta=delta,
        relative=delta / base if base else None,
        notes=notes,
    )


def _exact_on_hosts(this: Comparison, steady: Mapping[str, tuple[float, float, int]]) -> Verdict:
    """The row of an exact metric that every host repeats: the difference inside each host, if it is one."""
    found = exact_by_host(steady)
    rows = [_exact(this, [baseline] * n, [candidate] * n) for baseline, candidate, n in steady.values()]
    row = next(row for row in rows if row is not None)
    boots = sum(n for _, _, n in steady.values())
    update: dict[str, object] = {"by_host": found, "n_baseline": boots, "n_candidate": boots}
    if found.differs:
        update |= {"word": "inconclusive", "delta": None, "relative": None, "notes": [_by_host_note(this, found)]}
    elif len({baseline for baseline, _, _ in steady.values()}) > 1:
        base = ", ".join(f"{host} {baseline:,.10g}" for host, (baseline, _, _) in steady.items())
        notes = [*row.notes, f"the baseline reads {base} {this.metric.unit}; the difference is the same on each"]
        once = min(n for _, _, n in steady.values()) < LEAST_BOOTS
        alike = not once and len({other.word for other in rows if other is not None}) == 1
        update |= {"notes": [*notes, ONE_BOOT] if once else notes}
        update |= {} if alike else {"word": "inconclusive"}
    return row.model_copy(update=update)


def _by_host_note(this: Comparison, found: ByHost) -> str:
    told = ", ".join(f"{host} {delta:+,.10g} {this.metric.unit}" for host, delta in found.effects.items())
    return f"differs by host: {told}"


def _unexpected(this: Comparison, expected: int, delta: float) -> str:
    """The registry's expectation beside what was measured, with what to do about it."""
    told = f"expected {expected:+,} {this.metric.unit}, measured {delta:+,.10g} {this.metric.unit}"
    if delta * expected <= 0:
        return told
    if abs(delta) < abs(expected):
        return (
            f"warning: {told}, {delta / expected:.0%} of the claim: look for a place where the branch does not act "
            "or another peak hides it (kv_profile), or mend the registry"
        )
    return f"warning: {told}, more than the claim: find the mechanism before believing it, or mend the registry"


# --- readings ------------------------------------------------------------------------------------------------------


def _observed(boots: Sequence[BootEvidence], arm: str, key: str, rank: int | None) -> dict[int, list[Observation]]:
    """Readings of a metric by boot number."""
    found: dict[int, list[Observation]] = {}
    for boot in boots:
        if boot.planned.arm == arm:
            seen = [o for o in boot.readings.get(key, ()) if o.rank == rank]
            if seen:
                found[boot.number] = seen
    return found


def _one(seen: list[Observation]) -> int | float:
    """The single number of a boot. InputError if there are more, or if it is no number."""
    value = seen[0].value
    if len(seen) != 1 or not isinstance(value, int | float):
        what = f"{len(seen)} readings" if len(seen) != 1 else f"the reading {value!r}"
        raise InputError(f"records: boot {seen[0].boot} has {what} of {seen[0].metric} where one number is due")
    return value

"""Reasons why a comparison is not one. Each has a code, the boots it was seen in, and its mend."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dsbench.builds import DECLARABLE, declare_it
from dsbench.by_host import among_hosts
from dsbench.engines.ended import INTERRUPTS, signal_named
from dsbench.evidence import BootEvidence
from dsbench.killed import was_killed
from dsbench.probes.kv import profile_key
from dsbench.records import Plan, VoidReason
from dsbench.void_ranks import RANK_RULES, UNCOMPARED, Boots

Place = tuple[int | None, str | None]
"""Rank and item of a reading."""


def void_reasons(plan: Plan, boots: Boots) -> list[VoidReason]:
    """Every reason, in the order of the rules. Warm-ups count only where they had to run."""
    measured = [boot for boot in boots if boot.planned.phase == "measured"]
    reasons = [*boots_ended(plan, boots), *checks_ran(plan, measured)]
    for rule in RULES:
        reasons += rule(plan, [boot for boot in measured if boot.ok])
    return reasons


def boots_ended(plan: Plan, boots: Boots) -> Iterator[VoidReason]:
    """Every planned boot ended well, warm-ups too: a cold cache is not noise."""
    for boot in boots:
        if boot.ended is None:
            yield VoidReason(
                code="boot-missing",
                text=f"boot {boot.planned.folder} did not run to its end",
                mend="resume the experiment: dsbench ab --resume",
                arm=boot.planned.arm,
                boots=[boot.number],
            )
        elif not boot.ok:
            mend = "read the boot's engine.log, mend the engine, and run again"
            if was_killed(boot.ended) and boot.killed_by:
                # A kill that was repeated stands behind this one; `to_repeat` takes no second.
                told = "the engine was killed in this boot before, so --resume does not repeat it again"
                mend = f"{told}: mend what kills it (see dmesg for memory that ran out), and begin a new experiment"
            elif was_killed(boot.ended):
                told = "go on with dsbench ab --resume, which repeats a boot whose engine was killed, once"
                mend = f"{told}; if it is killed again, mend what kills it and run again"
            elif boot.ended.killed_by in INTERRUPTS:
                told = f"{signal_named(boot.ended.killed_by or 0)} ended the engine, and --resume does not repeat that"
                mend = f"{told}: find what sent it, a terminal or a supervisor, and begin a new experiment"
            yield VoidReason(
                code="boot-failed",
                text=f"boot {boot.planned.folder} {boot.ended.status}: {boot.ended.reason}",
                mend=mend,
                arm=boot.planned.arm,
                boots=[boot.number],
            )


def checks_ran(plan: Plan, boots: Boots) -> Iterator[VoidReason]:
    """Every planned probe of every measured boot ran, and every boot has the same readings to compare."""
    finished = [boot for boot in boots if boot.ok]
    once: dict[frozenset[Place], frozenset[Place]] = {}
    seen = {boot.number: _places(boot, once) for boot in finished}
    own_items = {metric.key for metric in plan.metrics if metric.own_items}

    def among(metric: str, boot: BootEvidence) -> tuple[str, str]:
        """Boots that must have the same readings: all, or those of one arm."""
        return metric, boot.planned.arm if metric in own_items else ""

    everywhere: dict[tuple[str, str], frozenset[Place]] = {}
    for boot in finished:
        for metric, of_metric in seen[boot.number].items():
            so_far = everywhere.setdefault(among(metric, boot), of_metric)
            if so_far is not of_metric:
                everywhere[among(metric, boot)] = so_far | of_metric
    counted: dict[frozenset[frozenset[Place]], int] = {}
    missing: dict[tuple[str, str], list[int]] = defaultdict(list)
    for boot in finished:
        for probe in plan.probes.due(boot.planned.block):
            check = boot.checks.get(probe)
            metrics = plan.probes.metrics(probe)
            gave = {metric: seen[boot.number].get(metric, frozenset()) for metric in metrics}
            lacking = [
                (metric, *place)
                for metric in sorted(metrics)
                if (due_places := everywhere.get(among(metric, boot), frozenset())) is not gave[metric]
                for place in sorted(due_places - gave[metric], key=repr)
            ]
            if check is None:
                missing[probe, "has no record"].append(boot.number)
            elif check.status != "done":
                missing[probe, f"{check.status}: {check.reason}"].append(boot.number)
            elif absent := [metric for metric in metrics if not gave[metric]]:
                missing[probe, f"gave no {', '.join(absent)}"].append(boot.number)
            elif (n := _items(frozenset(gave.values()), counted)) < (due := plan.probes.items(probe)):
                missing[probe, f"gave {n} of {due} items"].append(boot.number)
            elif lacking:
                missing[probe, f"gave no {_key(*lacking[0])}, which other boots have"].append(boot.number)
    for (probe, what), numbers in missing.items():
        yield VoidReason(
            code="check-missing",
            text=f"fewer checks than planned: probe {probe} {what}",
            mend="see the reason in the boot's engine.log and run again; a check that did not run passes nothing",
            boots=numbers,
        )


def _places(boot: BootEvidence, once: dict[frozenset[Place], frozenset[Place]]) -> dict[str, frozenset[Place]]:
    """By metric. Boots mostly read the same places: equal sets are kept once, in `once`."""
    found = {}
    for metric, readings in boot.readings.items():
        places = frozenset([(o.rank, o.item) for o in readings])
        found[metric] = once.setdefault(places, places)
    return found


def _items(places: frozenset[frozenset[Place]], counted: dict[frozenset[frozenset[Place]], int]) -> int:
    """How many items some sets of places name. Boots mostly have the same sets, so they are counted once."""
    if places not in counted:
        counted[places] = len({item for given in places for _, item in given if item})
    return counted[places]


def _key(metric: str, rank: int | None, item: str | None) -> str:
    return metric + (f" of rank {rank}" if rank is not None else "") + (f" for {item!r}" if item else "")


def conditions_read(plan: Plan, boots: Boots) -> Iterator[VoidReason]:
    """Every boot said what it ran."""
    silent = [boot.number for boot in boots if not boot.conditions]
    if silent:
        yield VoidReason(
            code="conditions-missing",
            text="no rank wrote its conditions, so nothing is known of what ran",
            mend="the engine must write conditions.rankN.json to DSBENCH_BOOT_DIR; is impl installed in it?",
            boots=silent,
        )


def conditions_agree(plan: Plan, boots: Boots) -> Iterator[VoidReason]:
    """No condition differs between any two boots unless an arm declares it, and none at all within an arm.

    One that tells of the machine may differ between the hosts of a pool, not on one of them.
    """
    for rank in sorted({rank for boot in boots for rank in boot.conditions}):
        read = [boot for boot in boots if rank in boot.conditions]
        found = sorted({name for boot in read for name in boot.conditions[rank]} - UNCOMPARED)
        places = [(key, on_host) for key in found for on_host in among_hosts(key, read)]
        for key, on_host, among in [(*place, arms) for place in places for arms in _must_agree(plan, place[0])]:
            groups: dict[str, list[BootEvidence]] = defaultdict(list)
            for boot in on_host:
                if boot.planned.arm in among:
                    groups[repr(boot.conditions[rank].get(key, "unknown"))].append(boot)
            if len(groups) > 1:
                arms = {value: sorted({boot.planned.arm for boot in group}) for value, group in groups.items()}
                seen = "; ".join(f"{value[:80]} in {', '.join(names)}" for value, names in arms.items())
                fewest = min(groups.values(), key=len)
                yield VoidReason(
                    code="condition-differs",
                    text=f"undeclared difference of {key}: {seen}",
                    mend=_how_to_differ(plan, key),
                    boots=[boot.number for boot in fewest],
                )


def _how_to_differ(plan: Plan, key: str) -> str:
    """How boots come to agree in a condition, or may differ in it."""
    if plan.engine == "endpoint" and key in DECLARABLE:
        return f"visit servers with the same {key}, or {declare_it(key)}"
    return f"make {key} the same in every boot, or declare it as the difference of the arms"


def _must_agree(plan: Plan, key: str) -> list[list[str]]:
    """Arms whose boots must read one value: all that do not declare the condition, and each that does alone."""
    declaring = [arm.name for arm in plan.arms if key in arm.declared]
    return [[arm.name for arm in plan.arms if arm.name not in declaring], *([name] for name in declaring)]


def conditions_as_planned(plan: Plan, boots: Boots) -> Iterator[VoidReason]:
    """The engine ran the shape, the toggles and the speculative method it was told to run."""
    for boot in boots:
        arm = plan.arm(boot.planned.arm)
        for values in boot.conditions.values():
            on = values.get("toggles")
            if not isinstance(on, list) or sorted(map(str, on)) != sorted(arm.on):
                yield VoidReason(
                    code="toggles-not-in-effect",
                    text=f"boot {boot.planned.folder} reads back toggles {on}, planned {arm.on}",
                    mend="the engine must take DSBENCH_TOGGLES; look for a wrapper that drops the environment",
                    arm=arm.name,
                    boots=[boot.number],
                )
            method = values.get("speculative", "unknown")
            if arm.speculative is not None and method != arm.speculative:
                yield VoidReason(
                    code="condition-not-in-effect",
                    text=f"boot {boot.planned.folder} reads back speculative {method}, planned {arm.speculative}",
                    mend="the engine ignored a flag; compare the command in the plan with its log",
                    arm=arm.name,
                    boots=[boot.number],
                )
            dims = values.get("dims")
            if isinstance(dims, dict):
                wrong = {key: dims[key] for key in plan.dims if key in dims and dims[key] != plan.dims[key]}
                for key, value in wrong.items():
                    yield VoidReason(
                        code="condition-not-in-effect",
                        text=f"boot {boot.planned.folder} reads back {key} {value}, planned {plan.dims[key]}",
                        mend="the engine ignored a flag; compare the command in the plan with its log",
                        arm=arm.name,
                        boots=[boot.number],
                    )


def blocks_whole(plan: Plan, boots: Boots) -> Iterator[VoidReason]:
    """Every block ran on one host: a difference between hosts is none between arms."""
    hosts: dict[int, dict[str, int]] = defaultdict(dict)
    for boot in boots:
        if boot.planned.block is not None:
            hosts[boot.planned.block][boot.host or "this machine"] = boot.number
    split = {block: of_block for block, of_block in hosts.items() if len(of_block) > 1}
    for block, of_block in split.items():
        yield VoidReason(
            code="block-split",
            text=f"block {block} ran on {' and '.join(of_block)}",
            mend="a block stays whole on one host: run it again there",
            boots=sorted(of_block.values()),
        )


def logs_apart(plan: Plan, boots: Boots) -> Iterator[VoidReason]:
    """No two boots show one log: the later one would be a stale reading of the earlier."""

    def path(boot: BootEvidence) -> str | None:
        return boot.ended.log if boot.ended else None

    def content(boot: BootEvidence) -> str | None:
        return boot.ended.log_sha256 if boot.ended and boot.ended.log_bytes else None

    keys: tuple[tuple[str, Callable[[BootEvidence], str | None]], ...] = (
        ("the same file", path),
        ("byte-identical", content),
    )
    for what, key in keys:
        for numbers in _same(boots, key):
            yield VoidReason(
                code="shared-log",
                text=f"boots {_list(numbers)} have one log ({what})",
                mend="give every boot its own log file and read only that",
                boots=numbers,
            )


def clocks_apart(plan: Plan, boots: Boots) -> Iterator[VoidReason]:
    """No two boots read the same clock values to the last bit."""
    for metric in plan.metrics:
        if not metric.clock:
            continue

        def reading(boot: BootEvidence, key: str = metric.key) -> str | None:
            seen = [(o.rank, o.item, o.value, o.raw) for o in boot.readings.get(key, ()) if o.value is not None]
            return repr(seen) if seen else None

        for numbers in _same(boots, reading):
            yield VoidReason(
                code="identical-readings",
                text=f"boots {_list(numbers)} read {metric.key} identical to the last bit",
                mend="a clock never does that: look for a result that was read twice or copied",
                boots=numbers,
            )


def one_engine_a_boot(plan: Plan, boots: Boots) -> Iterator[VoidReason]:
    """Within a boot the process stayed one and its counters only rose."""
    for boot in boots:
        pids = {m.pid for seen in boot.markers.values() for m in seen if m.pid is not None}
        pids |= {values["pid"] for values in boot.conditions.values() if isinstance(values.get("pid"), int)}
        served = {counters.pid for counters in boot.counters if counters.pid is not None}
        started = {
            c.values["process_start_time_seconds"] for c in boot.counters if "process_start_time_seconds" in c.values
        }
        ranks = len({*boot.conditions, *boot.markers}) or 1
        if len(pids) > ranks or len(served) > 1 or len(started) > 1:
            yield VoidReason(
                code="engine-restarted",
                text=f"boot {boot.planned.folder}: the engine's process changed ({_list(sorted(pids | served))})",
                mend="find out why it restarted (engine.log); a boot must be one process from start to end",
                arm=boot.planned.arm,
                boots=[boot.number],
            )
        for earlier, later in zip(boot.counters, boot.counters[1:], strict=False):
            fell = [
                f"{name} {value:g} -> {later.values.get(name, 0):g}"
                for name, value in earlier.values.items()
                if name != "process_start_time_seconds" and later.values.get(name, 0.0) < value
            ]
            if fell:
                yield VoidReason(
                    code="counter-reset",
                    text=f"boot {boot.planned.folder}: counters fell during {later.moment}: {fell[0]}",
                    mend="something reset the counters or restarted the engine; nothing may do so during a boot",
                    arm=boot.planned.arm,
                    boots=[boot.number],
                )
                break


def kv_profiled(plan: Plan, boots: Boots) -> Iterator[VoidReason]:
    """KV memory was profiled, not pinned, where KV is compared."""
    if plan.probes.kv is None:
        return
    pinned = [b.number for b in boots if any(map(_pins_kv, [*b.conditions.values(), *b.kv_profiles.values()]))]
    if pinned:
        yield VoidReason(
            code="kv-pinned",
            text="KV memory was pinned, not profiled",
            mend="leave out the flag that fixes KV bytes or blocks: a pinned figure cannot move",
            boots=pinned,
        )


FINDINGS = {
    "fatal-log": ("fatal-finding", "its log has a fatal finding", "mend what the line names, and run again"),
    "device-busy": ("foreign-process", "another process used the GPU", "measure on a GPU that is yours alone"),
    "kv-disagrees": ("kv-disagrees", "its ranks' figures contradict its log", "see which is read wrongly"),
}
"""Findings that end a comparison: code of the reason, what it means, and its mend."""


def nothing_found(plan: Plan, boots: Boots) -> Iterator[VoidReason]:
    """No boot has a finding that makes its readings worthless."""
    for boot in boots:
        for finding in boot.findings:
            if finding.code in FINDINGS:
                code, text, mend = FINDINGS[finding.code]
                yield VoidReason(
                    code=code,
                    text=f"boot {boot.planned.folder}: {text}: {finding.text}",
                    mend=mend,
                    arm=boot.planned.arm,
                    boots=[boot.number],
                )


def probe_read_the_profile(plan: Plan, boots: Boots) -> Iterator[VoidReason]:
    """What the KV probe reported is what the rank's profile says."""
    for boot in boots:
        read = (o for metric, readings in boot.readings.items() if metric.startswith(("kv.", "moe.")) for o in readings)
        for o in read:
            profile = boot.kv_profiles.get(o.rank) if o.rank is not None else None
            name = profile_key(o.metric)
            if profile is not None and name in profile and profile[name] != o.value:
                yield VoidReason(
                    code="kv-disagrees",
                    text=f"boot {boot.planned.folder}: {o.metric} of rank {o.rank} was recorded as {o.value}, its "
                    f"profile says {profile[name]}",
                    mend="the records were changed, or the probe read another boot's profile: run again",
                    arm=boot.planned.arm,
                    boots=[boot.number],
                )
                break


def _pins_kv(values: dict[str, Any]) -> bool:
    pins = ("kv_pinned", "kv_cache_memory_bytes", "num_gpu_blocks_override")
    return any(values.get(key) for key in pins) or values.get("source") == "pinned" or values.get("kv_rule") == "pinned"


def _same(boots: Boots, key: Callable[[BootEvidence], Any]) -> list[list[int]]:
    """Numbers of boots that share a key; empty keys share nothing."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for boot in boots:
        if value := key(boot):
            groups[value].append(boot.number)
    return [numbers for numbers in groups.values() if len(numbers) > 1]


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


RULES: tuple[Callable[[Plan, Boots], Iterator[VoidReason]], ...] = (
    conditions_read,
    conditions_as_planned,
    conditions_agree,
    *RANK_RULES,
    blocks_whole,
    logs_apart,
    clocks_apart,
    one_engine_a_boot,
    kv_profiled,
    probe_read_the_profile,
    nothing_found,
)

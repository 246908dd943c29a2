"""`dsbench suites`: what each suite measures, how often, what that can show, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsbench.cli.params import out_option
from dsbench.errors import InputError

if TYPE_CHECKING:
    from dsbench.metrics import Metric
    from dsbench.run_times import RunTime
    from dsbench.suite import Suite

FLIPS = 0.02
"""Share of the items that answer otherwise in two boots of one build, for what items can show."""
USUAL = "embedded micro,"
"""Beginning of the place of an experiment that is told no engine and no shape."""


@click.command(short_help="List the suites, or describe one.")
@click.argument("name", required=False)
@out_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def suites(name: str | None, out: Path, as_json: bool) -> None:
    """List the suites, or describe one.

    Boots and times are those of one candidate beside the baseline. A time is measured where a result under --out ran
    the suite as it is now, and estimated where boots there ran its probes with the same settings; `dsbench plan`
    tells it for a machine and its floors. NAME may be a TOML file.
    """
    from dsbench.cli.table import print_json
    from dsbench.run_times import run_times, stored_times
    from dsbench.suite import load_suite, shipped

    chosen = [load_suite(each) for each in ([name] if name else shipped())]
    stored = stored_times(out) if out.is_dir() else []
    times = {suite.name: _times(suite, stored, run_times) for suite in chosen}
    if as_json:
        content = [_to_json(suite, times[suite.name]) for suite in chosen]
        print_json(content[0] if name else content)
    elif name:
        _describe(chosen[0], times[chosen[0].name], name)
    else:
        _list(chosen, times)


def _times(suite: Suite, stored: Any, run_times: Any) -> list[RunTime]:
    try:
        found: list[RunTime] = run_times(suite, stored)
    except InputError:  # its questions are elsewhere, so nothing can be compared with what has run
        return []
    return sorted(found, key=lambda time: (not time.place.startswith(USUAL), time.estimated, len(time.missing)))


def boots(suite: Suite) -> int:
    """Engine starts of an experiment with one candidate."""
    return 2 * (suite.warmup_boots + suite.blocks)


def items(suite: Suite, probe: str) -> int | None:
    """Items that a probe asks; None where only its source tells, and is not there."""
    try:
        return suite.probes.items(probe)
    except InputError:
        return None


def _items_of(suite: Suite, probe: str, key: str) -> int | None:
    try:
        return suite.probes.table(probe).n_items_of(key)
    except InputError:
        return None


# --- what can be shown ------------------------------------------------------------------------------------------------


def resolves(suite: Suite) -> dict[str, str]:
    """What the suite's number of boots can show, by probe."""
    from dsbench.metrics import metric

    found = {}
    for name in suite.probes.names():
        blocks = min(suite.blocks, suite.probes.table(name).blocks or suite.blocks)
        told: dict[str, list[str]] = {}
        for key in suite.probes.metrics(name):
            told.setdefault(_shows(metric(key), blocks, _items_of(suite, name, key)), []).append(key)
        names = {text: dict.fromkeys(key.split(".")[1] for key in keys if "." in key) for text, keys in told.items()}
        named = [f"{', '.join(keys)}: {text}" for text, keys in names.items()]
        found[name] = "; ".join(named if len(told) > 1 else told) or "nothing: it warms up"
    return found


def _shows(metric: Metric, blocks: int, n_items: int | None) -> str:
    from dsbench.records import ALPHA
    from dsbench.stats.power import boots_to_fire, smallest_share, visible
    from dsbench.stats.samples import blocks_to_fire

    if metric.own_items:
        return "any test that newly fails"
    if metric.kind == "exact":
        return "any change" if blocks > 1 else "a loss, and nothing else: one boot an arm"
    if metric.kind == "item" and metric.margin == 0:
        return "any item that is lost"
    if metric.kind == "item":
        if not n_items:
            return "a share of its items"
        seen = smallest_share(n_items, max(FLIPS, 1 / n_items), ALPHA, boots=blocks, margin=metric.margin)
        flips = f"if {FLIPS * 100:g} % flip between boots"
        few = f"{n_items} {'item is' if n_items == 1 else 'items are'} too few to tell"
        return few if seen is None else f"at best {seen * 100:.2g} points, {flips}"
    if metric.kind == "counter-ratio":
        least = boots_to_fire(ALPHA)
        return f"beyond {_margin(metric)}" if blocks >= least else f"equal counts, and a change from {least} blocks on"
    seen_sd = visible(blocks, ALPHA)
    if seen_sd is None:
        return f"equivalent within {metric.margin * 100:g} %; a change from {blocks_to_fire(ALPHA)} blocks on"
    return f"{seen_sd:.2g} standard deviations of a block's difference"


def _margin(metric: Metric) -> str:
    size = metric.margin * 100
    return f"{size:g} {'%' if not metric.absolute else 'point' if size == 1 else 'points'}"


# --- output -----------------------------------------------------------------------------------------------------------


def _list(chosen: Sequence[Suite], times: dict[str, list[RunTime]]) -> None:
    from dsbench.cli.table import print_table
    from dsbench.report.columns import PROSE_WIDTH

    print_table(
        "Suites, one candidate beside the baseline",
        ("suite", "probes", "blocks", "boots", "run time", "what it is"),
        [
            (
                suite.name,
                ", ".join(suite.probes.names()),
                suite.blocks,
                boots(suite),
                _short_time(times[suite.name]),
                suite.summary,
            )
            for suite in chosen
        ],
        PROSE_WIDTH,
    )
    click.echo("dsbench suites NAME tells what one asks and what it can show.")


def _describe(suite: Suite, times: Sequence[RunTime], given: str) -> None:
    from dsbench.cli.table import print_note, print_table
    from dsbench.report.columns import PROSE_WIDTH

    print_note(f"{suite.name}: {suite.summary}", 2, PROSE_WIDTH)
    click.echo()
    stop = ", each stopped after the memory profile" if suite.until == "profile" else ""
    facts = {
        "boots": f"{boots(suite)} with one candidate: {suite.warmup_boots} to warm up and {suite.blocks} blocks{stop}",
        "guards": ", ".join(suite.guards) or "none",
        "void if": ", ".join(f"{control} moves" for control in suite.drift_controls) or "no drift control",
        "deadlines": f"boot {suite.timeouts.boot:g} s, probe {suite.timeouts.probe:g} s",
    }
    if suite.speculative:
        facts["drafts"] = f"{suite.speculative} in every arm, unless --speculative says otherwise"
    if suite.build:
        facts |= {
            "measured on": suite.build.hardware,
            "serves": " ".join([suite.build.model or "MODEL", *suite.build.serve_args]),
            "not stated": "; ".join(suite.build.unknown) or "nothing",
        }
    for key, value in facts.items():
        print_note(f"{key:<11} {value}", 12, PROSE_WIDTH)
    for time in times:
        print_note(f"{'run time':<11} {_clock(time)} ({time.place}; {time.source}){_without(time)}", 12, PROSE_WIDTH)
    if not times:
        how = f"dsbench plan --suite {given} --measure times one boot"
        print_note(f"{'run time':<11} not measured yet: {how}", 12, PROSE_WIDTH)
    click.echo()
    shows = resolves(suite)
    rows = []
    for probe in suite.probes.names():
        asked = items(suite, probe)
        table = suite.probes.table(probe)
        rows.append(
            (
                probe,
                ", ".join(suite.probes.metrics(probe)) if len(suite.probes.metrics(probe)) < 6 else f"{probe}.*",
                "?" if asked is None else asked or "-",
                min(suite.blocks, table.blocks or suite.blocks),
                shows[probe],
                _first_line(type(table).__doc__),
            )
        )
    columns = ("probe", "metrics", "items", "blocks", "can show", "what")
    print_table("Probes, in the order they run", columns, rows, PROSE_WIDTH)


def _short_time(times: Sequence[RunTime]) -> str:
    """The time of the place that comes first; for another shape than the usual one it says that it is another."""
    if not times:
        return "not measured yet"
    place, usual = times[0].place, USUAL.rstrip(",")
    other = place.startswith("embedded ") and not place.startswith(USUAL)
    return f"{_clock(times[0])} ({place}{f'; {usual} not measured yet' if other else ''})"


def _without(time: RunTime) -> str:
    return f", without {', '.join(time.missing)}" if time.missing else ""


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0].rstrip(".") if text else ""


def _clock(time: RunTime) -> str:
    minutes = time.seconds / 60
    told = (
        f"{time.seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"
    )
    return f"{told}{', estimated' if time.estimated else ''}"


def _to_json(suite: Suite, times: Sequence[RunTime]) -> dict[str, Any]:
    shows = resolves(suite)
    return {
        "name": suite.name,
        "summary": suite.summary,
        "blocks": suite.blocks,
        "warmup_boots": suite.warmup_boots,
        "boots": boots(suite),
        "until": suite.until,
        "speculative": suite.speculative,
        "build": suite.build.model_dump() if suite.build else None,
        "probes": {
            name: {"metrics": suite.probes.metrics(name), "items": items(suite, name), "can_show": shows[name]}
            for name in suite.probes.names()
        },
        "run_times": [vars(time) for time in times],
    }

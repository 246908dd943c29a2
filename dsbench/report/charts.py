"""Plots of a report as inline SVG: a page's style colours them, marks differ in shape, labels stand at the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from dsbench.report.memory import Moment
from dsbench.report.readings import BootSeries, Curves, Spread
from dsbench.report.table import number
from dsbench.report.units import short, size

WIDTH = 360
"""Units of every plot; on a phone one unit is one pixel."""
FAR = 12.0
"""Margins beyond which an interval is cut off, with an arrow at its end."""
LETTER = 6.6
"""Width of a letter at the size of labels, at most."""
LABELS = 104
"""Room for labels at the right."""
NAMED_FROM = 18
"""Where a label begins in it, behind its mark."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Interval:
    """One row of the interval plot; figures in margins, so that 1 is where a change begins to matter."""

    label: str
    figure: str
    word: str
    low: float
    mid: float
    high: float
    floor: float | None


def svg(title: str, height: float, parts: Sequence[str]) -> str:
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{body}</svg>"
    )


def label(x: float, y: float, text: str, kind: str = "ink", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def rule(a: Point, b: Point, kind: str = "grid") -> str:
    return f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" class="{kind}"/>'


def path(points: Sequence[Point], kind: str) -> str:
    return f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" class="{kind}"/>'


def mark(x: float, y: float, arm: int, told: str, hollow: bool = False, r: float = 3.6) -> str:
    """A mark with its arm's shape and colour; `told` shows where a pointer rests on it."""
    kind = f"mark a{arm % 6}{' hollow' if hollow else ''}"
    shapes: list[list[Point]] = [
        [],
        [(-r, -r), (r, -r), (r, r), (-r, r)],
        [(0, -r * 1.3), (r * 1.2, r), (-r * 1.2, r)],
        [(0, -r * 1.4), (r * 1.4, 0), (0, r * 1.4), (-r * 1.4, 0)],
        [(0, r * 1.3), (r * 1.2, -r), (-r * 1.2, -r)],
        [(-r * 1.4, -r * 0.6), (r * 1.4, -r * 0.6), (r * 1.4, r * 0.6), (-r * 1.4, r * 0.6)],
    ]
    corners = shapes[arm % 6]
    title = f"<title>{escape(told)}</title>"
    if not corners:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" class="{kind}">{title}</circle>'
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}" class="{kind}">{title}</polygon>'


def intervals(rows: Sequence[Interval]) -> str:
    """One row a metric on one axis of margins: band inside the margin, brackets at the floor, bar and estimate."""
    row_height, top = 40, 4
    reach = min(FAR, max(1.5, *(abs(value) for row in rows for value in (row.low, row.high, row.mid))))
    scale = (WIDTH / 2 - 12) / reach

    def x(value: float) -> float:
        return WIDTH / 2 + max(-reach, min(reach, value)) * scale

    parts = []
    for i, row in enumerate(rows):
        y = top + i * row_height
        middle = y + 27
        parts.append(f'<rect x="{x(-1):.1f}" y="{y + 18}" width="{x(1) - x(-1):.1f}" height="18" class="band"/>')
        parts += [label(2, y + 13, _beside(row.label, row.figure)), label(WIDTH - 2, y + 13, row.figure, "ink", "end")]
        parts.append(rule((x(0), y + 18), (x(0), y + 36)))
        if row.floor is not None:
            for side in (-1, 1):
                at = x(side * row.floor)
                parts.append(
                    path([(at - side * 4, y + 19), (at, y + 19), (at, y + 35), (at - side * 4, y + 35)], "floor")
                )
        kind = f"w-{row.word}"
        parts.append(rule((x(row.low), middle), (x(row.high), middle), f"bar {kind}"))
        for end, side in ((row.low, -1), (row.high, 1)):
            if abs(end) > reach and (end > 0) == (side > 0):
                tip = x(end) + side * 7
                corners = f"{tip:.1f},{middle} {x(end):.1f},{middle - 5} {x(end):.1f},{middle + 5}"
                parts.append(f'<polygon points="{corners}" class="tip {kind}"/>')
        told = f"{row.label}: {row.figure}, {row.word}"
        dot = f'<circle cx="{x(row.mid):.1f}" cy="{middle}" r="4" class="dot {kind}">'
        parts.append(f"{dot}<title>{escape(told)}</title></circle>")
    bottom = top + len(rows) * row_height
    ticks = sorted({-1, 0, 1, *(t for t in (-round(reach // 1), round(reach // 1)) if abs(t) > 1)})
    parts.append(rule((x(-reach), bottom + 2), (x(reach), bottom + 2), "axis"))
    parts += [label(x(tick), bottom + 15, f"{tick:+d}" if tick else "0", "muted", "middle") for tick in ticks]
    parts.append(label(WIDTH / 2, bottom + 29, "change in margins of each metric", "muted", "middle"))
    return svg("Intervals of the changes, in margins", bottom + 34, parts)


def run_order(series: BootSeries, shown: Sequence[str]) -> str:
    """One mark a boot in the order of time, hollow for warm-ups; a line at the median of each arm that is named."""
    height, top, bottom, left = 156, 10, 122, 8
    right = WIDTH - LABELS - 8
    values = [point.value for point in series.points]
    y = _scale(min(values), max(values), bottom, top)
    first, last = series.points[0].boot, series.points[-1].boot
    step = (right - left) / max(1, last - first)
    numbers = {arm: i for i, arm in enumerate(shown)}
    parts = [rule((left, bottom + 6), (right, bottom + 6), "axis")]
    blocks = [(p.boot, p.block) for p in series.points]
    for (boot, block), (_, before) in zip(blocks[1:], blocks, strict=False):
        if block != before:
            at = left + (boot - first - 0.5) * step
            parts.append(rule((at, top), (at, bottom + 6)))
    ends = []
    for arm in shown:
        mine = [p.value for p in series.points if p.arm == arm and not p.warm_up]
        if mine:
            middle = sorted(mine)[len(mine) // 2] if len(mine) % 2 else sum(sorted(mine)[len(mine) // 2 - 1 :][:2]) / 2
            parts.append(rule((left, y(middle)), (right, y(middle)), f"line s{numbers[arm]}"))
            ends.append((y(middle), numbers[arm], arm, short(middle, series.unit)))
    for point in series.points:
        x = left + (point.boot - first) * step
        told = (
            f"boot {point.boot}, {point.arm}{', warm-up' if point.warm_up else ''}: {number(point.value)} {series.unit}"
        )
        arm_number = numbers.get(point.arm, 5)
        parts.append(mark(x, y(point.value), arm_number, told, point.warm_up))
    parts += _end_labels(ends, right + 6, top, bottom)
    low, high = short(min(values), series.unit), short(max(values), series.unit)
    parts.append(label(left, height - 5, f"boots {first} to {last} in order of time; {low} to {high}", "muted"))
    title = f"{series.metric} by boot, from {low} to {high}"
    return svg(title, height, parts)


def curves(given: Curves, arms: Sequence[str]) -> str:
    """Medians over the boots by arm, with a bar from the least to the greatest; the steps stand at equal distances."""
    height, top, bottom, left = 178, 12, 136, 66
    right = WIDTH - LABELS - 8
    spreads = [spread for read in given.arms.values() for spread in read if spread]
    least, greatest = min(s.low for s in spreads), max(s.high for s in spreads)
    y = _scale(least, greatest, bottom, top)
    gap = (right - left) / max(1, len(given.steps) - 1)
    parts = [rule((left - 14, bottom + 8), (right + 6, bottom + 8), "axis")]
    scale_unit = "share" if given.unit == "share" else ""
    for value in dict.fromkeys((least, greatest)):
        parts.append(label(left - 18, y(value) + 3, short(value, scale_unit), "muted", "end"))
    for i, step in enumerate(given.steps):
        parts.append(label(left + i * gap, bottom + 22, short(step, ""), "muted", "middle"))
    parts.append(label((left + right) / 2, height - 6, given.axis, "muted", "middle"))
    ends = []
    for arm, read in given.arms.items():
        index = list(arms).index(arm)
        shift = (index - (len(given.arms) - 1) / 2) * 3
        at: list[tuple[float, Spread]] = [(left + i * gap + shift, s) for i, s in enumerate(read) if s]
        parts.append(path([(x, y(s.mid)) for x, s in at], f"line s{index}"))
        for (x, s), step in zip(at, [step for step, s in zip(given.steps, read, strict=True) if s], strict=True):
            if s.low != s.high:
                parts.append(rule((x, y(s.low)), (x, y(s.high)), f"line s{index}"))
            parts.append(mark(x, y(s.mid), index, f"{arm}, {step:,}: {number(s.mid)} {given.unit}"))
        ends.append((y(at[-1][1].mid), index, arm, short(at[-1][1].mid, given.unit)))
    parts += _end_labels(ends, right + 6, top, bottom)
    return svg(f"{given.title} by {given.axis}", height, parts)


def gains(rows: Sequence[tuple[str, str, float]]) -> str:
    """Bars from zero: what each row gains over the baseline. Rows are name, figure and value."""
    row_height, top = 34, 2
    low, high = min(0.0, *(value for *_, value in rows)), max(0.0, *(value for *_, value in rows))
    scale = (WIDTH - 8) / ((high - low) or 1)
    zero = 4 - low * scale
    parts = []
    for i, (name, figure, value) in enumerate(rows):
        y = top + i * row_height
        parts += [label(2, y + 13, _beside(name, figure)), label(WIDTH - 2, y + 13, figure, "ink", "end")]
        x, width = min(zero, zero + value * scale), abs(value) * scale
        parts.append(f'<rect x="{x:.1f}" y="{y + 19}" width="{max(width, 1):.1f}" height="8" class="mark a1"/>')
        parts.append(rule((zero, y + 17), (zero, y + 29), "axis"))
    return svg("KV memory gained over the baseline", top + len(rows) * row_height + 4, parts)


def memory_line(moments: Sequence[Moment], arms: tuple[str, str]) -> str:
    """Bytes alive from moment to moment of a boot, in steps; the candidate's line lies on the baseline's wider one."""
    height, top, bottom, left = 176, 14, 134, 6
    lines = [m.baseline for m in moments], [m.candidate for m in moments]
    peaks = [f"peak {size(max(values))}" for values in lines]
    right = WIDTH - max(LABELS, NAMED_FROM + LETTER * max(map(len, peaks)))
    y = _scale(0, max(max(m.baseline, m.candidate) for m in moments), bottom, top)
    gap = (right - left) / len(moments)
    parts = [rule((left, bottom), (right, bottom), "axis")]
    for i, moment in enumerate(moments):
        parts.append(label(left + (i + 0.5) * gap, bottom + (14 if i % 2 == 0 else 27), moment.name, "muted", "middle"))
    ends = []
    for index, values in enumerate(lines):
        steps = [(left + (i + side) * gap, y(value)) for i, value in enumerate(values) for side in (0, 1)]
        parts.append(path(steps, f"line {('thick', 'thin')[index]} s{index}"))
        ends.append((y(max(values)), index, arms[index], peaks[index]))
    parts += _end_labels(ends, right, top, bottom)
    return svg(f"Bytes alive through the boot, {arms[0]} and {arms[1]}", height, parts)


def _scale(low: float, high: float, bottom: float, top: float) -> Scale:
    return Scale(low, (high - low) or 1.0, bottom, top)


@dataclass(frozen=True)
class Scale:
    low: float
    span: float
    bottom: float
    top: float

    def __call__(self, value: float) -> float:
        return self.bottom - (value - self.low) / self.span * (self.bottom - self.top)


def _end_labels(ends: Sequence[tuple[float, int, str, str]], x: float, top: float, bottom: float) -> list[str]:
    """Name and figure of each arm at the height of its data, moved apart where they would touch."""
    line = 13
    needed = 2 * line
    placed: list[tuple[float, int, str, str]] = []
    for y, index, arm, figure in sorted(ends):
        least = placed[-1][0] + needed if placed else top
        placed.append((max(y - 2, least), index, arm, figure))
    over = placed[-1][0] + line - (bottom + 10) if placed else 0
    parts = []
    for y, index, arm, figure in placed:
        at = y - max(0.0, over)
        parts.append(mark(x + 10, at - 4, index, arm))
        parts.append(label(x + NAMED_FROM, at, _fit(arm, LABELS - 26)))
        parts.append(label(x + NAMED_FROM, at + line - 1, figure, "muted"))
    return parts


def _beside(name: str, figure: str) -> str:
    """A name that leaves room for the figure at the other end of its line."""
    return _fit(name, WIDTH - 16 - len(figure) * LETTER)


def _fit(text: str, room: float) -> str:
    """A name cut where the room is too narrow: of several toggles the last is told, other names lose their middle."""
    most = int(room / LETTER)
    if len(text) > most and "+" in text:
        text = f"…+{text.rpartition('+')[2]}"
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"

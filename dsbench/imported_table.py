"""From results of other programs to a table of readings for `dsbench judge --from-table`: one file a boot."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from dsbench.errors import InputError
from dsbench.table_input import Table


@dataclass(frozen=True)
class Reading:
    """What a figure means, and the smallest change of it that matters."""

    unit: str
    higher_is_better: bool
    margin: float
    relative: bool = True
    """Whether the margin is a share of the baseline's mean; else it is in the unit."""
    share: bool = False
    """Whether it is a share of right answers, whose noise is that of its n items."""


_SPEED = Reading("tokens/s", True, 0.02)
_REQUESTS = Reading("requests/s", True, 0.02)
_TIME = Reading("ms", False, 0.02)
_SHARE = Reading("fraction", True, 0.01, relative=False, share=True)

READINGS: dict[str, Reading] = {
    "output_tokens_per_second": _SPEED,
    "median_output_tokens_per_second": _SPEED,
    "tokens_per_second": _SPEED,
    "prefill_tokens_per_second": _SPEED,
    "total_tokens_per_second": _SPEED,
    "request_per_second": _REQUESTS,
    "requests_per_second": _REQUESTS,
    **{f"{how}_{what}_ms": _TIME for what in ("ttft", "tpot", "itl", "latency", "ttfr") for how in ("mean", "median")},
    "mean_acceptance_length": Reading("tokens", True, 0.02),
    "draft_acceptance_rate": Reading("fraction", True, 0.01, relative=False),
    "flexible": _SHARE,
    "strict": _SHARE,
    "acc": _SHARE,
    "accuracy": _SHARE,
    "score_percent": Reading("%", True, 2.0, relative=False),
    "passed": Reading("replies", True, 0.02),
}
"""Figures that can be judged; the first one that every file holds is taken unless one is named."""

SETTINGS = (
    "model",
    "task",
    "dataset",
    "test",
    "strategy",
    "concurrency",
    "rate_asked_per_second",
    "batch_size",
    "requests_asked",
    "input_tokens",
    "context_tokens",
    "prompt_tokens",
    "response_tokens",
    "context_prefill",
    "prefix_caching",
    "num_draft_tokens",
    "temperature",
    "top_p",
    "fewshot",
    "limit",
    "n",
    "cases_total",
    "of",
)
"""Figures that say what was asked of the engine: they have to agree between the arms."""


@dataclass(frozen=True)
class Imported:
    """One file, and what it says."""

    path: Path
    content: Mapping[str, Any]

    @property
    def program(self) -> str:
        """`lm-eval` of `lm-eval, flattened`, and the scenarios' name without their numbers."""
        return str(self.content["tool"]).split(",")[0].split(" (")[0]

    def holding(self, key: str) -> list[Mapping[str, Any]]:
        """What has a figure: the file as a whole, or rows of it with what the file says of all."""
        if _is_number(self.content.get(key)):
            return [self.content]
        return [{**self.content, **row} for row in self.content.get("rows", ()) if _is_number(row.get(key))]


def arm_names(text: str, files: int) -> list[str]:
    """`base,new` or `base:4,new:4`: the arm of each file, in the order of the files."""
    names = []
    for part in text.split(","):
        name, colon, count = part.strip().rpartition(":")
        name, number = (name, count) if colon and count.isascii() and count.isdigit() else (part.strip(), "1")
        if not name or len(number) > 6 or int(number) < 1:
            raise InputError(f"--arms: '{part}' should be a name, or a name and a number of files, as in base:4")
        names += [name] * int(number)
    if len(names) != files:
        raise InputError(f"--arms names the arms of {len(names)} files, but there are {files}: one name a file")
    if len(set(names)) < 2:
        raise InputError(f"--arms: a comparison needs two arms, the baseline first; got only '{names[0]}'")
    return names


def build_table(
    files: Sequence[Imported],
    arms: Sequence[str],
    *,
    metric: str | None = None,
    at: Mapping[str, str] | None = None,
    margin: str | None = None,
    blocks: bool = False,
    declared: Sequence[str] = (),
) -> dict[str, Any]:
    """The table of one figure.

    files, arms: one entry a boot; `at` picks a file's row by its settings; `margin` is in the figure's unit, or in
    percent of the baseline's mean; with `blocks` the n-th boots of all arms are one block; `declared` settings are
    meant to differ. InputError names the file or the option.
    """
    for file in files:
        if file.content["tool"] == "unknown":
            raise InputError(f"{file.path}: nothing to compare: {file.content['why']}")
    key = metric or _first_in_all(files)
    if key not in READINGS:
        raise InputError(f"--metric: '{key}' cannot be judged; one of {', '.join(READINGS)}")
    reading = READINGS[key]
    picked = [_picked(file, key, at or {}) for file in files]
    names = list(dict.fromkeys(arms))
    logs = _logs(files, reading)
    by_arm: dict[str, dict[str, Any]] = {}
    for name in names:
        mine = [number for number, arm in enumerate(arms) if arm == name]
        by_arm[name] = {
            **_readings([picked[number] for number in mine], key, reading, files[mine[0]].path),
            **({"blocks": list(range(1, len(mine) + 1))} if blocks else {}),
            "logs": [logs[number] for number in mine],
            **_settings([files[number].program for number in mine], [picked[number] for number in mine], reading),
        }
    _drop_unknown(by_arm)
    if strange := [name for name in declared if not any(name in arm for arm in by_arm.values())]:
        stated = ", ".join(name for name in ("program", *SETTINGS) if name in by_arm[names[0]])
        raise InputError(f"--declare: the files state no {strange[0]}; they state {stated}")
    content = {
        "metric": f"{files[0].program} {key}",
        "unit": reading.unit,
        "higher_is_better": reading.higher_is_better,
        "replicate": "run" if reading.share else "boot",
        "practical_margin": _margin(margin, reading, by_arm[names[0]]),
        "arms": by_arm,
        **({"declared": list(declared)} if declared else {}),
    }
    try:
        Table.model_validate(content)
    except ValidationError as error:
        raise InputError(f"these readings make no table: {error.errors()[0]['msg']}") from None
    return content


def _first_in_all(files: Sequence[Imported]) -> str:
    held = [[key for key in READINGS if file.holding(key)] for file in files]
    for key in READINGS:
        if all(key in keys for keys in held):
            return key
    without = next((file.path for file, keys in zip(files, held, strict=True) if not keys), None)
    raise InputError(
        f"{without}: holds no figure that can be judged" if without else "the files have no figure in common"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- rows -------------------------------------------------------------------------------------------------------------


def _picked(file: Imported, key: str, at: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """The rows of one boot that hold the figure: repeats, so that they have to agree in their settings."""
    held = file.holding(key)
    if not held:
        raise InputError(f"{file.path}: has no {key}")
    rows = [row for row in held if all(_fits(row.get(name), wanted) for name, wanted in at.items())]
    if not rows:
        asked = ", ".join(f"{name}={wanted}" for name, wanted in at.items())
        raise InputError(f"{file.path}: no row of {key} at {asked}; there are {_choices(held, at)}")
    if any(rows[0].get(name) != row.get(name) for row in rows for name in SETTINGS):
        raise InputError(f"{file.path}: {len(rows)} rows of {key}; pick one with --at {_choices(rows, ())}")
    return rows


def _fits(value: Any, wanted: str) -> bool:
    if _is_number(value):
        try:
            return float(wanted) == float(value)
        except ValueError:
            return False
    return str(value) == wanted


def _choices(rows: Sequence[Mapping[str, Any]], asked: Mapping[str, str] | Sequence[str]) -> str:
    """Settings in which the rows differ, or those that were asked for, as they would be typed."""
    names = [name for name in SETTINGS if any(row.get(name) != rows[0].get(name) for row in rows)] or list(asked)
    told = dict.fromkeys(" ".join(f"{name}={row.get(name)}" for name in names) for row in rows)
    return " or ".join(list(told)[:6]) + (f" (and {len(told) - 6} more)" if len(told) > 6 else "")


# --- arms -------------------------------------------------------------------------------------------------------------


def _readings(boots: Sequence[Sequence[Mapping[str, Any]]], key: str, reading: Reading, path: Path) -> dict[str, Any]:
    if not reading.share:
        values = [[row[key] for row in rows] for rows in boots]
        return {"boots": [of[0] if len(of) == 1 else of for of in values]}
    if any(len(rows) > 1 for rows in boots):
        raise InputError(f"{path}: several results of one share in one file; give each a file of its own")
    n = {rows[0].get("n") for rows in boots}
    items = n.pop() if len(n) == 1 else None
    return {"runs": [rows[0][key] for rows in boots], **({"n_items": items} if items else {})}


def _settings(
    programs: Sequence[str], boots: Sequence[Sequence[Mapping[str, Any]]], reading: Reading
) -> dict[str, Any]:
    """One value where all boots of the arm agree, else one a boot."""
    # Of a share, n stands beside its readings.
    names = [name for name in SETTINGS if not (reading.share and name == "n")]
    by_boot: dict[str, list[Any]] = {
        "program": list(programs),
        **{name: [rows[0].get(name) for rows in boots] for name in names},
    }
    return {name: of[0] if all(one == of[0] for one in of) else of for name, of in by_boot.items()}


def _drop_unknown(arms: dict[str, dict[str, Any]]) -> None:
    """Settings that no arm states."""
    for name in SETTINGS:
        if all(arm.get(name) is None for arm in arms.values()):
            for arm in arms.values():
                arm.pop(name, None)


def _logs(files: Sequence[Imported], reading: Reading) -> list[str]:
    """The file of each boot. Two files with the same bytes are one, unless they hold counts, which may well repeat."""
    clock = reading.unit.endswith(("/s", "ms"))
    first: dict[str, str] = {}
    logs = []
    for file in files:
        name = str(file.path)
        mark = hashlib.sha256(file.path.read_bytes()).hexdigest() if clock else str(file.path.resolve())
        logs.append(first.setdefault(mark, name))
    return logs


def _margin(text: str | None, reading: Reading, baseline: Mapping[str, Any]) -> float:
    """In the unit of the figure."""
    value, relative = reading.margin, reading.relative
    if text is not None:
        number, relative = text.strip().removesuffix("%"), text.strip().endswith("%")
        try:
            value = float(number) / (100 if relative else 1)
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e18:
            raise InputError(f"--margin: '{text}' should be a number in {reading.unit}, or in percent, as in 2%")
    return float(f"{value * abs(fmean(_flat(baseline)) if relative else 1):.6g}")


def _flat(arm: Mapping[str, Any]) -> Iterator[float]:
    for one in arm.get("boots") or arm["runs"]:
        yield fmean(one) if isinstance(one, list) else one

"""Recipes: the build that a suite brings along, and what of it a command line replaces."""

from __future__ import annotations

from collections.abc import Sequence

from dsbench.suite import Build, Suite

ALIASES = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-sc": "--speculative-config",
}


def overlaid(build: Build, given: Sequence[str]) -> list[str]:
    """Arguments of `vllm serve`: the recipe's, with the model and every flag that is `given` in their place."""
    model, flags = (given[0], given[1:]) if given and not given[0].startswith("-") else (build.model, given)
    replaced = {_name(part) for part in flags if part.startswith("-")}
    kept = [part for group in _groups(build.serve_args) if _name(group[0]) not in replaced for part in group]
    return [*([model] if model else []), *kept, *flags]


def environment(build: Build, given: Sequence[str]) -> tuple[str, ...]:
    """`NAME=value` of every boot; a name that is given replaces the recipe's."""
    named = {text.partition("=")[0] for text in given}
    return (*(f"{name}={value}" for name, value in build.env.items() if name not in named), *given)


def recipe_notes(suite: Suite, engine: str) -> list[str]:
    """What of a recipe's build its source does not say; nothing where another engine is measured."""
    if suite.build is None or not suite.build.unknown or suite.build.engine != engine:
        return []
    return [f"recipe {suite.name}: its source does not say, so the engine decides: {'; '.join(suite.build.unknown)}"]


def _groups(args: Sequence[str]) -> list[list[str]]:
    """Each flag with its values."""
    groups: list[list[str]] = []
    for part in args:
        if part.startswith("-") and not _is_number(part):
            groups.append([part])
        else:
            groups[-1].append(part)
    return groups


def _is_number(text: str) -> bool:
    return text.lstrip("-").replace(".", "", 1).isdigit()


def _name(flag: str) -> str:
    """A flag's long name, whether it turns something on or off."""
    name = flag.partition("=")[0]
    return ALIASES.get(name, name).replace("--no-", "--", 1)

"""The report as one HTML file: style and plots inside, no script, nothing fetched, every text escaped."""

from __future__ import annotations

from dsbench.errors import InputError
from dsbench.report.page import Page
from dsbench.report.units import gain, size
from dsbench.report.visible import visible

TEMPLATE = "report.html.j2"


def html(page: Page) -> str:
    """The page from its data. InputError if jinja2 is not installed."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise InputError(
            "report: the HTML page needs jinja2: pip install 'dsbench-dspark[report]', or take --format md"
        ) from None
    environment = Environment(
        loader=PackageLoader("dsbench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = {"size": size, "gain": gain, "bytes": _bytes, "bytes_change": _change, "tensors": _tensors}
    return visible(environment.get_template(TEMPLATE).render(page=page, **figures)) + "\n"


def _bytes(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _change(before: int | None, after: int | None) -> str:
    if before is None or after is None:
        return "?"
    return f"{after - before:+,} B" if after != before else "0"


def _tensors(count: int, total: int) -> str:
    return f"{count} x, {total:,} B" if count else "-"

"""docs/suites.md is what the settings say of themselves."""

import re
from pathlib import Path

import pytest

from dsbench.answer_settings import SmokeItem
from dsbench.cli.suite_reference import described, reference
from dsbench.probe_settings import Probes
from dsbench.suite import Build, Suite, Timeouts, parse_suite

PAGE = Path(__file__).resolve().parents[3] / "docs" / "suites.md"


TABLES = [Suite, Timeouts, Build, SmokeItem, *(field.annotation.__args__[0] for field in Probes.model_fields.values())]


def test_the_page_is_current():
    made = "python -m dsbench.cli.suite_reference > docs/suites.md"
    assert PAGE.read_text(encoding="utf-8") == reference(), f"run: {made}"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_every_setting_says_what_it_does(table):
    assert {*table.model_fields} - {*described(table)} == set()


@pytest.mark.parametrize("name", Probes.model_fields)
def test_every_probe_and_its_settings_are_on_the_page(name):
    section = reference().split(f"\n## `[probes.{name}]`\n")[1].split("\n## ")[0]
    table = Probes.model_fields[name].annotation.__args__[0]
    assert {*re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)} == {*table.model_fields}


def test_types_bounds_and_defaults_are_told():
    page = reference()
    assert "| `limit` | whole number from 1 to 1,000,000 |  | Only the first so many questions" in page
    assert "| `top_p` | number above 0 to 1 | `1` |" in page
    assert "| `concurrencies` | list of whole numbers from 1 to 1,024 | `[1, 12]` |" in page
    assert '| `style` | `"report"` or `"pairs"` | required |' in page


def test_the_example_of_the_page_is_a_suite():
    text = re.search(r"```toml\n(.*?)```", reference(), re.DOTALL)[1]
    assert parse_suite(text, "page").probes.names() == ["smoke", "identity"]

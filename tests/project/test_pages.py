"""README and docs against the code: toggles, commands, modules, and what must not stand there."""

import re
from pathlib import Path

import pytest

from dsbench.cli import COMMANDS
from dsbench.cli.table import mib
from impl.dims import FLASH
from impl.toggles import REGISTRY

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)


def between(text: str, name: str) -> list[str]:
    return text.split(f"<!-- {name}:begin -->")[1].split(f"<!-- {name}:end -->")[0].strip().splitlines()


def test_toggle_table_is_the_registry():
    rows = [[cell.strip().replace("`", "") for cell in row.strip("|").split("|")] for row in between(README, "toggles")]
    expected = [
        [
            toggle.name,
            toggle.kind,
            toggle.phase,
            "moves" if toggle.moves_line else "-",
            mib(toggle.expected_bytes(FLASH)) if toggle.expected_bytes else "-",
            toggle.exactness_told,
            ", ".join(toggle.requires) or "-",
            toggle.primary,
        ]
        for toggle in REGISTRY.values()
    ]
    assert rows[2:] == expected


def test_what_is_unverified_is_called_so_with_the_command_that_would_verify_it():
    toggles = [toggle for toggle in REGISTRY.values() if toggle.unverified_on]
    assert [(toggle.name, toggle.unverified_on) for toggle in toggles] == [("c128_indices_in_place", "SM120")]
    pages = [README, *((ROOT / name).read_text("utf-8") for name in ("suites/sm120-pr.toml", "results/h200/README.md"))]
    for toggle in toggles:
        for page in pages:
            words = " ".join(page.replace("#", " ").split())
            assert f"unverified on {toggle.unverified_on}" in words
            assert toggle.name in words
            assert toggle.verified_by in words


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_readme(name):
    assert re.search(rf"^\| `dsbench {name}\b", README, re.MULTILINE)


def test_module_map_is_the_tree():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    mapped = re.findall(r"^\| `((?:dsbench|impl)/[\w/]+\.py)` \| \S", page, re.MULTILINE)
    modules = {
        path.relative_to(ROOT).as_posix()
        for package in ("dsbench", "impl")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    }
    assert sorted(mapped) == sorted(modules), "add or remove the module's row in docs/architecture.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_no_machine_and_no_index(page):
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w.])/(?:work|home|root|usr|opt|tmp|mnt|srv|data|Users)/\S*", text) == []
    assert re.findall(r"\bpypi\b|pythonhosted|npmjs|index-url", text, re.IGNORECASE) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_make_targets_of_the_readme_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"\bmake (\w+)", README))
    assert named == {"demo", "test"}
    assert named | {"lint"} <= targets

"""`python -m tests.browser.check_report report.html...`: a report in headless Chromium, two widths, light and dark.

Refused are: console messages, requests for anything but the file, horizontal overflow, text with less contrast than
4.5 against what lies under it, and labels of plots that touch each other or leave their plot. Exit code 1 if any is
found. `--pictures DIR` keeps a PNG of each page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.browser.browser import Browser, missing

WIDTHS = (390, 1440)
LEAST_CONTRAST = 4.5
LOOKED_AT = Path(__file__).with_name("look.js")


def problems(browser: Browser, page: Path, pictures: Path | None = None) -> Iterator[str]:
    """One line a problem, over both widths and both colour schemes, with every section unfolded."""
    look = LOOKED_AT.read_text(encoding="utf-8").replace("LEAST_CONTRAST", str(LEAST_CONTRAST))
    for width in WIDTHS:
        for dark in (False, True):
            where = f"{page.name} at {width} px, {'dark' if dark else 'light'}"
            browser.show(page, width, dark)
            found = browser.evaluate(look)
            if pictures:
                name = f"{page.resolve().parent.name}-{width}-{'dark' if dark else 'light'}.png"
                browser.picture(pictures / name)
            yield from (f"{where}: {problem}" for problem in found)
            yield from (f"{where}: console: {entry['message']}" for entry in browser.logs("browser"))
            asked = [url for url in browser.requests() if url != page.resolve().as_uri()]
            yield from (f"{where}: asked for {url}" for url in asked)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path, metavar="report.html")
    parser.add_argument("--pictures", type=Path, metavar="DIR")
    asked = parser.parse_args()
    if absent := missing():
        print(f"check_report: {absent}", file=sys.stderr)
        return 2
    if asked.pictures:
        asked.pictures.mkdir(parents=True, exist_ok=True)
    found = 0
    with Browser() as browser:
        for page in asked.pages:
            told = list(problems(browser, page, asked.pictures))
            found += len(told)
            print("\n".join(told) if told else f"{page}: nothing found at {WIDTHS} px, light and dark")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m impl.audit [--toggle T] [--json]`: run the checks, one after the other.

With --json, one object a line: when a check starts, and its report. Exit code 0 clean, 1 findings, 2 usage, 4 something
not run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from impl.audit.checks import concerning, run
from impl.audit.report import Report
from impl.toggles import ToggleError

EXIT = {"clean": 0, "findings": 1, "not-run": 4}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m impl.audit", description=__doc__.splitlines()[0])
    parser.add_argument("--toggle", help="only the checks that concern this toggle")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    args = parser.parse_args(argv)
    try:
        chosen = concerning(args.toggle)
    except ToggleError as error:
        print(f"impl.audit: {error}", file=sys.stderr)
        return 2
    worst = 0
    for check in chosen:
        if args.json:
            _say({"event": "start", "check": check.name})
        report = run(check)
        worst = max(worst, EXIT[report.status])
        if args.json:
            _say({"event": "report", **report.to_json()})
        else:
            _print(report)
    return worst


def _say(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)


def _print(report: Report) -> None:
    print(f"{report.status:<8} {report.check:<13} {report.seconds:6.2f} s  {report.reason or report.question}")
    for finding in report.findings:
        print(f"  {finding.code}: {finding.what}\n    at {finding.where}\n    -> {finding.mend}")
    for name, figure in report.evidence.items():
        print(f"    {name}: {figure}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

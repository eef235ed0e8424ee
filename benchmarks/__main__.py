"""Speed and memory as ratios in one run: `make bench`, or `python -m benchmarks [CASE ...]`.

Each case runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

from benchmarks.cases import CASES

HEAD = "| work | ours | bare work | ratio (budget) | peak (budget) | the loop way | factor gained |"


def row(name: str) -> str:
    """One case, measured in a fresh process, as a row of a Markdown table."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--one", name], capture_output=True, text=True
    )
    if done.returncode:
        return f"| {name} | failed: {done.stderr.strip().splitlines()[-1]} | | | | | |"
    t = json.loads(done.stdout)
    ratio = f"{t['ours'] / t['bare']:.2f} ({t['budget']:g})"
    peak = f"{t['peak']:.2f} GB" + (f" ({t['peak_budget']:g})" if t["peak_budget"] else "")
    others = "".join(f"; {other} {took:.2f} s" for other, took in t["others"].items())
    work = (CASES[name].__doc__ or name).strip()
    return (
        f"| {work} | {t['ours']:.2f} s | {t['bare']:.2f} s{others} "
        f"| {ratio} | {peak} | {t['loop']:,.0f} s | {t['loop'] / t['ours']:,.0f} |"
    )


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--one"]:
        print(json.dumps(asdict(CASES[arguments[1]]())))
        return
    print(HEAD)
    print("|---" * 7 + "|")
    for name in arguments or CASES:
        print(row(name), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Speed and memory as ratios in one run: `make bench`, or `python -m benchmarks [CASE ...]`.

Each case runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

from benchmarks.cases import CASES

USAGE = f"usage: python -m benchmarks [CASE ...]    (cases: {', '.join(CASES)}; all by default)"
HEAD = (
    "| work | tiltmeter | minimum work | ratio (budget) | peak memory (budget) | loop | speedup |"
)


def row(name: str) -> tuple[str, bool]:
    """One case, measured in a fresh process, as a row of a Markdown table; whether it worked."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--one", name], capture_output=True, text=True
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return f"| {name} | failed: {reason} | | | | | |", False
    t = json.loads(done.stdout)
    ratio = f"{t['ours'] / t['bare']:.2f} ({t['budget']:g})"
    peak = f"{t['peak']:.2f} GB" + (f" ({t['peak_budget']:g})" if t["peak_budget"] else "")
    others = "".join(f"; {other} {took:.2f} s" for other, took in t["others"].items())
    work = (CASES[name].__doc__ or name).strip()
    return (
        f"| {work} | {t['ours']:.2f} s | {t['bare']:.2f} s{others} "
        f"| {ratio} | {peak} | {t['loop']:,.0f} s | {t['loop'] / t['ours']:,.0f} |"
    ), True


def main(arguments: list[str]) -> int:
    """The exit code: 1 if a case failed, 2 for an unknown one."""
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    if arguments[:1] == ["--one"]:
        print(json.dumps(asdict(CASES[arguments[1]]())))
        return 0
    unknown = [name for name in arguments if name not in CASES]
    if unknown:
        print(f"unknown case {', '.join(map(repr, unknown))}; {USAGE}", file=sys.stderr)
        return 2
    print(HEAD)
    print("|---" * 7 + "|")
    failed = False
    for name in arguments or CASES:
        text, worked = row(name)
        print(text, flush=True)
        failed |= not worked
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

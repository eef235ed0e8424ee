"""Writes docs/papers/NAME.md from the recipe of each paper: `python -m tools.papers`."""

from __future__ import annotations

from pathlib import Path

from tiltmeter.pages.markdown import escape
from tiltmeter.reproduce import PAPERS
from tiltmeter.reproduce.recipe import Item, Paper

FOLDER = Path(__file__).parent.parent / "docs" / "papers"


def page(paper: Paper) -> str:
    """The page of a paper: how to make it, and every table and figure with its shortfalls."""
    data = " ".join(f"--data {role}=SPEC" for role in paper.data)
    trains = any(measurement.trains for measurement in paper.measurements.values())
    add = "; add `--train` for those that need training" if trains else ""
    lines = [
        f"# {paper.title}",
        "",
        f"{paper.source}. One command makes the tables and figures listed below{add}:",
        "",
        "```sh",
        f"tiltmeter reproduce {paper.name} --out {paper.name}   # the built-in world",
        f"tiltmeter reproduce {paper.name} MODEL {data} --out {paper.name}-mine",
        "```",
        "",
        "| data | what the paper used |",
        "|---|---|",
        *(f"| `{role}` | {escape(what)} |" for role, what in paper.data.items()),
        "",
        "Published values are shown next to ours only for the same model, data, words and "
        "convention.",
        "",
        "| item | what it shows | made | differences from the paper |",
        "|---|---|---|---|",
        *(_line(paper, item) for item in paper.items),
        "",
    ]
    if paper.scores:
        lines += ["## Scores", "", "| score | meaning |", "|---|---|"]
        lines += [
            f"| [{name}](../metrics/{name}.md) | {escape(what)} |"
            for name, what in paper.scores.items()
        ]
        lines.append("")
    if paper.notes:
        lines += ["## Differences from the paper", "", *(f"- {note}" for note in paper.notes), ""]
    lines += ["<!-- Written by `python -m tools.papers` from the recipe: edit that. -->", ""]
    return "\n".join(lines)


def _line(paper: Paper, item: Item) -> str:
    made = "no" if item.layout is None else "yes"
    if any(paper.measurements[name].trains for name in item.needs):
        made = "with `--train`"
    elif any(paper.measurements[name].trains for name in item.takes):
        made = "in part; all with `--train`"
    return f"| {item.label} | {escape(item.title)} | {made} | {item.reason or item.shortfall} |"


def main() -> None:
    """Write the page of every paper."""
    FOLDER.mkdir(exist_ok=True)
    for name in PAPERS:
        (FOLDER / f"{name}.md").write_text(page(PAPERS[name]), encoding="utf-8")


if __name__ == "__main__":
    main()

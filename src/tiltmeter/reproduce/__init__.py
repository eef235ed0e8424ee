"""`tiltmeter reproduce`: every table and figure of a paper, one recipe file per paper.

A recipe is data. It lists what is measured, each measurement once (`Audit`, `CaptionAudit`,
`Debiasing` in `measurements.py`), and the items of the paper, each table and figure under its
number. An item names the measurements that it reads and a layout: a function from a `Study`, the
finished runs, to tables, plots and notes of `tiltmeter.pages.model`. A layout selects and sorts
rows; it computes nothing that a probe or metric could compute. An item that cannot be made has a
`reason` in place of a layout. An item that is made, but not as printed, has a `shortfall`.

To add a paper:

1. `reproduce/NAME.py` with a `PAPER`, like `sobit.py`.
2. A line in `PAPERS` below.
3. `papers/published/SOURCE.yaml` with every printed value; its name in `SOURCES` there. A run finds
   a value by model (`models:` has the aliases), data (`datasets:` has the sizes), words and
   convention, and only then it is shown next to ours.
4. `python -m tools.papers` writes docs/papers/NAME.md from the recipe; add it to mkdocs.yml.

The frame does the rest: it measures each (measurement, model) once and keeps the runs, says for
each item why it is not made, puts published values next to ours, and writes the page.
"""

from __future__ import annotations

from tiltmeter.registry import Registry

_HERE = "tiltmeter.reproduce"
PAPERS = Registry(
    "paper",
    {
        "berg": f"{_HERE}.berg:PAPER",
        "sobit": f"{_HERE}.sobit:PAPER",
        "propagation": f"{_HERE}.propagation:PAPER",
        "vlstereoset": f"{_HERE}.vlstereoset:PAPER",
        "counterbias": f"{_HERE}.counterbias:PAPER",
        "pairs": f"{_HERE}.pairs:PAPER",
    },
)

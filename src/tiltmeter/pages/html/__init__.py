"""The HTML report of a run.

>>> from tiltmeter.pages.html import write
>>> from tiltmeter.results import Run, rows
>>> import tempfile
>>> run = Run(rows(1, probe="mine", metric="gap", value=[0.2], ideal=0.0))
>>> place = write(run, f"{tempfile.mkdtemp()}/report.html")
>>> place.read_text().count("<table")
1
"""

from tiltmeter.pages.html.page import write
from tiltmeter.pages.report import page_of

__all__ = ["page_of", "write"]

"""Every recipe lists the whole paper, and its page in docs is up to date."""

from __future__ import annotations

import pytest

from tiltmeter.papers.published import SOURCES, published
from tiltmeter.reproduce import PAPERS
from tools.papers import FOLDER, page

NAMES = list(PAPERS)


@pytest.mark.parametrize("name", NAMES)
def test_every_table_and_figure_is_an_item(name: str) -> None:
    paper = PAPERS[name]
    labels = [item.label for item in paper.items]
    assert len(set(labels)) == len(labels)
    expected = {f"Table {at}" for at in range(1, paper.tables + 1)}
    expected |= {f"Figure {at}" for at in range(1, paper.figures + 1)}
    assert expected <= {label.rstrip("ab") for label in labels}  # Table 4 may be 4a and 4b


@pytest.mark.parametrize("name", NAMES)
def test_items_read_measurements_that_exist(name: str) -> None:
    paper = PAPERS[name]
    used = {one for item in paper.items for one in (*item.needs, *item.takes)}
    assert used == set(paper.measurements)
    for measurement in paper.measurements.values():
        roles = {name for role in measurement.roles for name in role.split("|")}
        assert roles <= set(paper.data)


@pytest.mark.parametrize("name", NAMES)
def test_published_values_belong_to_items(name: str) -> None:
    paper = PAPERS[name]
    assert paper.name == name
    assert paper.published in SOURCES
    numbers = {item.number for item in paper.items}
    assert {value.table for value in published(paper.published)} <= numbers


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_up_to_date(name: str) -> None:
    file = FOLDER / f"{name}.md"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    assert text == page(PAPERS[name]), "run: python -m tools.papers"

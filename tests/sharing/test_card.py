"""A model card: the Hub reads it, its numbers are the run's, and nobody else's line changes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.conftest import brought_embeddings
from tiltmeter.auditing.audit import audit
from tiltmeter.cli.app import app
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.judge.panel import panel
from tiltmeter.pages.markdown import escape
from tiltmeter.results import Run, file_hash, rows
from tiltmeter.sharing.card import (
    BEGIN,
    END,
    SOURCE,
    card,
    command,
    headline,
    model_index,
    of_model,
    put_into,
    section,
)

hub = pytest.importorskip("huggingface_hub")

FEW: dict[str, Any] = {"permutations": 60, "bootstraps": 20, "seed": 3, "k": [20, 60]}


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return brought_embeddings(tmp_path_factory.mktemp("card") / "brought")


@pytest.fixture(scope="module")
def run(vectors: Path) -> Run:
    return audit(f"embeddings:{vectors}", cross=["gender*age"], **FEW)


# --- the Hub reads it ---------------------------------------------------------------------------


def test_the_hub_reads_every_figure(run: Run, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(card(run), encoding="utf-8")
    data = hub.metadata_load(tmp_path / "README.md")
    name, read = hub.repocard_data.model_index_to_eval_results(data["model-index"])
    assert name == run.meta["model"]["name"]
    expected = {
        (row["dataset"], row["attribute"], row["metric"], row["k"]): row for row in headline(run)
    }
    found = {(one.dataset_name, one.dataset_config, one.metric_type, one.metric_args.get("k")): one
             for one in read}  # fmt: skip
    assert found.keys() == expected.keys()
    assert len(expected) == 3 * (2 * 3 + 1)  # attributes x (k x (max, min, entropy) + NDKL)
    for key, row in expected.items():
        assert found[key].metric_value == pytest.approx(row["value"], rel=1e-5)
        assert found[key].metric_args["null_high"] == pytest.approx(row["null_high"], rel=1e-5)
        assert found[key].metric_args["convention"] == row["convention"]
    loaded = hub.ModelCard.load(tmp_path / "README.md")
    assert len(loaded.data.eval_results) == len(expected)
    # written by the Hub's own code and read again it is the same
    assert hub.ModelCard(str(loaded)).data.to_dict() == loaded.data.to_dict()


def test_the_section_has_what_a_reader_needs(run: Run) -> None:
    text = section(run)
    for title in ("What was measured", "Main results", "What cannot be concluded",
                  "How to reproduce"):  # fmt: skip
        assert f"### {title}" in text
    assert "perceived labels" in text
    assert "Seed 3" in text
    assert f"tiltmeter {run.meta['versions']['tiltmeter']}" in text
    table = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert len(table) == len(headline(run))
    for line, row in zip(table, headline(run), strict=True):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        assert float(cells[3].replace("−", "-")) == pytest.approx(row["value"], abs=6e-4)
        low, high = (float(x.replace("−", "-")) for x in cells[5].split(" to "))
        assert (low, high) == pytest.approx((row["null_low"], row["null_high"]), abs=6e-4)
        assert cells[7] == f"{row['n']:,}"


def test_the_command_makes_the_run_again(vectors: Path, tmp_path: Path) -> None:
    spec = f"embeddings:{vectors}"
    first = audit(spec, attributes=["gender"], probes=["ranking"], convention="sfid", k=[30],
                  permutations=20, bootstraps=0, seed=5)  # fmt: skip
    one = first.save(tmp_path / "one")
    words = shlex.split(str(command(first.meta)))
    assert words[0] == "tiltmeter"
    place = tmp_path / "two"
    done = CliRunner().invoke(app, [*words[1:], "--out", str(place), "--no-report"])
    assert done.exit_code == 0, done.output
    assert file_hash(place / "results.parquet") == file_hash(one / "results.parquet")


def test_every_argument_is_in_the_command() -> None:
    given = {"faces": "table:a b.csv", "words": "w.yaml", "probes": ["ranking"], "k": [5, 7],
             "data": {"captions": "coco:x"}, "options": {"eat": {"ddof": "wefe"}}, "strict": True,
             "cross": ["a*b"], "templates": ["a {}", "b `{}`"], "seed": 4}  # fmt: skip
    meta = {"model": {"spec": "hf:x"}, "arguments": {"given": given}}
    words = shlex.split(str(command(meta)))
    assert words[:3] == ["tiltmeter", "audit", "hf:x"]
    for option in ("--images", "table:a b.csv", "--k", "7", "captions=coco:x", "eat.ddof=wefe",
                   "--strict", "a*b", "b `{}`"):  # fmt: skip
        assert option in words
    assert command({"model": {"spec": None}, "arguments": {"given": given}}) is None
    text = section(Run(rows(1, probe="eat", metric="weat", value=[1.0]), meta))
    fence = next(line for line in text.splitlines() if line.startswith("``"))
    assert fence == "```sh"  # longer than any run of backticks inside


# --- a card that is there already ---------------------------------------------------------------

OTHERS = """---
license: mit   # as the weights
tags:
- clip
# results of others
model-index:
- name: my-model
  results:
  - task: {type: image-classification}
    dataset: {type: beans, name: Beans}
    metrics:
    - {type: accuracy, value: 0.9}

# what follows is the author's
library_name: 'transformers'
---
# My model

Text | with `signs`, <b>tags</b>.
"""


def without_ours(text: str) -> str:
    """A card less what we may write: our section, and the lines of the model index."""
    text = re.sub(f"\\s*{re.escape(BEGIN)}.*?{re.escape(END)}\\s*", "\n", text, flags=re.S)
    return re.sub(r"^model-index:.*?(?=^(?:\S(?<!-)|$))", "", text, flags=re.S | re.M).rstrip()


def test_only_ours_changes(run: Run) -> None:
    new = card(run, OTHERS)
    assert without_ours(new) == without_ours(OTHERS)
    assert "license: mit   # as the weights" in new
    assert "# what follows is the author's\nlibrary_name: 'transformers'\n---\n# My model" in new
    read = hub.ModelCard(new).data
    assert read.license == "mit"
    assert read.model_name == "my-model"
    assert [one.metric_value for one in read.eval_results if one.dataset_type == "beans"] == [0.9]
    assert len(read.eval_results) == 1 + len(headline(run))
    assert card(run, new) == new  # once more changes nothing
    # another run takes the place of the first, and leaves the others' results
    less = Run(run.table.filter([row == "gender" for row in run.table["attribute"].to_pylist()]),
               run.meta)  # fmt: skip
    newer = card(less, new)
    assert newer.count(BEGIN) == newer.count(END) == 1
    read = hub.ModelCard(newer).data
    assert len(read.eval_results) == 1 + len(headline(less)) < 1 + len(headline(run))
    assert without_ours(newer) == without_ours(OTHERS)


HEADS = ["license: mit", "tags: [a, b]", "# a comment", "", "language:\n- en\n- de",
         "title: 'a: b' # so", "text: |\n  lines\n  of text",
         "widget:\n  - text: x\n    n: 1"]  # fmt: skip


@given(
    head=st.lists(st.sampled_from(HEADS), unique=True, max_size=6),
    body=st.text(alphabet="ab#-|<>`*_é漢\u202e \n", max_size=60),
    index=st.none() | st.integers(0, 6),
    line=st.sampled_from(["\n", "\r\n"]),
    fenced=st.booleans(),
)
def test_every_other_byte_stays(
    run_of_one: Run, head: list[str], body: str, index: int | None, line: str, fenced: bool
) -> None:
    head = list(head)
    if index is not None:
        old = "model-index:\n- name: x\n  results:\n  - task: {type: t}\n    dataset: {type: d, " \
              "name: d}\n    metrics: [{type: m, value: 1}]"  # fmt: skip
        head.insert(min(index, len(head)), old)
    known = yaml.safe_load("".join(f"{x}\n" for x in head)) or {}
    existing = body if not fenced and not head else "---\n" + "".join(f"{x}\n" for x in head) \
        + "---\n" + body  # fmt: skip
    existing = existing.replace("\n", line)
    ours, index_ = f"{BEGIN}\n\ntext\n\n{END}\n", model_index(run_of_one)
    new = put_into(existing, ours, index_)
    read = yaml.safe_load(re.split(r"^---\s*?$", new, flags=re.M)[1])
    assert {k: v for k, v in read.items() if k != "model-index"} == {
        k: v for k, v in known.items() if k != "model-index"
    }
    if index is not None:
        assert read["model-index"][0]["results"][0]["dataset"]["name"] == "d"
    for one in head:
        if not one.startswith("model-index"):
            assert one.replace("\n", line) in new
    if existing:
        assert body.replace("\n", line) in new
    assert put_into(new, ours, index_) == new
    if "\r\n" in existing:
        assert not re.search(r"(?<!\r)\n", new)


@pytest.fixture(scope="module")
def run_of_one() -> Run:
    table = rows(1, probe="zero_shot", metric="accuracy", model="m", dataset="d", value=[0.5],
                 ci_low=0.4, ci_high=0.6, n=100)  # fmt: skip
    return Run(table, {"model": {"name": "m"}})


@pytest.mark.parametrize(
    ("existing", "match"),
    [
        (f"text {BEGIN} and no end", "one of each was expected"),
        (f"{END} {BEGIN}", "one of each was expected"),
        (f"{BEGIN}{END}{BEGIN}{END}", "one of each was expected"),
        ("---\na: [\n---\ntext", "cannot be read"),
        ("---\n- a\n- b\n---\ntext", "not a mapping"),
        ("---\nmodel-index: 3\n---\ntext", "not a list of entries"),
        ("---\n{a: 1, b: 2}\n---\ntext", "block style"),
    ],
)
def test_a_card_that_is_not_understood_is_left(run_of_one: Run, existing: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        card(run_of_one, existing)


# --- what users name ----------------------------------------------------------------------------

EVIL = ["<script>alert(1)</script>", END, "a | b", "`x` *y* [z](http://x)", "\u202eright to left",
        "line\nbreak\n---\n# title", "x" * 10_000, '"quoted" \'twice\'', "💥",
        "a: b # c"]  # fmt: skip


@pytest.mark.parametrize("label", EVIL, ids=range(len(EVIL)))
def test_labels_are_text(label: str) -> None:
    table = rows(2, probe="ranking", metric="max_skew", model=label, dataset=label, attribute=label,
                 k=10, value=[0.5, 0.6], ideal=0.0, convention=label, n=10)  # fmt: skip
    meta = {"model": {"name": label, "spec": label}, "data": {"faces": {"name": label}},
            "arguments": {"given": {"words": label}}, "not_run": {"x": label}}  # fmt: skip
    text = card(Run(table, meta))
    head, _, body = text[4:].partition("\n---\n")
    assert body.count(BEGIN) == body.count(END) == 1
    prose = re.sub(r"^(`{3,})sh\n.*?^\1$", "", body, flags=re.S | re.M)
    assert "<script" not in prose.replace("\\<script", "")
    assert "\u202e" not in prose
    assert yaml.safe_load(head)["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.5
    assert hub.ModelCard(text).data.eval_results
    for line in prose.splitlines():
        if line.startswith("| "):
            assert len(re.split(r"(?<!\\)\|", line)) == 10  # a bar in a label is no cell
    assert card(Run(table, meta), text) == text


def test_what_was_not_measured_has_no_index() -> None:
    bare = Run(rows(1, probe="harms", metric="gaps", target="crime", value=[0.1]), {})
    assert model_index(bare) is None
    text = card(bare)
    assert text.startswith(BEGIN)
    assert "made from Python" in text
    assert escape("a_b") == "a\\_b"
    # results that we wrote before go, those of others stay
    before = f"---\nmodel-index:\n- name: x\n  results:\n  - source: {SOURCE}\n---\n"
    assert yaml.safe_load(card(bare, before).split("---")[1])["model-index"][0]["results"] == []


def test_one_card_one_model(vectors: Path, tmp_path: Path) -> None:
    other = brought_embeddings(tmp_path / "other", lean=0.0)
    few = {"probes": ["ranking"], "permutations": 0, "bootstraps": 0, "k": [20]}
    both = panel([audit(f"embeddings:{place}", **few) for place in (vectors, other)])
    names = sorted(set(both.table["model"].drop_null().to_pylist()))
    assert len(names) == 2
    with pytest.raises(InputError, match="--model NAME"):
        of_model(both)
    with pytest.raises(UnknownNameError):
        of_model(both, "nobody")
    mine = of_model(both, names[1])
    assert set(mine.table["model"].to_pylist()) == {names[1]}
    assert model_index(mine)["name"] == names[1]
    assert {row["model"] for row in headline(mine)} == {names[1]}


def test_the_command_line(run: Run, tmp_path: Path) -> None:
    place = run.save(tmp_path / "run")
    printed = CliRunner().invoke(app, ["card", str(place)])
    assert printed.exit_code == 0, printed.output
    out = tmp_path / "README.md"
    for existing, told in ((None, "written"), (OTHERS, "added"), (card(run, OTHERS), "replaced")):
        if existing is not None:
            out.write_text(existing)
        done = CliRunner().invoke(app, ["card", str(place), "--out", str(out)])
        assert done.exit_code == 0, done.output
        assert told in done.output
        assert out.read_text() == card(run, existing or "")
    assert printed.output == card(run)
    out.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        CliRunner().invoke(app, ["card", str(place), "-o", str(out)], catch_exceptions=False)
    assert out.read_bytes() == b"\xff\xfe"
    with pytest.raises(InputError, match="is a directory"):
        CliRunner().invoke(app, ["card", str(place), "-o", str(tmp_path)], catch_exceptions=False)

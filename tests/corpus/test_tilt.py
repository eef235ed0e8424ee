"""Figures of counts, whether the data explains a model, and the command."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command_line import tiltmeter
from tests.conftest import write_csv
from tiltmeter.corpus import audit_captions
from tiltmeter.errors import InputError
from tiltmeter.results import Run, rows
from tiltmeter.stats.intervals import wilson
from tiltmeter.stimuli import load

NURSES = [
    *["a nurse and her cat"] * 6, *["a nurse and his dog"] * 2, "he, she and a nurse",
    *["a woman, a nurse"] * 3, "a man, a nurse", *["a pilot and his plane"] * 5,
    *["a boy"] * 4, *["a girl"] * 4, *["a delivery man"] * 3, "a house",
]  # fmt: skip


def table(path: Path, captions: list[str]) -> Path:
    pq.write_table(pa.table({"caption": captions}), path)
    return path


def only(run: Run, **equal: object) -> dict[str, object]:
    [row] = run.where(**equal)
    return row


@pytest.fixture
def nurses(tmp_path: Path) -> Path:
    return table(tmp_path / "nurses.parquet", NURSES)


def test_figures_worked_out_by_hand(nurses: Path) -> None:
    run = audit_captions(nurses, words=["nurse", "pilot", "delivery man", "geologist"])
    n = only(run, concept="nurse", metric="frequency")
    assert (n["n"], n["n_group"], n["value"]) == (30, 13, 13 / 30)

    both = only(run, concept="nurse", experiment="pronoun both", group="female")
    assert (both["n_group"], both["n"], both["value"]) == (7, 10, 0.7)
    low, high = wilson(np.array(7), np.array(10))
    assert (both["ci_low"], both["ci_high"]) == pytest.approx((float(low), float(high)))
    assert both["null_mean"] == pytest.approx(7 / 15)  # of all captions: 7 she, 8 he
    alone = only(run, concept="nurse", experiment="pronoun exclusive", group="female")
    assert (alone["n_group"], alone["n"], alone["value"]) == (6, 8, 0.75)
    named = only(run, concept="nurse", metric="named", experiment="pronoun")
    assert (named["n_group"], named["n"]) == (9, 13)

    pmi = only(run, concept="nurse", metric="pmi", experiment="pronoun", group="female")
    assert pmi["value"] == pytest.approx(math.log((7 / 30) / (13 / 30 * 7 / 30)))
    odds = only(run, concept="nurse", metric="log_odds", experiment="noun")
    assert odds["value"] == pytest.approx(math.log(3.5 / 1.5) - math.log(7.5 / 8.5))


def test_what_is_undefined_says_why(nurses: Path) -> None:
    run = audit_captions(nurses, words=["nurse", "pilot", "delivery man", "geologist"])
    for row in run.table.to_pylist():
        assert (row["value"] is None) == (row["note"] is not None)
    man = only(run, concept="delivery man", metric="log_odds", experiment="noun")
    assert "itself names a group" in str(man["note"])
    never = only(run, concept="geologist", metric="named", experiment="noun")
    assert never["note"] == "no caption contains the word"
    assert only(run, concept="geologist", metric="frequency")["value"] == 0


def test_swapped_genders_swap_the_figures(tmp_path: Path, nurses: Path) -> None:
    swap = {"her": "his", "his": "her", "he,": "she,", "she": "he", "woman,": "man,",
            "man,": "woman,", "boy": "girl", "girl": "boy"}  # fmt: skip
    swapped = [" ".join(swap.get(word, word) for word in one.split()) for one in NURSES]
    words = ["nurse", "pilot"]
    one = audit_captions(nurses, words=words)
    other = audit_captions(table(tmp_path / "swapped.parquet", swapped), words=words)
    pair = [
        only(run, concept="nurse", experiment="pronoun both", group=group)["value"]
        for run, group in ((one, "female"), (other, "male"))
    ]
    assert pair[0] == pair[1] == 0.7


def planted(tmp_path: Path) -> tuple[Path, dict[str, float]]:
    """A corpus in which each of 40 words has its own share of women."""
    words = [word.text for word in load("sobit").words if word.category == "Occupation"]
    words = [word for word in words if " " not in word][:40]
    rng = np.random.default_rng(0)
    lean = dict(zip(words, rng.uniform(0.1, 0.9, len(words)).tolist(), strict=True))
    captions = [
        f"{'a woman' if rng.random() < share else 'a man'} near the {word}, no {at}"
        for word, share in lean.items()
        for at in range(60)
    ]
    return table(tmp_path / "planted.parquet", captions), lean


def model(lean: dict[str, float], noise: float, group: str = "Female") -> Run:
    """A run whose C-ASC of women follows the lean of the corpus, up to noise."""
    rng = np.random.default_rng(1)
    value = [share - 0.5 + noise * rng.normal() for share in lean.values()]
    found = rows(
        len(lean), metric="c_asc", model="m", dataset="faces", attribute="gender", group=group,
        concept=list(lean), category="Occupation", template="a photo of a {}", value=value,
    )  # fmt: skip
    return Run(found)


def test_a_model_that_follows_the_data_is_found_out(tmp_path: Path) -> None:
    corpus, lean = planted(tmp_path)
    close, blind = model(lean, 0.05), model(lean, 100.0)
    for name, run, low, high in (("close", close, 0.8, 1.0), ("blind", blind, -0.4, 0.4)):
        row = only(audit_captions(corpus, against=run), metric="spearman",
                   experiment="noun log_odds ~ c_asc")  # fmt: skip
        assert low < row["value"] < high, name
        assert row["ci_low"] < row["value"] < row["ci_high"]
        assert row["n"] == 40
        assert (row["ci_low"] > 0) == (name == "close")
    none = only(audit_captions(corpus, against=close), metric="spearman",
                experiment="pronoun log_odds ~ c_asc")  # fmt: skip
    assert none["value"] is None
    assert str(none["note"]).endswith("in the captions and in the run; got 0")


def test_a_run_without_groups_that_captions_name_is_refused(tmp_path: Path) -> None:
    corpus, lean = planted(tmp_path)
    with pytest.raises(InputError, match="its groups are round"):
        audit_captions(corpus, against=model(lean, 0.1, group="round"))


# --- the command -------------------------------------------------------------------------------


def test_the_command_prints_keeps_and_compares(tmp_path: Path) -> None:
    corpus, lean = planted(tmp_path)
    model(lean, 0.05).save(tmp_path / "run")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    done = tiltmeter("captions", corpus, tmp_path / "bad.parquet", "--against", tmp_path / "run",
                     "--out", tmp_path / "out")  # fmt: skip
    assert done.returncode == 0, done.stderr
    flat = " ".join(done.stdout.split())
    assert "2,400 captions of 1 file" in flat
    assert "Left out:" in flat
    assert "noun log_odds ~ c_asc" in flat
    head = [line for line in done.stdout.splitlines() if str(tmp_path) not in line]
    assert max(map(len, head)) <= 80
    run = Run.load(tmp_path / "out")
    assert run.instances["captions"].num_rows > 0
    assert list(run.meta["data"]["captions"]["broken"]) == [str(tmp_path / "bad.parquet")]


def test_the_command_speaks_json_and_reads_a_word_list(tmp_path: Path, nurses: Path) -> None:
    write_csv(tmp_path / "words.csv", [{"word": "nurse"}, {"word": "cat"}])
    done = tiltmeter("captions", nurses, "--words", tmp_path / "words.csv", "--json")
    told = json.loads(done.stdout)
    assert told["captions"] == 30
    assert told["words"]["distinct"] == 2


def test_what_the_user_can_put_right_is_one_line_and_exit_code_2(
    tmp_path: Path, nurses: Path
) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    for arguments in (
        ("captions", tmp_path / "nothing.csv"),
        ("captions", nurses, tmp_path / "bad.parquet", "--strict", "--out", tmp_path / "out"),
        ("captions", nurses, "--words", "sobitt"),
    ):
        done = tiltmeter(*arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()

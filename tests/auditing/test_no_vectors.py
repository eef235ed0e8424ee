"""`audit --no-vectors`: no vector of anybody is kept, the numbers are the same, and what cannot be
done any more is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.conftest import brought_embeddings
from tiltmeter.cli.app import app
from tiltmeter.errors import InputError
from tiltmeter.explorer.gather import gather
from tiltmeter.results import Run, file_hash
from tiltmeter.sharing.card import command


def said(*given: object) -> str:
    done = CliRunner().invoke(app, [str(one) for one in given], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same audit twice: with the vectors, and without."""
    home = tmp_path_factory.mktemp("audits")
    spec = f"embeddings:{brought_embeddings(home / 'vectors')}"
    audit = ("audit", spec, "--k", 20, "--permutations", 99, "--bootstraps", 40)
    said(*audit, "--out", home / "kept")
    said(*audit, "--out", home / "left", "--no-vectors")
    return home / "kept", home / "left"


def test_no_vector_is_kept_and_the_numbers_are_the_same(runs: tuple[Path, Path]) -> None:
    kept, left = runs
    assert {one.name for one in (kept / "vectors").iterdir()} == {
        "counts.parquet", "faces.parquet", "texts.parquet"
    }  # fmt: skip
    assert [one.name for one in (left / "vectors").iterdir()] == ["counts.parquet"]
    for file in left.rglob("*.parquet"):
        assert file_hash(file) == file_hash(kept / file.relative_to(left))
    assert (left / "report.html").is_file()


def test_a_bundle_can_be_recomputed(runs: tuple[Path, Path], tmp_path: Path) -> None:
    bundle = tmp_path / "b.tiltmeter.zip"
    said("bundle", runs[1], "--out", bundle)
    told = said("verify", bundle)
    assert "all are the same" in told
    done = CliRunner().invoke(app, ["bundle", str(runs[1]), "--with-vectors", "--out",
                                    str(tmp_path / "c.tiltmeter.zip")])  # fmt: skip
    assert isinstance(done.exception, InputError)
    assert "made with --no-vectors" in str(done.exception)


def test_a_comparison_says_that_it_is_unpaired(runs: tuple[Path, Path]) -> None:
    few = ("--bootstraps", 49)
    assert "images, paired." in said("compare", runs[0], runs[0], *few)
    told = said("compare", runs[0], runs[1], *few)
    assert "Unpaired, which detects less" in told
    assert "made with --no-vectors" in told


def test_there_is_nothing_to_explore(runs: tuple[Path, Path]) -> None:
    assert len(gather(runs[0], [], None)) == 240
    with pytest.raises(InputError, match=r"cannot be explored.*--no-vectors"):
        gather(runs[1], [], None)


def test_the_command_of_a_card_leaves_them_out_too(runs: tuple[Path, Path]) -> None:
    told = [command(Run.load(place).meta) for place in runs]
    assert ["--no-vectors" in str(one) for one in told] == [False, True]

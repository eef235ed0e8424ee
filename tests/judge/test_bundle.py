"""A bundle is as it was packed or says what is not; its numbers follow from its counts."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from tests.conftest import brought_embeddings
from tiltmeter.auditing.audit import audit
from tiltmeter.cli.app import app
from tiltmeter.datasets import load_data
from tiltmeter.debiasers.debiased import Debiased
from tiltmeter.debiasers.pbm import Pbm
from tiltmeter.errors import InputError
from tiltmeter.judge.bundle import verify as verifying
from tiltmeter.judge.bundle.pack import bundle, headline, part_entry, seal
from tiltmeter.judge.bundle.recompute import METRICS
from tiltmeter.judge.bundle.verify import VerificationResult, verify
from tiltmeter.judge.bundle.zip_file import packed, unpacked
from tiltmeter.judge.panel import panel
from tiltmeter.models import load_model
from tiltmeter.results import Run, rows
from tiltmeter.results.run import SEAL, record_hash

FEW = {"permutations": 60, "bootstraps": 20, "seed": 3}
END = ".tiltmeter.zip"


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return brought_embeddings(tmp_path_factory.mktemp("bundle") / "brought")


@pytest.fixture(scope="module")
def saved(vectors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = audit(f"embeddings:{vectors}", cross=["gender*age"], k=[20, 60], **FEW)
    return run.save(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def whole(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle(saved, tmp_path_factory.mktemp("whole") / f"one{END}").path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a few kilobytes, of which every byte can be changed."""
    place = tmp_path_factory.mktemp("small")
    table = rows(1, probe="harms", metric="gaps", attribute="gender", value=[0.25], ideal=0.0)
    Run(table, {"seed": 0}).save(place / "run")
    return bundle(place / "run", place / f"small{END}").path


def parts_of(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and the other parts, read by somebody else's code."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(parts.pop("manifest.json"))
    parts.pop("manifest.sha256")
    return manifest, parts


def resealed(path: Path, manifest: dict[str, Any], parts: dict[str, bytes], to: Path) -> Path:
    """A bundle whose manifest fits its parts, whoever changed them."""
    manifest = {**manifest, "parts": {name: part_entry(one) for name, one in parts.items()}}
    to.write_bytes(seal(manifest, parts)[0])
    return to


def forged(path: Path, change: Callable[[pa.Table], pa.Table], to: Path) -> Path:
    """A bundle with other results, every hash made to fit: only the counts are honest."""
    manifest, parts = parts_of(path)
    table = change(pq.read_table(io.BytesIO(parts["results.parquet"])))
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    parts["results.parquet"] = sink.getvalue()
    record = json.loads(parts["run.json"])
    digest = hashlib.sha256(parts["results.parquet"]).hexdigest()
    record["files"]["results.parquet"] = digest
    record.pop(SEAL, None)
    record["hash"] = record_hash(record)
    parts["run.json"] = json.dumps(record).encode()
    return resealed(path, {**manifest, "headline": headline(table)}, parts, to)


def changed(column: str, new: Any, **where: Any) -> Callable[[pa.Table], pa.Table]:
    """Sets one column of the first row that has some values."""

    def change(table: pa.Table) -> pa.Table:
        listed = table.to_pylist()
        row = next(row for row in listed
                   if all(row[name] == one for name, one in where.items()))  # fmt: skip
        assert row[column] != new
        row[column] = new
        return pa.Table.from_pylist(listed, schema=table.schema)

    return change


# --- round trip ----------------------------------------------------------------------------------


def test_what_was_packed_is_found_as_it_was(whole: Path, saved: Path) -> None:
    found = verify(whole)
    assert found.ok, (found.problems, found.recomputed and found.recomputed.differences[:3])
    assert found.recomputed is not None
    table = Run.load(saved).table
    for metric in METRICS:
        keep = pc.and_(pc.equal(table["metric"], metric), pc.is_null(table["factor"]))
        assert found.recomputed.compared[metric] == pc.sum(keep).as_py() > 0
    single = table.filter(
        pc.and_(pc.equal(table["metric"], "skew"), pc.is_valid(table["template"]))
    )
    words = pc.sum(pc.not_equal(single["category"], "placebo")).as_py()
    assert found.recomputed.exact_p >= words > 0
    # what is not recomputed is said, and is nothing of the above
    assert {metric for _, metric in found.recomputed.not_recomputed} & set(METRICS) == set()
    assert ("ranking", "ndkl") in found.recomputed.not_recomputed


@pytest.mark.parametrize("convention", ["berg2022", "bendvlm", "sfid", "sobit2024"])
def test_every_convention(vectors: Path, tmp_path: Path, convention: str) -> None:
    run = audit(f"embeddings:{vectors}", convention=convention, k=[30], probes=["ranking"],
                permutations=20, bootstraps=0, seed=1)  # fmt: skip
    found = verify(bundle(run.save(tmp_path / "run"), tmp_path / f"x{END}").path)
    assert found.ok
    assert found.recomputed is not None
    assert set(found.recomputed.compared) == set(METRICS)


@pytest.mark.parametrize("convention", ["tiltmeter", "berg2022"])
def test_a_re_ranker_is_known_by_its_order(tmp_path: Path, convention: str) -> None:
    spec = f"embeddings:{brought_embeddings(tmp_path / 'brought')}"
    faces = load_data(spec)
    made = Pbm().fit(faces.vectors, faces.groups["gender"])
    run = audit(Debiased(load_model(spec), made, spec=spec), spec, probes=["ranking"],
                k=[20, 60], convention=convention, permutations=20, bootstraps=0)  # fmt: skip
    assert any("order re-ranked" in (row["note"] or "") for row in run.where(metric="skew"))
    found = verify(bundle(run.save(tmp_path / "run"), tmp_path / f"x{END}").path)
    assert found.ok
    assert found.recomputed is not None
    assert found.recomputed.compared["skew"] > 0
    assert "c_asc" not in found.recomputed.compared  # a re-ranker has no scores of its own


def test_several_models_in_one_run(tmp_path: Path) -> None:
    """Each has counts of its own; what compares them is left."""
    runs = [
        audit(f"embeddings:{brought_embeddings(tmp_path / name, lean=lean)}", probes=["ranking"],
              k=[20], permutations=20, bootstraps=0)
        for name, lean in (("one", 1.5), ("two", 0.0))
    ]  # fmt: skip
    both = panel(runs)
    found = verify(bundle(both.save(tmp_path / "run"), tmp_path / f"x{END}").path)
    assert found.ok
    assert found.recomputed is not None
    assert {row["model"] for row in found.recomputed.overall} == {"one", "two"}
    assert any(probe == "panel" for probe, _ in found.recomputed.not_recomputed)
    # without them it says so
    alone = Run(both.table, both.meta, both.instances)
    bare = bundle(alone.save(tmp_path / "bare"), tmp_path / f"bare{END}")
    assert "combines several audits" in bare.manifest["counts"]["why_not"]
    assert verify(bare.path).ok


def test_counts_are_what_a_slow_count_gives(vectors: Path, whole: Path) -> None:
    """By plain Python from the vectors, for every word: sizes, means, squares, top 20."""
    images, texts = (np.load(vectors / f"{name}.npy").astype(float) for name in ("images", "texts"))
    images /= np.linalg.norm(images, axis=1)[:, None]
    texts /= np.linalg.norm(texts, axis=1)[:, None]
    labels = [line.split(",")[1] for line in (vectors / "images.csv").read_text().split()[1:]]
    counts = pq.read_table(io.BytesIO(parts_of(whole)[1]["counts.parquet"])).to_pylist()
    mine = [row for row in counts if row["attribute"] == "gender"]
    assert len(mine) == len(texts)
    for row in mine:
        scores = images @ texts[int(row["concept"].split()[1])]
        best = sorted(range(len(scores)), key=lambda at: -scores[at])[:20]
        for at, name in enumerate(row["groups"]):
            own = [score for score, label in zip(scores, labels, strict=True) if label == name]
            assert row["sizes"][at] == len(own)
            assert row["mean"][at] == pytest.approx(sum(own) / len(own), abs=1e-6)
            m2 = sum((one - sum(own) / len(own)) ** 2 for one in own)
            assert row["m2"][at] == pytest.approx(m2, rel=1e-4)
            assert row["top"][0][at] == sum(labels[one] == name for one in best)


def test_exact_p_is_the_hypergeometric_one(whole: Path) -> None:
    _, parts = parts_of(whole)
    counts = pq.read_table(io.BytesIO(parts["counts.parquet"])).to_pylist()
    results = pq.read_table(io.BytesIO(parts["results.parquet"])).to_pylist()
    row = next(row for row in counts if row["attribute"] == "gender")
    k, top, sizes = row["k"][0], row["top"][0], row["sizes"]
    law = stats.hypergeom(sum(sizes), sizes[0], k)
    expected = min(1.0, 2 * min(law.sf(top[0] - 1), law.cdf(top[0])))
    said = [one for one in results if one["metric"] == "skew" and one["k"] == k
            and one["group"] == row["groups"][0] and one["concept"] == row["concept"]]  # fmt: skip
    assert said[0]["p"] == pytest.approx(expected, rel=1e-9)


def test_same_run_same_bytes(saved: Path, whole: Path, tmp_path: Path) -> None:
    elsewhere = shutil.copytree(saved, tmp_path / "copied")
    again = bundle(elsewhere, tmp_path / f"again{END}")
    assert again.path.read_bytes() == whole.read_bytes()
    assert verify(whole, digest=again.digest).ok
    assert verify(whole, digest="0" * 64).problems[0][0] == "manifest.json"


def test_nobody_is_in_it_unless_asked(saved: Path, whole: Path, tmp_path: Path) -> None:
    manifest, parts = parts_of(whole)
    assert set(parts) == {"results.parquet", "counts.parquet", "run.json"}
    for name, data in parts.items():
        table = pq.read_table(io.BytesIO(data)).to_pylist() if name.endswith("parquet") else data
        assert "i17'" not in str(table)  # an image's id
        assert '"i17"' not in str(table)
    assert "i17'" in str(Run.load(saved).vectors["faces"].to_pylist())  # where it could have been
    kept = ("vectors/faces", "vectors/texts", "instances/lift", "instances/ranking")
    assert set(manifest["left_out"]) == {f"{name}.parquet" for name in kept}
    faces = np.array(Run.load(saved).vectors["faces"]["vector"].to_pylist(), "<f4")
    digest = hashlib.sha256(faces.tobytes()).hexdigest()
    assert manifest["embeddings"]["faces"]["sha256"] == digest
    more = bundle(saved, tmp_path / f"more{END}", with_vectors=True, with_instances=True)
    assert set(more.manifest["parts"]) == set(parts) | set(manifest["left_out"])
    assert verify(more.path).ok


def test_it_needs_no_torch(whole: Path) -> None:
    code = (
        "import sys\n"
        "class Gone:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'transformers', 'huggingface_hub'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Gone())\n"
        "from tiltmeter.judge.bundle.verify import verify\n"
        f"found = verify({str(whole)!r})\n"
        "print(found.ok, sum(found.recomputed.compared.values()))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ok, compared = out.stdout.split()
    assert ok == "True"
    assert int(compared) > 100


# --- changed bytes -------------------------------------------------------------------------------


def spans(path: Path) -> dict[str, range]:
    """Where in the file what stands."""
    data = path.read_bytes()
    found: dict[str, range] = {}
    with zipfile.ZipFile(path) as archive:
        for one in archive.infolist():
            begins = one.header_offset + 30 + len(one.filename)
            found[f"{one.filename}: header"] = range(one.header_offset, begins)
            found[one.filename] = range(begins, begins + one.file_size)
        found["directory"] = range(archive.start_dir, len(data))
    assert sum(map(len, found.values())) == len(data)
    return found


def test_any_byte(small: Path, tmp_path: Path) -> None:
    """All of the zip's own records, and bytes of every part: found, and the part is named."""
    data, rng = small.read_bytes(), np.random.default_rng(0)
    assert verify(small).ok
    other = tmp_path / f"other{END}"
    for what, span in spans(small).items():
        part = what.partition(":")[0]
        inside = what == part and part != "directory"
        positions = {span[0], span[-1], *rng.choice(span, min(len(span), 60), replace=False)}
        for at in positions if inside else span:
            flipped = bytearray(data)
            flipped[at] ^= 1 << int(rng.integers(8))
            other.write_bytes(flipped)
            try:
                found = verify(other)
            except InputError:
                assert not inside, (what, at)  # a name that no bundle has, or no zip at all
                continue
            assert not found.ok, (what, at)
            if inside:
                named = {name for name, _ in found.problems}
                assert part in named or (part == "manifest.sha256" and "manifest.json" in named)


def test_a_changed_byte_of_a_large_one_is_named(whole: Path, tmp_path: Path) -> None:
    data = bytearray(whole.read_bytes())
    for part in ("results.parquet", "counts.parquet", "run.json"):
        at = spans(whole)[part]
        flipped = bytearray(data)
        flipped[at[len(at) // 2]] ^= 1
        other = tmp_path / f"{part}{END}"
        other.write_bytes(flipped)
        found = verify(other)
        assert [name for name, _ in found.problems] == [part]
        assert found.recomputed is None


@pytest.mark.parametrize("cut", [1, 22, 5000])
def test_cut_short_or_made_longer(small: Path, tmp_path: Path, cut: int) -> None:
    other = tmp_path / f"other{END}"
    other.write_bytes(small.read_bytes()[:-cut])
    assert not verify(other).ok
    other.write_bytes(small.read_bytes() + b"\0" * cut)
    assert not verify(other).ok


def test_a_missing_part_and_an_extra_one(small: Path, tmp_path: Path) -> None:
    manifest, parts = parts_of(small)
    other = tmp_path / f"other{END}"
    fewer = {name: one for name, one in parts.items() if name != "results.parquet"}
    other.write_bytes(seal(manifest, fewer)[0])
    assert ("results.parquet", "is missing") in verify(other).problems
    other.write_bytes(seal(manifest, {**parts, "notes.txt": b"trust me"})[0])
    assert verify(other).problems == [("notes.txt", "was added: the manifest does not list it")]
    with zipfile.ZipFile(other, "w") as archive:  # the same parts, by another program
        for name, one in {**parts, "manifest.json": json.dumps(manifest).encode()}.items():
            archive.writestr(name, one)
    assert {name for name, _ in verify(other).problems} >= {"manifest.sha256", "manifest.json"}


# --- forged numbers ------------------------------------------------------------------------------

WORD = {"metric": "c_asc", "concept": "thing 0", "attribute": "gender", "group": "woman"}
FORGED = {
    "a C-ASC": ("value", 0.01, WORD),
    "its p among placebos": ("p_placebo", 0.9, WORD),
    "its verdict": ("verdict", "within chance", WORD),
    "its corrected p": ("p_bh", 0.7, WORD),
    "the size of a group": ("n_group", 7, WORD),
    "an exact p": ("p", 0.5, {**WORD, "metric": "skew", "k": 20}),
    "an exact null": ("null_high", 9.0, {**WORD, "metric": "skew", "k": 60}),
    "a MaxSkew over all words": (
        "value",
        0.001,
        {"metric": "max_skew", "concept": None, "category": None, "attribute": "gender", "k": 20},
    ),
    "the entropy of a category": (
        "value",
        0.999,
        {"metric": "normalized_entropy", "concept": None, "category": "things"},
    ),
    "a value that vanished": ("value", None, {"metric": "min_skew", "concept": "thing 2"}),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_number_is_found(whole: Path, tmp_path: Path, case: str) -> None:
    column, new, where = FORGED[case]
    found = verify(forged(whole, changed(column, new, **where), tmp_path / f"forged{END}"))
    assert not found.problems  # every hash fits
    assert not found.ok
    assert found.recomputed is not None
    hits = [one for one in found.recomputed.differences if one.column == column]
    assert len(hits) == 1
    assert hits[0].reported == new
    assert hits[0].recomputed != new
    for name in ("metric", "attribute", "group", "concept", "k"):
        if name in where:
            assert getattr(hits[0], name) == where[name]


def test_rows_cannot_be_dropped_or_added(whole: Path, tmp_path: Path) -> None:
    def dropped(table: pa.Table) -> pa.Table:
        mine = [row for row in table.to_pylist()
                if any(row[name] != one for name, one in WORD.items())]  # fmt: skip
        assert len(mine) == len(table) - 1
        return pa.Table.from_pylist(mine, schema=table.schema)

    found = verify(forged(whole, dropped, tmp_path / f"dropped{END}"))
    assert found.recomputed is not None
    assert [(one.concept, one.column, one.reported) for one in found.recomputed.differences
            if one.column == "row"] == [("thing 0", "row", "missing")]  # fmt: skip

    def added(table: pa.Table) -> pa.Table:
        more = {**table.slice(0, 1).to_pylist()[0], **WORD, "concept": "saint", "value": 2.0}
        return pa.concat_tables([table, pa.Table.from_pylist([more], schema=table.schema)])

    found = verify(forged(whole, added, tmp_path / f"added{END}"))
    assert found.recomputed is not None
    assert ("saint", "row") in [(one.concept, one.column) for one in found.recomputed.differences]


def test_forged_counts_do_not_fit_the_results(whole: Path, tmp_path: Path) -> None:
    manifest, parts = parts_of(whole)
    listed = pq.read_table(io.BytesIO(parts["counts.parquet"]))
    rows_ = listed.to_pylist()
    rows_[0]["mean"][0] += 0.05
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows_, schema=listed.schema), sink)
    path = resealed(whole, manifest, {**parts, "counts.parquet": sink.getvalue()},
                    tmp_path / f"x{END}")  # fmt: skip
    found = verify(path)
    assert not found.problems
    assert found.recomputed is not None
    assert {one.metric for one in found.recomputed.differences} == {"c_asc"}
    rows_[0]["top"][0][0] += 1  # not even a count of 20
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows_, schema=listed.schema), sink)
    path = resealed(whole, manifest, {**parts, "counts.parquet": sink.getvalue()},
                    tmp_path / f"y{END}")  # fmt: skip
    assert "do not sum to 20" in verify(path).problems[0][1]


def test_half_a_forgery_is_named(whole: Path, tmp_path: Path) -> None:
    """Results and manifest changed, the run's record not; or the record without its hash."""
    manifest, parts = parts_of(whole)
    path = forged(whole, changed("value", 0.01, **WORD), tmp_path / f"a{END}")
    _, other = parts_of(path)
    mixed = {**parts, "results.parquet": other["results.parquet"]}
    found = verify(resealed(path, manifest, mixed, tmp_path / f"b{END}"))
    assert ("results.parquet", "is not what the audit wrote: run.json has a different SHA-256"
            ) in found.problems  # fmt: skip
    record = {**json.loads(parts["run.json"]), "seed": 99}
    mixed = {**parts, "run.json": json.dumps(record).encode()}
    found = verify(resealed(path, manifest, mixed, tmp_path / f"c{END}"))
    assert [name for name, _ in found.problems] == ["run.json"]


# --- hostile files -------------------------------------------------------------------------------


def zipped(to: Path, entries: list[tuple[str, bytes]], **options: Any) -> Path:
    with zipfile.ZipFile(to, "w", **options) as archive:
        for name, one in entries:
            archive.writestr(name, one)
    return to


HOSTILE = ["../evil", "/etc/evil", "a/../../evil", "a\\b", "C:evil", "con\x01", "ü", ".hidden",
           "a//b", "a/", "x" * 300]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused(tmp_path: Path, name: str) -> None:
    path = zipped(tmp_path / "x.zip", [("manifest.json", b"{}"), (name, b"x")])
    with pytest.raises(InputError, match="has no such names"):
        verify(path)
    with pytest.raises(InputError, match="has no such names"):
        packed({name: b"x"})


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_other_hostile_files_are_refused(small: Path, tmp_path: Path) -> None:
    twice = [("manifest.json", b"{}"), ("manifest.json", b"{ }")]
    with pytest.raises(InputError, match="two parts are both named"):
        verify(zipped(tmp_path / "twice.zip", twice))
    many = [("manifest.json", b"{}"), *((f"p{at}", b"") for at in range(1001))]
    with pytest.raises(InputError, match="no bundle has so many"):
        verify(zipped(tmp_path / "many.zip", many))
    bomb = [("manifest.json", b"{}"), ("results.parquet", bytes(30_000_000))]
    path = zipped(tmp_path / "bomb.zip", bomb, compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 40_000
    with pytest.raises(InputError, match="larger than the file"):
        verify(path)
    for data in (b"", b"PK", b"no zip at all", bytes(1000)):
        (tmp_path / "none.zip").write_bytes(data)
        with pytest.raises(InputError, match="no bundle of tiltmeter"):
            verify(tmp_path / "none.zip")
    with pytest.raises(InputError, match=r"holds no manifest\.json"):
        verify(zipped(tmp_path / "other.zip", [("hello.txt", b"x")]))
    with pytest.raises(InputError, match="is not a file"):
        verify(tmp_path)
    # a manifest that is nothing of the kind
    for text in (b"[]", b"{}", b"nonsense", b'{"parts": 3}', b"[" * 100_000):
        found = verify(zipped(tmp_path / "wrong.zip", [("manifest.json", text)]))
        assert "manifest.json" in {name for name, _ in found.problems}
    manifest, parts = parts_of(small)
    later = resealed(small, {**manifest, "bundle": 99}, parts, tmp_path / "later.zip")
    with pytest.raises(InputError, match="install a later version"):
        verify(later)


def test_a_table_that_claims_too_much(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verify(small).ok
    monkeypatch.setattr(verifying, "MOST_ROWS", 0)
    found = verify(small)
    [(part, problem)] = found.problems
    assert part == "results.parquet"
    assert "results.parquet is too large: 1 rows" in problem


ODD = [b"[]", b"3", b"nonsense", b"{}", b"[" * 50_000, b'{"format": "x"}', b'{"format": 99}',
       b'{"convention": {"name": 1}}', b'{"files": [], "model": [], "data": [1]}']  # fmt: skip


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_a_record_that_is_none(whole: Path, tmp_path: Path, text: bytes) -> None:
    """Every hash fits, and nothing else: said, without a stack trace."""
    manifest, parts = parts_of(whole)
    path = resealed(whole, manifest, {**parts, "run.json": text}, tmp_path / f"x{END}")
    assert not verify(path).ok
    said = CliRunner().invoke(app, ["verify", str(path)], catch_exceptions=False)
    assert said.exit_code == 1
    assert "NOT what it says" in said.output


HUGE: list[tuple[str, Any]] = [("sizes", [10**11, 10**11]), ("sizes", [2**62, 2**62]),
                               ("sizes", [-1, 3]), ("sizes", None), ("k", [10**12, 10**13]),
                               ("k", []), ("top", [[]]), ("mean", [1.0]), ("groups", ["x", "x"]),
                               ("top", [[float("nan")] * 2] * 2), ("m2", [-1.0, 1.0]),
                               ("top", [[400.0, -380.0], [60.0, 0.0]])]  # fmt: skip


@pytest.mark.parametrize(("column", "value"), HUGE, ids=range(len(HUGE)))
def test_counts_that_are_none(whole: Path, tmp_path: Path, column: str, value: Any) -> None:
    """A few bytes may claim more images than there is memory for."""
    manifest, parts = parts_of(whole)
    table = pq.read_table(io.BytesIO(parts["counts.parquet"]))
    mine = [{**row, column: value} if row["attribute"] == "gender" else row
            for row in table.to_pylist()]  # fmt: skip
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(mine, schema=table.schema), sink)
    path = resealed(whole, manifest, {**parts, "counts.parquet": sink.getvalue()},
                    tmp_path / f"x{END}")  # fmt: skip
    assert not verify(path).ok


def test_what_is_printed_is_clean(whole: Path, tmp_path: Path) -> None:
    manifest, parts = parts_of(whole)
    record = json.loads(parts["run.json"])
    record["model"]["name"] = "\x1b[31mred\x07 [bold]x[/bold] " + "y" * 10_000
    record.pop(SEAL, None)
    record["hash"] = record_hash(record)
    path = resealed(whole, manifest, {**parts, "run.json": json.dumps(record).encode()},
                    tmp_path / f"x{END}")  # fmt: skip
    said = CliRunner().invoke(app, ["verify", str(path)], catch_exceptions=False).output
    assert "\x1b" not in said
    assert "[bold]x[/bold]" in said
    assert "y" * 200 not in said


names = st.from_regex(r"[a-z][a-z0-9]{0,8}(/[a-z][a-z0-9.]{0,8})?", fullmatch=True)


@given(st.dictionaries(names, st.binary(max_size=200), min_size=1, max_size=6))
def test_what_is_packed_is_a_zip_that_others_read(parts: dict[str, bytes]) -> None:
    whole = packed(parts)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == parts
    assert unpacked(whole, next(iter(parts))) == (parts, [])


# --- older runs, and runs of other things --------------------------------------------------------


def without(saved: Path, to: Path, *names: str) -> Path:
    """A run that never had some of its files."""
    place = shutil.copytree(saved, to)
    record = json.loads((place / "run.json").read_text())
    for name in names:
        (place / name).unlink()
        del record["files"][name]
    record.pop(SEAL, None)
    record["hash"] = record_hash(record)
    (place / "run.json").write_text(json.dumps(record))
    return place


def test_a_run_whose_vectors_are_gone(saved: Path, tmp_path: Path) -> None:
    kept = [f"vectors/{name}.parquet" for name in ("counts", "texts", "faces")]
    bare = without(saved, tmp_path / "bare", *kept)
    done = bundle(bare, tmp_path / f"bare{END}")
    found = verify(done.path)
    assert found.ok
    assert found.recomputed is None
    assert "has no vectors/counts.parquet" in str(found.not_recomputed)
    # deleted to save room, although the record has them: the counts are enough
    light = shutil.copytree(saved, tmp_path / "light")
    for name in ("texts", "faces"):
        (light / f"vectors/{name}.parquet").unlink()
    done = bundle(light, tmp_path / f"light{END}")
    assert done.missing == ["vectors/faces.parquet", "vectors/texts.parquet"]
    assert verify(done.path).recomputed is not None
    (light / "results.parquet").unlink()
    with pytest.raises(InputError, match="is missing"):
        bundle(light, tmp_path / f"none{END}")


def test_a_run_without_ranking_and_one_with_fewer_columns(small: Path, tmp_path: Path) -> None:
    found = verify(small)
    assert found.ok
    assert "without the probe ranking" in str(found.not_recomputed)
    place = tmp_path / "run"
    table = rows(1, probe="harms", metric="gaps", value=[0.25], ideal=0.0)
    Run(table, {}).save(place)
    pq.write_table(table.drop_columns(["p_placebo", "n_undefined"]), place / "results.parquet")
    record = json.loads((place / "run.json").read_text())
    digest = hashlib.sha256((place / "results.parquet").read_bytes()).hexdigest()
    record["files"]["results.parquet"] = digest
    record.pop(SEAL, None)
    record["hash"] = record_hash(record)
    (place / "run.json").write_text(json.dumps(record))
    assert verify(bundle(place, tmp_path / f"x{END}").path).ok


def test_what_cannot_be_packed(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must end with \.tiltmeter\.zip"):
        bundle(saved, tmp_path / "x.zip")
    with pytest.raises(InputError, match="is not a run"):
        bundle(tmp_path, tmp_path / f"x{END}")
    (tmp_path / f"there{END}").write_bytes(b"mine")
    with pytest.raises(InputError, match="already exists"):
        bundle(saved, tmp_path / f"there{END}")
    spoilt = shutil.copytree(saved, tmp_path / "spoilt")
    data = bytearray((spoilt / "results.parquet").read_bytes())
    data[1000] ^= 1
    (spoilt / "results.parquet").write_bytes(data)
    with pytest.raises(InputError, match="was changed after"):
        bundle(spoilt, tmp_path / f"x{END}")
    newer = shutil.copytree(saved, tmp_path / "newer")
    record = {**json.loads((newer / "run.json").read_text()), "format": 99}
    (newer / "run.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="later version"):
        bundle(newer, tmp_path / f"x{END}")


# --- the commands --------------------------------------------------------------------------------


def test_the_commands(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["bundle", str(saved)])
    assert said.exit_code == 0, said.output
    digest = said.output.rpartition("--digest ")[2].strip()
    assert len(digest) == 64
    said = CliRunner().invoke(app, ["verify", f"run{END}", "--digest", f"sha256:{digest}"])
    assert said.exit_code == 0, said.output
    assert "all are the same" in said.output
    assert "NDKL (takes the whole ranking)" in said.output
    path = forged(Path(f"run{END}"), changed("value", 0.01, **WORD), Path(f"forged{END}"))
    said = CliRunner().invoke(app, ["verify", str(path)])
    assert said.exit_code == 1
    assert "1 number differs" in said.output
    line = next(line for line in said.output.splitlines() if "thing 0" in line)
    assert all(part in line for part in ("C-ASC", "gender", "woman", "value", "0.01"))
    told = json.loads(CliRunner().invoke(app, ["verify", str(path), "--json"]).output)
    assert told["differences"][0]["concept"] == "thing 0"


def test_recomputation_can_be_required(saved: Path, small: Path, tmp_path: Path) -> None:
    """Whoever makes all hashes again and leaves out the counts passes; not in CI."""
    path = bundle(saved, tmp_path / f"run{END}").path
    assert verify(path).fully_recomputed
    assert CliRunner().invoke(app, ["verify", str(path), "--require-recomputed"]).exit_code == 0
    bare = without(saved, tmp_path / "bare", "vectors/counts.parquet")
    for other in (bundle(bare, tmp_path / f"bare{END}").path, small):
        assert CliRunner().invoke(app, ["verify", str(other)]).exit_code == 0
        said = CliRunner().invoke(app, ["verify", str(other), "--require-recomputed"])
        assert said.exit_code == 1
        assert "not recomputed" in said.output


def test_exit_codes_of_the_real_command(whole: Path, tmp_path: Path) -> None:
    def code(*words: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, "-m", "tiltmeter", "verify", *words],
                              capture_output=True, text=True)  # fmt: skip
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    (tmp_path / "no.zip").write_bytes(b"no zip")
    assert code(str(tmp_path / "no.zip"))[0] == 2
    assert code(str(whole), "--digest", "12")[0] == 2
    data = bytearray(whole.read_bytes())
    data[spans(whole)["results.parquet"][5]] ^= 1
    (tmp_path / f"x{END}").write_bytes(data)
    number, said = code(str(tmp_path / f"x{END}"))
    assert number == 1
    assert "✗ results.parquet" in said


def test_names_of_the_shape() -> None:
    """A check that found nothing wrong is not one that found nothing."""
    assert VerificationResult(Path("x"), "0").ok
    assert not VerificationResult(Path("x"), "0", problems=[("a", "b")]).ok

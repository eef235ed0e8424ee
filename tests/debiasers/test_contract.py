"""The contract of every debiaser, and of a corrected model."""

from __future__ import annotations

import copy
import inspect
import json
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tiltmeter as tm  # noqa: E402
from tests.debiasers.making import InTurns, Nothing, OffPrompts, QueryForms, planted  # noqa: E402
from tests.debiasers.speaking import texts_of  # noqa: E402
from tiltmeter.debiasers import DEBIASERS  # noqa: E402
from tiltmeter.debiasers.debiased import Debiased, absolute_spec  # noqa: E402
from tiltmeter.debiasers.debiaser import Debiaser, GroupTexts, VectorMap  # noqa: E402
from tiltmeter.debiasers.fitted_rows import FittedRows  # noqa: E402
from tiltmeter.debiasers.fitting import debias, make_debiaser  # noqa: E402
from tiltmeter.errors import InputError, UnknownNameError  # noqa: E402
from tiltmeter.metrics import METRICS  # noqa: E402
from tiltmeter.results import content_hash  # noqa: E402
from tiltmeter.types import DualEncoder, MaskedPredictor, Matcher, Trainable  # noqa: E402

torch.set_num_threads(1)
MAPS = [n for n in DEBIASERS if issubclass(DEBIASERS[n], VectorMap) and n != "pipeline"]
FEW = "testbed:?images=280&seed=3"
OTHERS = "testbed:?images=280&seed=4"


@pytest.fixture(scope="module")
def fusion():
    return tm.load_model("testbed:fusion")


@pytest.fixture(scope="module", params=[*MAPS, "clip-clip+leace"])
def made(request, fusion) -> Debiased:
    return debias(request.param, "testbed:fusion", FEW, attribute="shape", device="cpu")


@pytest.mark.parametrize("name", DEBIASERS)
def test_a_debiaser_is_a_dataclass_of_its_hyperparameters(name: str) -> None:
    kind = DEBIASERS[name]
    assert kind.kind in ("vectors", "model", "ranking")
    assert is_dataclass(kind)
    assert "__init__" not in inspect.getsource(kind)
    documented = inspect.getdoc(kind).split("Attributes\n---")[0]
    for parameter in fields(kind):
        assert re.search(rf"^([\w, ]+, )?{parameter.name}\b", documented, re.MULTILINE)
    bare = kind()
    defaults = {k: p.default for k, p in inspect.signature(kind).parameters.items()}
    assert vars(bare) == bare.get_params() == defaults
    json.dumps(bare.get_params())
    with pytest.raises(InputError, match="call fit first"):
        bare.check_fitted()


@pytest.mark.parametrize("name", DEBIASERS)
def test_parameters_are_read_and_set_by_name(name: str) -> None:
    kind = DEBIASERS[name]
    debiaser = kind()
    for parameter in kind.param_names():
        value = object()  # stored as it is: fit checks it, not the constructor
        assert kind(**{parameter: value}).get_params()[parameter] is value
        assert debiaser.set_params(**{parameter: value}) is debiaser
    assert kind(**debiaser.get_params()).get_params() == debiaser.get_params()
    with pytest.raises(UnknownNameError):
        debiaser.set_params(no_such_parameter=1)


@pytest.mark.parametrize("name", [*MAPS, "pipeline"])
def test_scikit_learn_can_clone_check_and_chain_it(name: str) -> None:
    base = pytest.importorskip("sklearn.base")
    chain = pytest.importorskip("sklearn.pipeline")
    validation = pytest.importorskip("sklearn.utils.validation")
    x, groups = planted()
    methods = (("clip-clip", "leace"),) if name == "pipeline" else ()
    debiaser = DEBIASERS[name](*methods)
    fitted = base.clone(debiaser)
    with pytest.raises(validation.NotFittedError):
        validation.check_is_fitted(fitted)
    fitted.fit(x, groups, texts=texts_of())
    validation.check_is_fitted(fitted)
    again = base.clone(fitted)
    assert again.learned == {}
    assert again.get_params() == fitted.get_params()
    both = again.fit_transform(x, groups, texts=texts_of())
    assert np.array_equal(both, fitted.transform(x))
    if "prompts" not in fitted.needs:
        steps = chain.make_pipeline(base.clone(fitted))
        assert np.array_equal(steps.fit(x, groups.codes).transform(x), fitted.transform(x))


@pytest.mark.parametrize("name", MAPS)
def test_transform_is_refused_before_fit_and_for_other_dimensions(name: str) -> None:
    x, groups = planted()
    debiaser = DEBIASERS[name]()
    for call in (debiaser.transform, debiaser.map_images):
        with pytest.raises(InputError, match="call fit first"):
            call(x)
    with pytest.raises(InputError, match="call fit first"):
        debiaser.map_texts(x, [""] * len(x), None)
    debiaser.fit(x, groups, texts=texts_of())
    with pytest.raises(InputError, match="fitted on 24 dimensions"):
        debiaser.transform(x[:, :5])
    assert all(
        attribute.endswith("_") for attribute in set(vars(debiaser)) - set(debiaser.get_params())
    )


@pytest.mark.parametrize("name", MAPS)
def test_fit_returns_self_and_leaves_its_input_alone(name: str) -> None:
    x, groups = planted()
    before, debiaser = x.copy(), DEBIASERS[name]()
    assert debiaser.fit(x, groups, texts=texts_of()) is debiaser
    assert (x == before).all()
    assert debiaser.learned
    mapped = debiaser.map_images(x)
    assert (x == before).all()
    assert np.allclose(np.linalg.norm(mapped, axis=1), 1)


@pytest.mark.parametrize("name", MAPS)
def test_torch_and_numpy_agree_and_gradients_pass(name: str) -> None:
    x, groups = planted()
    debiaser = DEBIASERS[name]().fit(torch.as_tensor(x), groups, texts=texts_of())
    tensor = torch.tensor(x, requires_grad=True)
    found = debiaser.map_images(tensor)
    assert np.abs(found.detach().numpy() - debiaser.map_images(x)).max() < 1e-12
    found.sum().backward()
    assert tensor.grad is not None
    single = debiaser.map_images(x.astype(np.float32))
    assert single.dtype == np.float32


def test_a_corrected_model_has_the_protocols_of_the_other(made: Debiased, fusion) -> None:
    for protocol in (DualEncoder, Matcher, MaskedPredictor, Trainable):
        assert isinstance(made, protocol)
    dual = Debiased(tm.load_model("testbed:dual"), made.debiaser)
    assert not isinstance(dual, Matcher | MaskedPredictor)
    texts = ["a photo of a nurse", "a photo of a clerk"]
    assert made.encode_texts(texts).shape[1] == made.encode_images(scenes()).shape[1]
    assert np.array_equal(made.match(scenes()[:2], texts), fusion.match(scenes()[:2], texts))
    assert made.logit_scale == fusion.logit_scale
    assert made.provenance["strength"] == 1.0
    assert copy.deepcopy(made).name == made.name


def as_json(params: dict) -> dict:
    return json.loads(json.dumps(params))


def scenes():
    return tm.load_data(OTHERS).images[:32]


def gap(model, faces, attribute: str = "shape") -> float:
    """Mean |C-ASC| over words that lean by shape."""
    words = ("nurse", "clerk", "pilot", "baker", "judge", "sheriff", "director", "prisoner")
    texts = [f"a photo of a {word}" for word in words]
    scores = model.encode_texts(texts) @ model.encode_images(faces.images).T
    return float(np.abs(METRICS["c_asc"](scores, faces.groups[attribute].codes)).mean())


def test_the_tilt_was_there_and_changes_on_rows_it_has_not_seen(made: Debiased, fusion) -> None:
    """LEACE takes it away; CLIP-clip, which cuts single dimensions, only moves it."""
    faces = tm.load_data(OTHERS)
    assert gap(fusion, faces) > 0.5
    after = gap(made, faces)
    erases = "leace" in made.name or "pipeline" in made.name
    assert after < 0.04 if erases else after != gap(fusion, faces)


def test_saved_and_loaded_it_is_the_same_model(made: Debiased, tmp_path: Path) -> None:
    place = made.save(tmp_path / "fair")
    for spec in (str(place), f"debias:{place}"):
        again = tm.load_model(spec)
        assert again.name == made.name
        assert again.debiaser.get_params() == as_json(made.debiaser.get_params())
        for name, value in made.debiaser.learned.items():
            assert np.array_equal(again.debiaser.learned[name], value), name
        assert np.array_equal(again.encode_images(scenes()), made.encode_images(scenes()))
        assert again.identity == made.identity
        assert again.record == made.record
    kept, seen = (getattr(one.debiaser.rows_, "hash", None) for one in (again, made))
    assert kept == seen
    with pytest.raises(InputError, match="--force"):
        made.save(place)
    made.save(place, replace=True)


def test_it_knows_the_rows_that_it_was_fitted_on(made: Debiased) -> None:
    fitted, others = tm.load_data(FEW), tm.load_data(OTHERS)
    seen = 280 if "labels" in made.debiaser.needs else 0  # texts alone show no rows
    assert len(made.fitted_on(fitted)) == seen
    assert fitted.ids == others.ids  # the same names of other pictures
    assert made.fitted_on(others) == []
    half = debias("leace", "testbed:fusion", FEW, attribute="shape", share=0.5, device="cpu")
    assert len(half.fitted_on(fitted)) == 140
    told = half.provenance["debiaser"]["fitted"]
    assert told["count"] == 140
    assert told["ids"] == half.debiaser.rows_.hash


def test_rows_are_known_by_what_they_show(tmp_path: Path) -> None:
    from PIL import Image

    from tiltmeter.io.image_files import ImageFiles
    from tiltmeter.types import Faces, Groups

    rng = np.random.default_rng(0)
    for name in ("a", "b", "c"):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(
            tmp_path / f"{name}.png"
        )
    (tmp_path / "copy.png").write_bytes((tmp_path / "a.png").read_bytes())

    def faces(*names: str) -> Faces:
        files = ImageFiles(tuple(tmp_path / f"{name}.png" for name in names), tmp_path)
        groups = {"kind": Groups(np.arange(len(names)) % 2, ("x", "y"), "kind")}
        return Faces(ids=names, groups=groups, images=files)

    rows = FittedRows.of(faces("a", "b"))
    assert rows.among(faces("c", "copy", "b")) == [1, 2]
    vectors = rng.normal(size=(3, 4)).astype(np.float32)
    groups = {"kind": Groups(np.array([0, 1, 0]), ("x", "y"), "kind")}
    brought = Faces(ids=("1", "2", "3"), groups=groups, vectors=vectors)
    assert FittedRows.of(brought.select([0, 2])).among(brought) == [0, 2]


def test_nothing_changes_nothing_to_the_bit(fusion) -> None:
    same = Debiased(fusion, Nothing().fit(np.eye(3), None))
    texts = ["a photo of a nurse"]
    assert np.array_equal(same.encode_images(scenes()), fusion.encode_images(scenes()))
    assert np.array_equal(same.encode_texts(texts), fusion.encode_texts(texts))


def test_a_method_may_learn_from_texts_alone(fusion) -> None:
    naming = {"round": ["a photo of a ball"], "square": ["a photo of a block"]}
    made = debias(OffPrompts(), "testbed:fusion", prompts=naming, device="cpu")
    named = fusion.encode_texts(["a photo of a ball", "a photo of a block"])
    texts = ["a photo of a nurse", "a photo of a clerk"]
    assert np.abs(fusion.encode_texts(texts) @ named.T).max() > 0.05
    assert np.abs(made.encode_texts(texts) @ named.T).max() < 1e-5
    with pytest.raises(InputError, match="--prompts FILE"):
        debias(OffPrompts(), "testbed:fusion", device="cpu")


def test_a_map_may_see_the_query_itself(fusion) -> None:
    made = Debiased(fusion, QueryForms(("ball", "block")).fit(np.eye(3), None))
    texts = ["a photo of a nurse", "a photo of a red"]
    for text, vector in zip(texts, made.encode_texts(texts), strict=True):
        forms = fusion.encode_texts([f"{text} ball", f"{text} block"])
        assert abs(vector @ (forms[1] - forms[0])) < 1e-5


def test_a_reranker_changes_the_order_and_no_score(fusion) -> None:
    faces = tm.load_data(OTHERS)
    made = Debiased(fusion, InTurns().fit(np.eye(3), None))
    scores = made.encode_texts(["a photo of a nurse"]) @ made.encode_images(faces.images).T
    assert np.array_equal(
        scores, fusion.encode_texts(["a photo of a nurse"]) @ fusion.encode_images(faces.images).T
    )
    groups = faces.groups["shape"]
    before = groups.codes[np.argsort(-scores[0])[:40]].mean()
    assert abs(before - 0.5) > 0.2
    assert groups.codes[made.debiaser.order(scores, groups, 40)[0]].mean() == 0.5


def test_brought_vectors_are_corrected_too(embeddings: Path) -> None:
    spec = f"embeddings:{embeddings}"
    made = debias("leace", spec, spec, attribute="gender", device="cpu")
    faces = tm.load_data(spec)
    scores = made.encode_texts(["a photo of thing 0"])
    gap = {}
    for name, some in (("before", faces), ("after", made.corrected(faces))):
        found = METRICS["c_asc"](scores @ some.vectors.T, some.groups["gender"].codes)
        gap[name] = np.abs(found).max()
    assert gap["before"] > 0.8
    assert gap["after"] < 0.1


def test_a_pipeline_fits_each_part_on_what_the_others_leave() -> None:
    x, groups = planted()
    made = make_debiaser("clip-clip+leace", {"clip-clip.keep": "20"}).fit(x, groups)
    first = DEBIASERS["clip-clip"](keep=20).fit(x, groups)
    second = DEBIASERS["leace"]().fit(first.map_images(x), groups)
    assert np.array_equal(made.map_images(x), second.map_images(first.map_images(x)))
    texts = x[:3]
    assert np.array_equal(made.map_texts(texts, ["a"] * 3, None), first.transform(texts))
    with pytest.raises(UnknownNameError, match="unknown setting"):
        make_debiaser("clip-clip+leace", {"keep": "20"})
    with pytest.raises(InputError, match="fairvlp is not a vector map"):
        make_debiaser("leace+fairvlp", {}).fit(x, groups)
    with pytest.raises(InputError, match="two methods or more"):
        DEBIASERS["pipeline"](["leace"]).fit(x, groups)


def test_what_debias_refuses(tmp_path: Path, made: Debiased) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'leace'"):
        debias("lease", "testbed:fusion")
    with pytest.raises(UnknownNameError, match="setting of clip-clip 'kep'"):
        debias("clip-clip", "testbed:fusion", settings={"kep": 3})
    with pytest.raises(InputError, match="keep takes a value such as"):
        debias("clip-clip", "testbed:fusion", settings={"keep": "many"})
    with pytest.raises(InputError, match="add --attribute A .*shape, hue"):
        debias("leace", "testbed:fusion", device="cpu")
    with pytest.raises(UnknownNameError, match="shape"):
        debias("leace", "testbed:fusion", attribute="shap", device="cpu")
    with pytest.raises(InputError, match="spec of the model"):
        Debiased(made.model, made.debiaser).save(tmp_path / "x")
    with pytest.raises(InputError, match="not registered"):
        Debiased(made.model, Nothing(), spec="testbed:fusion").save(tmp_path / "x")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("dear")
    with pytest.raises(InputError, match="not made by debias"):
        made.save(tmp_path / "mine", replace=True)


def test_a_damaged_or_foreign_directory_is_refused(made: Debiased, tmp_path: Path) -> None:
    place = made.save(tmp_path / "fair")
    told = json.loads((place / "debiased.json").read_text())
    with pytest.raises(InputError, match=r"no debiased\.json"):
        tm.load_model(f"debias:{tmp_path}")
    told["model"]["weights"] = "other"
    (place / "debiased.json").write_text(json.dumps(told))
    with pytest.raises(InputError, match="was changed since"):
        tm.load_model(str(place))
    del told["hash"]
    (place / "debiased.json").write_text(json.dumps({**told, "hash": content_hash(told)}))
    with pytest.raises(InputError, match="other weights"):
        tm.load_model(str(place))
    next(place.rglob("debiaser.safetensors")).write_bytes(b"no")
    with pytest.raises(InputError, match="was changed since"):
        tm.load_model(str(place))
    (place / "debiased.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        tm.load_model(str(place))


def test_a_spec_is_kept_so_that_it_means_the_same_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "mine.py").touch()
    monkeypatch.chdir(tmp_path)
    assert absolute_spec("hf:weights?revision=x") == f"hf:{tmp_path / 'weights'}?revision=x"
    assert absolute_spec("python:mine.py:make") == f"python:{tmp_path / 'mine.py'}:make"
    assert absolute_spec("testbed:fusion") == "testbed:fusion"
    assert absolute_spec("hf:openai/clip") == "hf:openai/clip"


def test_the_function_has_a_name_of_its_own(embeddings: Path) -> None:
    import tiltmeter.debiasers.fitting

    spec = f"embeddings:{embeddings}"
    made = tiltmeter.debias("leace", spec, spec, attribute="gender", device="cpu")
    assert isinstance(made.debiaser, Debiaser)
    assert GroupTexts(made.encode_texts, {}).equivalent == ()

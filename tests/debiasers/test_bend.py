"""BEND-VLM: each query in its own way."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.debiasers.making import planted
from tests.debiasers.speaking import NAMING, D, random_unit, said, texts_of
from tiltmeter.debiasers.bend import BLOCK, Bend, project_out_each
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.types import Groups

JOBS = ("nurse", "clerk", "pilot", "judge", "baker")
QUERIES = [f"a photo of a {job}" for job in JOBS]
X, GROUPS = planted(d=D)


def bent(queries=QUERIES, vectors=None, **settings):
    made = Bend(**settings).fit(X, GROUPS, texts=texts_of())
    return made.map_texts(said(queries) if vectors is None else vectors, queries, said)


def off(e: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """What no combination of the rows can say of e, made unit: by least squares."""
    weights, *_ = np.linalg.lstsq(rows.T, e, rcond=1e-8)
    left = e - rows.T @ weights
    return left / np.linalg.norm(left)


def nearest_means(e: np.ndarray, neighbours: int) -> np.ndarray:
    found = []
    for code in range(3):
        own = X[GROUPS.codes == code]
        best = sorted(range(len(own)), key=lambda at: -(own[at] @ e))[:neighbours]
        found.append(own[best].mean(axis=0))
    return np.stack(found)


def test_both_steps_one_query_at_a_time() -> None:
    prompts = said([one for some in NAMING.values() for one in some])
    for job, found in zip(JOBS, bent(neighbours=30), strict=True):
        e = said([f"a photo of a {job}"])[0]
        forms = said([f"a photo of a {word} {job}" for word in ("small", "tall", "broad")])
        e = off(e, np.concatenate([prompts, forms[1:] - forms[0]]))
        near = nearest_means(e, 30)
        assert np.abs(off(e, near[1:] - near[0]) - found).max() < 1e-6


def test_the_second_step_is_the_constrained_optimum() -> None:
    """Of all unit vectors as near to one group's images as to another's, the one nearest to e."""
    for e, found in zip(said(QUERIES), bent(project=False), strict=True):
        near = nearest_means(e, 100)
        assert np.ptp(near @ e) > 0.05
        assert np.ptp(near @ found) < 1e-6
        solved = minimize(
            lambda z, e=e: -z @ e,
            e + 0.05 * random_unit(1, seed=1)[0],
            jac=lambda z, e=e: -e,
            method="SLSQP",
            constraints=[
                {"type": "eq", "fun": lambda z: z @ z - 1, "jac": lambda z: 2 * z},
                {"type": "eq", "fun": lambda z, near=near: (near[1:] - near[0]) @ z,
                 "jac": lambda z, near=near: near[1:] - near[0]},
            ],
            options={"ftol": 1e-16, "maxiter": 500},
        )  # fmt: skip
        assert solved.success
        assert np.abs(solved.x - found).max() < 1e-6


def test_the_first_step_alone_leaves_nothing_of_prompts_and_forms() -> None:
    found = bent(rounds=0)
    prompts = said([one for some in NAMING.values() for one in some])
    assert np.abs(found @ prompts.T).max() < 1e-10
    for job, one in zip(JOBS, found, strict=True):
        forms = said([f"a photo of a {word} {job}" for word in ("small", "tall", "broad")])
        assert np.ptp(said([f"a photo of a {job}"]) @ forms.T) > 0.003
        assert np.ptp(forms @ one) < 1e-10


def test_more_rounds_come_nearer_to_the_groups_alike() -> None:
    """After one round it is as near to the images that were nearest before, not to those now."""
    gaps = []
    for rounds in (0, 1, 3):
        found = bent(project=False, rounds=rounds, neighbours=30)
        gaps.append(max(np.ptp(nearest_means(e, 30) @ e) for e in found))
    assert gaps[0] > 0.1
    assert gaps[0] > 2 * gaps[1] > 8 * gaps[2]


def test_it_does_nothing_to_the_bit_where_it_is_told_to() -> None:
    single = said(QUERIES).astype(np.float32)
    assert np.array_equal(bent(vectors=single, rounds=0, project=False), single)
    made = Bend().fit(X, GROUPS, texts=texts_of())
    assert np.array_equal(made.map_images(X), X)
    assert bent(vectors=single).dtype == np.float32


def test_many_queries_are_as_each_alone() -> None:
    queries = [f"a photo of a {at} thing" for at in range(BLOCK + 3)]
    together = bent(queries)
    for at in (0, BLOCK - 1, BLOCK, BLOCK + 2):
        assert np.abs(bent(queries[at : at + 1])[0] - together[at]).max() < 1e-6


def test_torch_and_numpy_agree() -> None:
    torch = pytest.importorskip("torch")
    found = bent(vectors=torch.as_tensor(said(QUERIES)))
    assert np.abs(found.numpy() - bent()).max() < 1e-6


def test_rows_that_others_span_are_harmless() -> None:
    x, rows = random_unit(4), np.stack([random_unit(2, seed=at) for at in range(4)])
    more = np.concatenate([rows, rows[:, :1] + rows[:, 1:], 0 * rows[:, :1]], axis=1)
    assert np.abs(project_out_each(x, more) - project_out_each(x, rows)).max() < 1e-10
    assert np.array_equal(project_out_each(x, 0 * rows), x)


def test_forms_come_from_the_table_where_it_has_them() -> None:
    table = {QUERIES[0]: {"g0": "a nurselet", "g1": "a tall nurse", "g2": "a broad nurse"}}
    made = Bend().fit(X, GROUPS, texts=texts_of(forms=table))
    assert made.forms(QUERIES[0]) == list(table[QUERIES[0]].values())
    assert made.forms(QUERIES[1]) == [f"a photo of a {w} clerk" for w in ("small", "tall", "broad")]
    bare = Bend().fit(X, GROUPS, texts=texts_of(words={}))
    assert bare.forms("an egg") == ["a g0 egg", "a g1 egg", "a g2 egg"]


def test_groups_without_images_are_left_out() -> None:
    more = Groups(GROUPS.codes, (*GROUPS.names, "nobody"), "kind")
    made = Bend().fit(X, more, texts=texts_of())
    assert np.array_equal(made.map_texts(said(QUERIES), QUERIES, said), bent())


def test_what_it_refuses() -> None:
    with pytest.raises(InputError, match=r"neighbours = 100, but 'g\d' has \d+ reference images"):
        Bend().fit(X[:60], GROUPS[np.arange(60)], texts=texts_of())
    with pytest.raises(InputError, match="neighbours = -1"):
        Bend(neighbours=-1).fit(X, GROUPS, texts=texts_of())
    with pytest.raises(InputError, match="0 or more; got -2"):
        Bend(rounds=-2).fit(X, GROUPS, texts=texts_of())
    with pytest.raises(InputError, match="--prompts FILE"):
        Bend().fit(X, GROUPS)
    with pytest.raises(UnknownNameError, match="group named by the prompts 'g0'"):
        Bend().fit(X, Groups(GROUPS.codes, ("a", "b", "c"), "kind"), texts=texts_of())
    with pytest.raises(InputError, match="--attribute A"):
        Bend().fit(None, None, texts=texts_of())
    with pytest.raises(InputError, match="call fit first"):
        Bend().map_images(X)
    with pytest.raises(InputError, match="fitted on 24 dimensions"):
        bent(vectors=said(QUERIES)[:, :5])

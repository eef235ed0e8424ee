"""Maps that are learned from prompts: Orth-Proj, Orth-Cali, difference, closed form, RoboShot."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq, minimize

from tests.debiasers.speaking import ALIKE, NAMING, D, random_unit, said, texts_of
from tiltmeter.debiasers.closed_form import ClosedForm, share_left
from tiltmeter.debiasers.difference import Difference
from tiltmeter.debiasers.orth_cali import OrthCali
from tiltmeter.debiasers.orth_proj import OrthProj
from tiltmeter.debiasers.roboshot import RoboShot
from tiltmeter.debiasers.subspace import project_out
from tiltmeter.errors import InputError, UnknownNameError

ALL = [OrthProj, OrthCali, Difference, ClosedForm, RoboShot]
PROMPTS = said([one for some in NAMING.values() for one in some])
X = random_unit(40)


def mapped(debiaser, x=X, texts=None):
    return debiaser.fit(None, None, texts=texts or texts_of()).transform(x)


def group_means() -> np.ndarray:
    means = np.stack([said(some).mean(axis=0) for some in NAMING.values()])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


# theorems


@pytest.mark.parametrize("kind", [OrthProj, Difference])
def test_a_projection_is_idempotent(kind) -> None:
    made = kind().fit(None, None, texts=texts_of())
    once = project_out(X, made.basis_)
    assert np.abs(project_out(once, made.basis_) - once).max() < 1e-12
    assert np.abs(made.transform(made.transform(X)) - made.transform(X)).max() < 1e-12
    assert np.linalg.matrix_rank(once, tol=1e-8) == D - len(made.basis_)


def test_orth_proj_leaves_nothing_of_the_prompts() -> None:
    """The formula with its inverse, which the code has not."""
    assert np.abs(X @ PROMPTS.T).max() > 0.3
    found = mapped(OrthProj())
    assert np.abs(found @ PROMPTS.T).max() < 1e-12
    v = PROMPTS.T
    slow = X @ (np.eye(D) - v @ np.linalg.inv(v.T @ v) @ v.T)
    assert np.abs(found - slow / np.linalg.norm(slow, axis=1, keepdims=True)).max() < 1e-10


def test_the_difference_subspace_leaves_shared_content_alone() -> None:
    """Every vector keeps as much of what the groups share, and all groups become alike to it."""
    named = group_means()
    made = Difference().fit(None, None, texts=texts_of())
    left = project_out(X, made.basis_)
    shared = named.mean(axis=0)
    shared -= made.basis_.T @ (made.basis_ @ shared)  # what no difference of groups can tell
    assert np.linalg.norm(shared) > 0.3
    assert np.abs(left @ shared - X @ shared).max() < 1e-12
    assert np.ptp(X @ named.T, axis=1).max() > 0.3
    assert np.ptp(left @ named.T, axis=1).max() < 1e-12
    off = project_out(X, OrthProj().fit(None, None, texts=texts_of()).basis_)
    assert np.abs(off @ shared).max() < 1e-12  # and Orth-Proj takes that away too
    assert len(made.basis_) == 2


def test_orth_cali_without_weight_is_orth_proj() -> None:
    assert np.array_equal(mapped(OrthCali(weight=0)), mapped(OrthProj()))


def test_orth_cali_is_its_formula_and_draws_pairs_together() -> None:
    slow = np.zeros((D, D))
    for one, other in ALIKE:
        apart = said([one])[0] - said([other])[0]
        slow += np.outer(apart, apart) / len(ALIKE)
    v = PROMPTS.T
    p0 = np.eye(D) - v @ np.linalg.inv(v.T @ v) @ v.T
    want = X @ (p0 @ np.linalg.inv(np.eye(D) + 1000 * slow)).T
    want /= np.linalg.norm(want, axis=1, keepdims=True)
    assert np.abs(mapped(OrthCali()) - want).max() < 1e-9
    one, other = (said([pair[side] for pair in ALIKE]) for side in (0, 1))
    gaps = [
        np.linalg.norm(mapped(kind, one) - mapped(kind, other), axis=1).mean()
        for kind in (OrthProj(), OrthCali(weight=10), OrthCali())
    ]
    assert gaps[0] > gaps[1] > gaps[2]


def test_the_control_of_orth_cali_has_its_calibration() -> None:
    control, other = (
        kind(weight=1000).fit(None, None, texts=texts_of()) for kind in (Difference, OrthCali)
    )
    assert np.array_equal(control.calibration_, other.calibration_)
    assert np.abs(control.transform(X) - mapped(Difference())).max() > 0.01


def test_the_closed_form_solves_its_equation() -> None:
    made = ClosedForm().fit(None, None, texts=texts_of())
    vectors = np.concatenate([X, group_means() + 1e-3 * X[:3]])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for e, u in zip(vectors, made.transform(vectors), strict=True):
        inside = made.basis_.T @ (made.basis_ @ e)
        outside = e - inside
        a, o = np.linalg.norm(inside), np.linalg.norm(outside)

        def at(alpha: float, a=a, o=o, inside=inside, outside=outside) -> np.ndarray:
            return np.sqrt(1 - alpha**2) * outside / o + alpha * inside / a

        def equation(alpha: float, e=e, a=a, o=o, at=at) -> float:
            return float((1 - e @ at(alpha)) / (1 - o) - alpha / a)

        alpha = brentq(equation, 0, a, xtol=1e-14)
        assert np.abs(u - at(alpha)).max() < 1e-6
        assert 0 < alpha < a
        assert abs(np.linalg.norm(made.basis_ @ u) - alpha) < 1e-6
        printed = a + (1 - o) / a  # E of the paper's own form
        formula = (printed - o * np.sqrt(printed**2 - a**2)) / (printed**2 + o**2)
        assert abs(share_left(np.array(o)) * a - formula) < 1e-9


def test_the_closed_form_leaves_what_has_nothing_to_lose_or_nothing_else() -> None:
    made = ClosedForm().fit(None, None, texts=texts_of())
    pure = project_out(X[:3], made.basis_)
    pure /= np.linalg.norm(pure, axis=1, keepdims=True)
    assert np.abs(made.transform(pure) - pure).max() < 1e-12
    made.basis_ = np.eye(D)[:2]
    exact = np.eye(D)[[3, 0, 1]]  # a = 0; o = 0, twice
    assert np.array_equal(made.transform(exact), exact)
    # near a = 0 nothing jumps
    near = exact[:1] + 1e-9 * np.eye(D)[:1]
    assert np.abs(made.transform(near) - exact[:1]).max() < 1e-8


def test_the_closed_form_is_the_fairest_of_no_greater_loss() -> None:
    """Chebyshev: no other unit vector has both shares of loss smaller."""
    made = ClosedForm().fit(None, None, texts=texts_of())
    e = X[0]
    inside = made.basis_ @ e
    a, o = np.linalg.norm(inside), np.sqrt(1 - inside @ inside)

    def worse(z: np.ndarray) -> float:
        u = z / np.linalg.norm(z)
        return max((1 - e @ u) / (1 - o), np.linalg.norm(made.basis_ @ u) / a)

    best = worse(made.transform(e[None])[0])
    rng = np.random.default_rng(0)
    for _ in range(5):
        start = made.transform(e[None])[0] + 0.05 * rng.normal(size=D)
        assert minimize(worse, start, method="Powell").fun > best - 1e-6


def test_roboshot_against_its_steps_one_by_one() -> None:
    harmful = [("a tall nurse", "a small nurse"), ("a tall one", "a broad one")]
    helpful = [("a nurse", "a clerk"), ("a good photo", "a bad photo")]
    found = mapped(RoboShot(), texts=texts_of(harmful=harmful, helpful=helpful))
    for x, y in zip(X, found, strict=True):
        for one, other in harmful:
            v = said([one])[0] - said([other])[0]
            x = x - (x @ v) / (v @ v) * v
            x = x / np.linalg.norm(x)
        for one, other in helpful:
            u = said([one])[0] - said([other])[0]
            x = x + (x @ u) / (u @ u) * u
            x = x / np.linalg.norm(x)
        assert np.abs(x - y).max() < 1e-12


def test_roboshot_takes_the_groups_own_pairs_where_none_are_named() -> None:
    made = RoboShot().fit(None, None, texts=texts_of())
    assert len(made.harmful_) == 6  # three pairs of groups, two texts each
    assert len(made.helpful_) == 0
    last = said(["the tall one"]) - said(["the broad one"])
    assert np.abs(X @ last.T).max() > 0.1
    assert np.abs(made.transform(X) @ last.T).max() < 1e-12


# nothing changes nothing


@pytest.mark.parametrize(
    "debiaser",
    [
        OrthProj(rank=0), OrthProj("both", 0), OrthCali(weight=0, rank=0), Difference(rank=0),
        ClosedForm(rank=0), RoboShot("both"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_does_nothing_changes_nothing_to_the_bit(debiaser, dtype) -> None:
    x = X.astype(dtype)
    debiaser.fit(None, None, texts=texts_of(harmful=()))
    assert np.array_equal(debiaser.map_images(x), x)
    assert np.array_equal(debiaser.map_texts(x, ["a"] * len(x), said), x)


@pytest.mark.parametrize("kind", ALL)
def test_towers(kind) -> None:
    for towers, changes in (("texts", (0, 1)), ("images", (1, 0)), ("both", (1, 1))):
        made = kind(towers=towers).fit(None, None, texts=texts_of())
        moved = made.map_images(X), made.map_texts(X, ["a"] * len(X), said)
        assert tuple(int(np.abs(x - X).max() > 1e-3) for x in moved) == changes
    with pytest.raises(UnknownNameError, match="texts"):
        kind(towers="text").fit(None, None, texts=texts_of())


@pytest.mark.parametrize("kind", ALL)
def test_torch_and_numpy_agree_and_gradients_pass(kind) -> None:
    torch = pytest.importorskip("torch")
    made = kind().fit(None, None, texts=texts_of())
    tensor = torch.tensor(X, requires_grad=True)
    found = made.transform(tensor)
    assert np.abs(found.detach().numpy() - made.transform(X)).max() < 1e-12
    (found * torch.as_tensor(random_unit(40, seed=1))).sum().backward()
    assert torch.isfinite(tensor.grad).all()
    assert tensor.grad.abs().max() > 0
    single = made.transform(X.astype(np.float32))
    assert single.dtype == np.float32
    assert np.abs(single - made.transform(X)).max() < 1e-5


# odd input


@pytest.mark.parametrize("kind", [OrthProj, Difference, ClosedForm, OrthCali])
def test_prompts_that_repeat_others_count_once(kind) -> None:
    twice = {name: [*some, some[0]] for name, some in NAMING.items()}
    once = {name: some[:1] for name, some in NAMING.items()}
    again = {name: [some[0]] * 3 for name, some in once.items()}
    assert (
        np.abs(mapped(kind(), texts=texts_of(once)) - mapped(kind(), texts=texts_of(again))).max()
        < 1e-9
    )
    assert len(OrthProj().fit(None, None, texts=texts_of(twice)).basis_) == 6


def test_groups_that_a_model_does_not_tell_apart() -> None:
    same = {"g0": ["a small person"], "g1": ["A Small Person"]}  # capitals are nothing to `said`
    for kind in (Difference, ClosedForm):
        with pytest.raises(InputError, match="does not tell them apart"):
            kind().fit(None, None, texts=texts_of(same))
    with pytest.raises(InputError, match="harmful pair 'a small person', 'A Small Person'"):
        RoboShot().fit(None, None, texts=texts_of(same))
    assert len(OrthProj().fit(None, None, texts=texts_of(same)).basis_) == 1


def test_a_prompt_itself_stays_what_it_was() -> None:
    """Nothing is left of it, and noise made unit would be no answer."""
    single = PROMPTS.astype(np.float32)
    for x in (PROMPTS, single):
        found = mapped(OrthProj(), x)
        assert np.abs(found - x).max() < 1e-6
    assert mapped(OrthProj(), single).dtype == np.float32


@pytest.mark.parametrize("kind", ALL)
def test_what_they_refuse(kind) -> None:
    with pytest.raises(InputError, match="--prompts FILE"):
        kind().fit(X, None)
    for few in ({}, {"g0": ["a small person"]}, {"g0": ["a small person"], "g1": []}):
        with pytest.raises(InputError, match="two groups or more"):
            kind().fit(None, None, texts=texts_of(few))
    with pytest.raises(InputError, match="call fit first"):
        kind().transform(X)
    made = kind().fit(None, None, texts=texts_of())
    with pytest.raises(InputError, match="fitted on 24 dimensions; X has 5"):
        made.transform(X[:, :5])


def test_settings_that_are_refused() -> None:
    with pytest.raises(InputError, match="0 or more; got -1"):
        OrthProj(rank=-1).fit(None, None, texts=texts_of())
    with pytest.raises(InputError, match="weight must be 0 or more"):
        OrthCali(weight=-1).fit(None, None, texts=texts_of())
    with pytest.raises(InputError, match="no pairs of texts that should agree"):
        OrthCali().fit(None, None, texts=texts_of(equivalent=()))

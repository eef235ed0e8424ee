"""FairerCLIP (Dehdashtian, Wang and Boddeti 2024): features that predict the task, not the group.

Each tower gets z = U'(phi(x) - mean phi), phi random Fourier features of a Gaussian kernel (or x
itself). With B_v = C_v C_v', C_v the covariance of phi and v (HSIC with a linear kernel on v),
each divided by its largest eigenvalue, U has the leading eigenvectors of

    B_y + w(tau_z) B_z - w(tau) B_s   against   cov(phi) + gamma I,        w(t) = t / (1 - t)

y are the target's labels, s the attribute's, and z the other tower's features of the same rows:
the towers are solved in turn, images first. Texts are only as many as targets: their U is of the
directions in which they differ, all of which are needed to tell targets apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.spatial.distance import pdist

from tiltmeter.debiasers.debiaser import GroupTexts, LabelMap, check_choice, like_input
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import namespace, to_numpy, unit
from tiltmeter.types import Array, Floats, Groups

KERNELS = ("rbf", "linear")
SAMPLE = 2000  # rows whose distances set the kernel's width
NOTHING = 1e-9  # eigenvalues and singular values below are rounding


@dataclass(eq=False)
class FairerClip(LabelMap):
    """FairerCLIP (Dehdashtian et al. 2024): kernel features that keep the target, not the group.

    Without targets there is no task to keep: then one projection for both towers keeps the vectors
    themselves, as far as they do not depend on the attribute.

    Parameters
    ----------
    targets
        Texts of the classes that the model will choose from. Each image is labelled with the
        nearest one (a pseudo-label), and the text tower is learned together with the image tower.
    tau
        From 0 to below 1: weight of independence from the attribute.
    tau_z
        From 0 to below 1: weight of the dependence between the towers.
    gamma
        Added to the variances.
    rank
        Number of features. 0: one less than the targets; without targets, all that are kept.
    kernel
        `rbf` or `linear`.
    features
        Number of random Fourier features.
    rounds
        How often pseudo-labels are renewed.
    seed
        Seed of the random features.

    Attributes
    ----------
    basis_ : array of shape (n_dimensions, rank)
        Without targets: the projection.
    image_map_, text_map_ : array of shape (n_features, rank)
        With targets: the map U of each tower; `image_mean_`, `image_frequencies_`, `image_phases_`
        and those of `text` are its features.
    """

    needs = ("labels", "prompts")

    targets: Sequence[str] = ()
    tau: float = 0.6
    tau_z: float = 0.3
    gamma: float = 1e-4
    rank: int = 0
    kernel: str = "rbf"
    features: int = 1000
    rounds: int = 2
    seed: int = 0

    def _fit(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        check_choice("kernel", self.kernel, KERNELS)
        for name, value in (("tau", self.tau), ("tau_z", self.tau_z)):
            if not 0 <= value < 1:
                raise InputError(f"{name} must be from 0 to below 1; got {value}")
        s = _centred(np.eye(len(labels.names))[labels.codes])
        if not len(self.targets):
            self.basis_ = _independent_basis(x, s, self.tau, self.rank)
            return
        if texts is None or len(self.targets) < 2:
            raise InputError(
                "fairerclip learns from the texts of two targets or more and from the model's text "
                "encoder: debias(..., settings={'targets': [...]})"
            )
        targets = np.asarray(to_numpy(texts.encode(list(self.targets))), np.float64)
        self._fit_towers(x, s, unit(targets))

    def _fit_towers(self, x: Floats, s: Floats, targets: Floats) -> None:
        rng = np.random.default_rng(self.seed)
        phi_image, self.image_frequencies_, self.image_phases_ = self._features(x, rng)
        phi_text, self.text_frequencies_, self.text_phases_ = self._features(targets, rng)
        rank, span = self.rank or len(targets) - 1, _directions(phi_text(targets))
        if not span.size:
            raise InputError(
                "fairerclip chooses between targets by their texts, and the model has the same "
                f"embedding for all of them: {', '.join(map(repr, self.targets))}. Use other texts"
            )
        phi_x = phi_image(x)
        pseudo = (x @ targets.T).argmax(axis=1)
        images: tuple[Floats, Floats] | None = None
        for _ in range(max(self.rounds, 1)):
            y = _centred(np.eye(len(targets))[pseudo])
            phi_t = phi_text(targets[pseudo])
            if images is None:
                images = self._solve_tower(phi_x, y, s, None, rank)
            z = (phi_x - images[0]) @ images[1]
            texts = self._solve_tower(phi_t, y, s, z, rank, span)
            z_text = (phi_t - texts[0]) @ texts[1]
            images = self._solve_tower(phi_x, y, s, z_text, rank)
            z = (phi_x - images[0]) @ images[1]
            # HSIC is invariant to a rotation of either tower and a cosine is not: rotate the texts
            left, _, right = np.linalg.svd(z_text.T @ z, full_matrices=False)
            texts = (texts[0], texts[1] @ (left @ right))
            z_targets = (phi_text(targets) - texts[0]) @ texts[1]
            pseudo = (_unit_or_zero(z) @ _unit_or_zero(z_targets).T).argmax(axis=1)
        assert images is not None
        if not images[1].any() or not texts[1].any():
            raise InputError(
                f"nothing is left: with tau = {self.tau:g} all depends more on the attribute "
                "than on the targets, or no image is nearer to another target than to the first. "
                "Use a smaller tau, or other targets"
            )
        self.image_mean_, self.image_map_ = images
        self.text_mean_, self.text_map_ = texts

    def _features(
        self, x: Floats, rng: np.random.Generator
    ) -> tuple[Callable[[Floats], Floats], Floats, Floats]:
        """The feature map of a tower, with its frequencies and phases."""
        d = x.shape[1]
        if self.kernel == "linear":
            frequencies, phases = np.empty((d, 0)), np.empty(0)
        else:
            sample = x[rng.permutation(len(x))[:SAMPLE]]
            distances = pdist(sample, "sqeuclidean")
            distances = distances[distances > 0]
            sigma = np.sqrt(0.5 * np.median(distances)) if len(distances) else 1.0
            frequencies = rng.normal(size=(d, self.features)) / sigma
            phases = rng.uniform(0, 2 * np.pi, self.features)
        return (
            (lambda rows: np.asarray(fourier_features(rows, frequencies, phases))),
            frequencies,
            phases,
        )

    def _solve_tower(
        self, phi: Floats, y: Floats, s: Floats, z: Floats | None, rank: int,
        span: Floats | None = None,
    ) -> tuple[Floats, Floats]:  # fmt: skip
        """Mean of the features and the map U, features x rank; within a span all of U is kept."""
        mean = phi.mean(axis=0)
        centred = phi - mean
        gain = _dependence(centred, y) - _weight(self.tau) * _dependence(centred, s)
        if z is not None:
            gain = gain + _weight(self.tau_z) * _dependence(centred, z - z.mean(axis=0))
        spread = centred.T @ centred / len(phi) + self.gamma * np.eye(phi.shape[1])
        if span is not None:
            gain, spread = (span.T @ matrix @ span for matrix in (gain, spread))
        count = min(rank, len(gain))
        values, u = eigh(gain, spread, subset_by_index=[len(gain) - count, len(gain) - 1])
        # what depends more on the attribute than on the target is not kept
        u = np.where(values > NOTHING, u, 0.0) if span is None else span @ u
        return mean, np.ascontiguousarray(u[:, ::-1])

    def _transform(self, X: Array) -> Array:
        if "basis_" in vars(self):
            return unit(X @ like_input(X, self.basis_)[0])
        return self._map_tower(X, "image")

    def map_texts(self, X: Array, texts: object, encode: object) -> Array:
        self.check_fitted()
        return self.transform(X) if "basis_" in vars(self) else self._map_tower(X, "text")

    def _map_tower(self, X: Array, tower: str) -> Array:
        names = ("frequencies", "phases", "mean", "map")
        frequencies, phases, mean, u = like_input(
            X, *(getattr(self, f"{tower}_{name}_") for name in names)
        )
        return unit((fourier_features(X, frequencies, phases) - mean) @ u)


def fourier_features(x: Array, frequencies: Array, phases: Array) -> Array:
    """Return sqrt(2/D) cos(x w + b); without frequencies, `x` itself."""
    if not frequencies.shape[1]:
        return x
    return namespace(x).cos(x @ frequencies + phases) * (2 / frequencies.shape[1]) ** 0.5


def _directions(rows: Floats) -> Floats:
    """An orthonormal basis of the differences between rows."""
    _, sizes, directions = np.linalg.svd(_centred(rows), full_matrices=False)
    return np.asarray(directions[sizes > NOTHING].T)


def _independent_basis(x: Floats, s: Floats, tau: float, rank: int) -> Floats:
    """An orthonormal basis of what depends more on the vectors than on the attribute."""
    centred = _centred(x)
    values, vectors = np.linalg.eigh(
        _dependence(centred, centred) - _weight(tau) * _dependence(centred, s)
    )
    positive = int((values > 1e-12).sum())
    if not positive:
        raise InputError(f"tau = {tau:g} leaves no direction at all: use a smaller one")
    return np.ascontiguousarray(vectors[:, ::-1][:, : min(rank or positive, positive)])


def _dependence(phi: Floats, v: Floats) -> Floats:
    """C C' over its largest eigenvalue, C the covariance of centred features and `v`."""
    crossed = phi.T @ v / len(phi)
    size = float(np.linalg.norm(crossed, 2)) ** 2
    return (
        np.asarray(crossed @ crossed.T / size) if size > 1e-300 else np.zeros((phi.shape[1],) * 2)
    )


def _weight(tau: float) -> float:
    return tau / (1 - tau)


def _centred(x: Floats) -> Floats:
    return np.asarray(x - x.mean(axis=0))


def _unit_or_zero(x: Floats) -> Floats:
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300))

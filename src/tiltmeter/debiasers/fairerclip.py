"""FairerCLIP (Dehdashtian, Wang and Boddeti 2024): coordinates that tell the task, not the group.

Each tower gets z = U'(phi(x) - mean phi), phi random Fourier features of a Gaussian kernel (or x
itself). With B_v = C_v C_v', C_v the covariance of phi and v (HSIC with a linear kernel on v),
each divided by its largest eigenvalue, U holds the leading eigenvectors of

    B_y + w(tau_z) B_z - w(tau) B_s   against   cov(phi) + gamma I,        w(t) = t / (1 - t)

y are the target's labels, s the attribute's, and z the other tower's coordinates of the same rows:
the towers are solved in turn, images first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.spatial.distance import pdist

from tiltmeter.debiasers.debiaser import GroupTexts, LabelMap, one_of
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import like, namespace, to_numpy, unit
from tiltmeter.types import Array, Floats, Groups

KERNELS = ("rbf", "linear")
SAMPLE = 2000  # rows whose distances set the kernel's width


class FairerClip(LabelMap):
    """FairerCLIP (Dehdashtian et al. 2024): kernel coordinates that keep the target, not the group.

    `targets` are texts of the classes that the model will choose from; each image's own is the
    nearest (a pseudo-label, renewed `rounds` times), and the texts' tower is learned beside that of
    the images. Without targets there is no task to keep: then one projection for both towers keeps
    the vectors themselves, as far as they do not depend on the attribute.
    """

    needs = ("labels", "prompts")

    def __init__(
        self,
        targets: Sequence[str] = (),
        tau: float = 0.6,
        tau_z: float = 0.3,
        gamma: float = 1e-4,
        rank: int = 0,
        kernel: str = "rbf",
        features: int = 1000,
        rounds: int = 2,
        seed: int = 0,
    ) -> None:
        self.targets = targets
        self.tau = tau
        self.tau_z = tau_z
        self.gamma = gamma
        self.rank = rank  # 0: one less than the targets; without them, all that is worth keeping
        self.kernel = kernel
        self.features = features
        self.rounds = rounds
        self.seed = seed

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "targets": list(self.targets)}  # as JSON gives them back

    def learn(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        one_of("kernel", self.kernel, KERNELS)
        for name, value in (("tau", self.tau), ("tau_z", self.tau_z)):
            if not 0 <= value < 1:
                raise InputError(f"{name} lies from 0 to below 1; got {value}")
        s = _centred(np.eye(len(labels.names))[labels.codes])
        if not len(self.targets):
            self.basis_ = _kept(x, s, self.tau, self.rank)
            return
        if texts is None or len(self.targets) < 2:
            raise InputError(
                "fairerclip learns from the texts of two targets or more and from the model's "
                "encoder of texts: debias(..., settings={'targets': [...]})"
            )
        said = np.asarray(to_numpy(texts.encode(list(self.targets))), np.float64)
        self._in_turns(x, s, unit(said))

    def _in_turns(self, x: Floats, s: Floats, said: Floats) -> None:
        rng = np.random.default_rng(self.seed)
        see, self.image_width_, self.image_phase_ = self._features(x, rng)
        say, self.text_width_, self.text_phase_ = self._features(said, rng)
        rank = self.rank or len(said) - 1
        seen = see(x)
        guess = (x @ said.T).argmax(axis=1)
        images: tuple[Floats, Floats] | None = None
        for _ in range(max(self.rounds, 1)):
            y = _centred(np.eye(len(said))[guess])
            told = say(said[guess])
            if images is None:
                images = self._tower(seen, y, s, None, rank)
            z = (seen - images[0]) @ images[1]
            texts = self._tower(told, y, s, z, rank)
            z_text = (told - texts[0]) @ texts[1]
            images = self._tower(seen, y, s, z_text, rank)
            z = (seen - images[0]) @ images[1]
            # HSIC does not see a rotation of either tower, and a cosine does: turn the texts
            left, _, right = np.linalg.svd(z_text.T @ z, full_matrices=False)
            texts = (texts[0], texts[1] @ (left @ right))
            shown = (say(said) - texts[0]) @ texts[1]
            guess = (_unit_or_zero(z) @ _unit_or_zero(shown).T).argmax(axis=1)
        assert images is not None
        if not images[1].any() or not texts[1].any():
            raise InputError(
                f"nothing is left: with tau = {self.tau:g} all depends more on the attribute than "
                "on the targets, or no image is nearer to another target than to the first. Give a "
                "smaller tau, or other targets"
            )
        self.image_mean_, self.image_map_ = images
        self.text_mean_, self.text_map_ = texts

    def _features(
        self, x: Floats, rng: np.random.Generator
    ) -> tuple[Callable[[Floats], Floats], Floats, Floats]:
        """The feature map of a tower, with the frequencies and phases that make it."""
        d = x.shape[1]
        if self.kernel == "linear":
            width, phase = np.empty((d, 0)), np.empty(0)
        else:
            some = x[rng.permutation(len(x))[:SAMPLE]]
            apart = pdist(some, "sqeuclidean")
            apart = apart[apart > 0]
            sigma = np.sqrt(0.5 * np.median(apart)) if len(apart) else 1.0
            width = rng.normal(size=(d, self.features)) / sigma
            phase = rng.uniform(0, 2 * np.pi, self.features)
        return (lambda rows: np.asarray(lifted(rows, width, phase))), width, phase

    def _tower(
        self, phi: Floats, y: Floats, s: Floats, z: Floats | None, rank: int
    ) -> tuple[Floats, Floats]:
        """Mean of the features and the map U, features x rank."""
        mean = phi.mean(axis=0)
        centred = phi - mean
        gain = _dependence(centred, y) - _weight(self.tau) * _dependence(centred, s)
        if z is not None:
            gain = gain + _weight(self.tau_z) * _dependence(centred, z - z.mean(axis=0))
        spread = centred.T @ centred / len(phi) + self.gamma * np.eye(phi.shape[1])
        count = min(rank, phi.shape[1])
        values, found = eigh(gain, spread, subset_by_index=[phi.shape[1] - count, phi.shape[1] - 1])
        # what depends more on the attribute than on the target is not kept
        found = np.where(values > 0, found, 0.0)[:, ::-1]
        return mean, found

    def map_images(self, vectors: Array) -> Array:
        self.check_fitted()
        if "basis_" in vars(self):
            return self.map(vectors)
        return self._mapped(
            vectors, self.image_width_, self.image_phase_, self.image_mean_, self.image_map_
        )

    def map_texts(self, vectors: Array, texts: object, encode: object) -> Array:
        self.check_fitted()
        if "basis_" in vars(self):
            return self.map(vectors)
        return self._mapped(
            vectors, self.text_width_, self.text_phase_, self.text_mean_, self.text_map_
        )

    def map(self, vectors: Array) -> Array:
        """Both towers alike: without targets."""
        self.check_fitted()
        if vectors.shape[1] != len(self.basis_):
            raise InputError(
                f"fitted on {len(self.basis_)} dimensions, asked to map {vectors.shape[1]}"
            )
        return unit(vectors @ like(vectors, self.basis_, _kind(vectors)))

    @staticmethod
    def _mapped(x: Array, width: Floats, phase: Floats, mean: Floats, to: Floats) -> Array:
        put = [like(x, one, _kind(x)) for one in (width, phase, mean, to)]
        return unit((lifted(x, put[0], put[1]) - put[2]) @ put[3])


def lifted(x: Array, width: Array, phase: Array) -> Array:
    """sqrt(2/D) cos(x w + b); without frequencies x itself."""
    if not width.shape[1]:
        return x
    xp = namespace(x)
    return xp.cos(x @ width + phase) * (2 / width.shape[1]) ** 0.5


def _kept(x: Floats, s: Floats, tau: float, rank: int) -> Floats:
    """An orthonormal basis of what depends more on the vectors than on the attribute."""
    centred = _centred(x)
    values, found = np.linalg.eigh(
        _dependence(centred, centred) - _weight(tau) * _dependence(centred, s)
    )
    values, found = values[::-1], found[:, ::-1]
    there = int((values > 1e-12).sum())
    if not there:
        raise InputError(f"tau = {tau:g} leaves no direction at all: give a smaller one")
    return np.ascontiguousarray(found[:, : min(rank or there, there)])


def _dependence(phi: Floats, v: Floats) -> Floats:
    """C C', C the covariance of centred features and `v`, over its largest eigenvalue."""
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


def _kind(x: Array) -> str:
    return str(x.dtype).rpartition(".")[2]

"""Zero-shot classes and recall, by hand and against the slow way."""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter import metrics
from tiltmeter.errors import InputError


def test_a_model_that_cannot_tell_scores_what_chance_does() -> None:
    labels = np.arange(100) % 5
    assert metrics.zero_shot_correct(np.zeros((5, 100)), labels).mean() == pytest.approx(0.2)
    perfect = np.eye(5)[:, labels]
    assert metrics.zero_shot_correct(perfect, labels).mean() == 1
    assert metrics.zero_shot_correct(-perfect, labels).mean() == 0


def test_recall_is_that_of_the_slow_way() -> None:
    rng = np.random.default_rng(0)
    images, texts = rng.normal(size=(40, 8)), rng.normal(size=(120, 8))
    of = rng.permutation(np.arange(120) % 40)
    forth = metrics.top_k(texts, images, k=10).ids
    back = metrics.top_k(images, texts, k=10).ids
    found = metrics.found_in_top_k(forth, of, np.arange(40), k=[1, 5, 10])
    returned = metrics.found_in_top_k(back, np.arange(40), of, k=[1, 5, 10])
    for column, k in enumerate((1, 5, 10)):
        for row in range(120):
            assert found[row, column] == (of[row] in forth[row][:k].tolist())
        for row in range(40):
            assert returned[row, column] == any(of[t] == row for t in back[row][:k])
    assert (np.diff(found, axis=1) >= 0).all()


def test_what_cannot_be() -> None:
    with pytest.raises(InputError, match="class numbers from 0 to 1"):
        metrics.zero_shot_correct(np.zeros((2, 3)), [0, 1, 2])
    with pytest.raises(InputError, match="between 1 and 2"):
        metrics.found_in_top_k([[0, 1]], [0], [0, 1], k=[3])
    with pytest.raises(InputError, match="2 queries"):
        metrics.found_in_top_k([[0, 1]], [0, 1], [0, 1], k=[1])

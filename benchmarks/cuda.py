"""The metrics on a GPU: the same numbers as on the CPU, and how long they take there.

    python -m benchmarks.cuda

Needs torch with CUDA; nothing leaves the device but what is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from tiltmeter import metrics
from tiltmeter.metrics.retrieval import top_k
from tiltmeter.types import Groups

QUERIES, IMAGES, DIMENSIONS, GROUPS = 400, 86_744, 512, 14


def timed(work: Callable[[], object]) -> float:
    """Milliseconds, the best of five after one to warm up."""
    best = float("inf")
    for _ in range(6):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return 1e3 * best


def draws(rng: np.random.Generator) -> None:
    """Relabellings and resamples of 64 rankings, with both kinds of loops."""
    from tiltmeter.metrics import numpy_kernels
    from tiltmeter.stats import kernels, torch_kernels
    from tiltmeter.stats.bootstrap import bootstrap_weights_within_groups

    groups = Groups(rng.integers(0, GROUPS, 20_000), tuple(map(str, range(GROUPS))))
    scores = rng.normal(size=(64, 20_000)).astype(np.float32)
    order, z = numpy_kernels.rank(scores), kernels.standardized(scores)
    labels = np.stack([rng.permutation(groups.codes) for _ in range(20)]).astype(np.uint8)
    weights, of = bootstrap_weights_within_groups(groups, 20, rng), np.arange(GROUPS)
    shares = np.full(GROUPS, 1 / GROUPS)
    given = {
        "relabelled_sums": (z, labels, GROUPS, of),
        "weighted_sums": (z, groups.codes, weights, GROUPS),
        "weighted_squares": (z, weights),
        "relabelled_top_counts": (order[:, :1000], labels, (100, 1000), GROUPS, of),
        "weighted_top_counts": (order, groups.codes, weights, 1000, GROUPS),
        "relabelled_ndkl": (order, labels, shares, of),
        "weighted_ndkl": (order, groups.codes, weights, shares),
    }
    for name, told in given.items():
        sent = [
            torch.as_tensor(x.astype(np.int64) if x.dtype.itemsize > 1 and x.dtype.kind in "iu"
                            else x, device="cuda")
            if isinstance(x, np.ndarray) and x is not shares else x
            for x in told
        ]  # fmt: skip
        found = getattr(torch_kernels, name)(*sent)
        expected = getattr(kernels, name)(*told)
        if isinstance(found, np.ndarray):
            found, expected = [found], [expected]
        away = max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True))
        size = max(np.abs(b).max() for b in expected)
        print(f"{name:24} largest difference from NumPy {away:.1e} of {size:.1e}")
        assert away <= 1e-4 * size
        took = timed(lambda name=name, sent=sent: getattr(torch_kernels, name)(*sent))
        print(f"{'':24} {took:8.1f} ms")


def main() -> None:
    rng = np.random.default_rng(0)
    groups = Groups(rng.integers(0, GROUPS, IMAGES), tuple(map(str, range(GROUPS))))
    texts = torch.randn(QUERIES, DIMENSIONS, device="cuda")
    images = torch.randn(IMAGES, DIMENSIONS, device="cuda")
    texts, images = (torch.nn.functional.normalize(x) for x in (texts, images))
    scores = texts @ images.T
    on_cpu = scores.cpu().numpy()
    kind = {"k": 1000, "target": "prior", "empty": "bounded", "ties": "expected"}
    calls: dict[str, Callable[[object], object]] = {
        "c_asc": lambda s: metrics.c_asc(s, groups),
        "max_skew@1000": lambda s: metrics.max_skew(s, groups, **kind),
        "normalized_entropy@1000": lambda s: metrics.normalized_entropy(s, groups, k=1000),
        "ndkl": lambda s: metrics.ndkl(s, groups, target="prior"),
    }
    print(f"{torch.cuda.get_device_name(0)}: {QUERIES} x {IMAGES} scores, {GROUPS} groups")
    print(f"{'product and sort':24} {timed(lambda: torch.sort(texts @ images.T, dim=1)):8.1f} ms")
    for name, call in calls.items():
        found = call(scores)
        assert found.is_cuda
        away = np.abs(found.cpu().numpy() - call(on_cpu)).max()
        took = timed(lambda call=call: call(scores))
        print(f"{name:24} {took:8.1f} ms   largest difference from NumPy {away:.1e}")
        assert away < 1e-9
    draws(rng)
    queries, items = (torch.randn(n, DIMENSIONS, device="cuda") for n in (6000, 120_000))
    took = timed(lambda: top_k(queries, items, 500, item_block=30_000))
    print(f"{'top 500 of 120,000':24} {took:8.1f} ms   6,000 queries")


if __name__ == "__main__":
    main()

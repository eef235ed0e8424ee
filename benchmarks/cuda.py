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
    queries, items = (torch.randn(n, DIMENSIONS, device="cuda") for n in (6000, 120_000))
    took = timed(lambda: top_k(queries, items, 500, item_block=30_000))
    print(f"{'top 500 of 120,000':24} {took:8.1f} ms   6,000 queries")


if __name__ == "__main__":
    main()

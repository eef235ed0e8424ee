"""Tables 4 and 5 of CounterBias on the testbed: FairVLP and what it is compared with.

python -m benchmarks.fairvlp --device cuda --out DIR
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tiltmeter.papers.fairvlp_study import (
    METHODS,
    SMALL,
    MethodResult,
    StudySize,
    fairvlp_study,
    markdown,
    study_rows,
)


def _one_method(model: str, size: StudySize, device: str, method: str) -> MethodResult:
    return next(fairvlp_study(model, methods=[method], size=size, device=device))


def _results(
    work: Callable[[str], MethodResult], methods: Sequence[str], workers: int
) -> Iterator[MethodResult]:
    """Results in the order of the methods; small networks leave a GPU idle most of the time."""
    if workers == 1:
        yield from map(work, methods)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, methods)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="testbed:fusion", help="or testbed:stream")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--small", action="store_true", help="a few minutes on a CPU")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--images", type=int)
    parser.add_argument("--workers", type=int, default=1, help="methods trained at the same time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write results.json and tables.md there")
    options = parser.parse_args()
    sizes = {name: getattr(options, name) for name in ("steps", "batch", "images", "seed")}
    size = replace(
        SMALL if options.small else StudySize(),
        **{name: value for name, value in sizes.items() if value is not None},
    )
    work = partial(_one_method, options.model, size, options.device)
    results: list[MethodResult] = []
    for one in _results(work, options.methods, options.workers):
        results.append(one)
        print(f"{one.name}: trained in {one.seconds:.0f} s", flush=True)
        rows = study_rows(results)
        if options.out:  # after every method: an interrupted run keeps what it has
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
            (options.out / "tables.md").write_text(markdown(rows) + "\n")
    print(f"\n{options.model}, {size}\n\n{markdown(study_rows(results))}")


if __name__ == "__main__":
    main()

"""The command `morph`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tiltmeter.cli import options as common
from tiltmeter.cli.help import DATA, OUTPUT
from tiltmeter.cli.options import option


def morph(
    images: Annotated[
        str,
        option(
            "--images", "SPEC", "Aligned faces: cfd:DIR, folder:DIR, ...", DATA, complete="datasets"
        ),
    ],
    out: Annotated[Path, option("--out", "DIR", "New folder for the morphs", OUTPUT)],
    attribute: Annotated[
        str, option("--attribute -a", "A", "Morphs stay within its groups", DATA)
    ] = "race*gender",
    each: Annotated[int, option("--each", "N", "Morphs per group", DATA, min=1)] = 1000,
    share: Annotated[
        float, option("--share", "X", "Weight of the second face, between 0 and 1", DATA)
    ] = 0.5,
    size: Annotated[int, option("--size", "N", "Width and height in pixels", OUTPUT, min=1)] = 224,
    seed: common.Seed = 0,
) -> None:
    """Blend pairs of aligned faces of the same group.

    For the probe `propagation`, which reads a morph's two parents from its name: morphs that share
    a parent are not independent, and their intervals are clustered.
    """
    import numpy as np

    from tiltmeter.datasets import load_data
    from tiltmeter.datasets.morph import morphs, save
    from tiltmeter.pages.terminal import layout

    made = morphs(
        load_data(images), attribute, each=each, rng=np.random.default_rng(seed), share=share,
        size=size,
    )  # fmt: skip
    save(made, attribute, out)
    parts = attribute.replace("*", "_")
    layout.show(f"{len(made):,} morphs: --images 'folder:{out}?parts={parts}'", soft_wrap=True)

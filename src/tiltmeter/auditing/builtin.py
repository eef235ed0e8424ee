"""The default audit: every probe on the built-in world, in sizes that take less than a minute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tiltmeter.auditing.options import AuditOptions
from tiltmeter.stats.resampling import Resampling

CROSS = ("shape*hue",)
#: Runs on request elsewhere, since it changes images; the world redraws its own.
ALSO = ("counterfactual",)


@dataclass(frozen=True)
class Sizes:
    """Images by role, images of the counterfactual probe, and resamples."""

    images: dict[str, int]
    counterfactual: int
    resampling: Resampling


#: What `tiltmeter audit` takes, and with `--thorough`.
QUICK = Sizes(
    {"faces": 2100, "captions": 500, "utility": 500, "triplets": 160, "valence": 500, "lexicon": 0},
    counterfactual=28,
    resampling=Resampling(permutations=200, bootstraps=100),
)
THOROUGH = Sizes(
    {"faces": 4000, "captions": 1000, "utility": 1000, "triplets": 400, "valence": 900,
     "lexicon": 0},
    counterfactual=100,
    resampling=Resampling(),
)  # fmt: skip


def built_in_data(world: Any, sizes: Sizes) -> dict[str, str]:
    """Specs of the world's data by role.

    >>> from tiltmeter.testbed.world import World
    >>> built_in_data(World.plant(0.0), QUICK)["captions"]
    'testbed:captions?images=500&strength=0.0'
    """
    specs = {}
    for role, images in sizes.images.items():
        size = f"images={images}&" if images else ""
        specs[role] = f"testbed:{role if role != 'faces' else ''}?{size}strength={world.strength}"
    return specs


def with_sizes(options: AuditOptions, sizes: Sizes) -> AuditOptions:
    """Options of the default audit: what was given stays as it is.

    >>> with_sizes(AuditOptions.of(bootstraps=0), QUICK).resampling
    Resampling(permutations=200, bootstraps=0, seed=0)
    """
    own = {name: getattr(sizes.resampling, name) for name in ("permutations", "bootstraps")
           if name not in options.given}  # fmt: skip
    probe = {"images": sizes.counterfactual, **options.probes.options.get("counterfactual", {})}
    return replace(
        options,
        data=replace(options.data, cross=options.data.cross or CROSS),
        probes=replace(options.probes, options={**options.probes.options, "counterfactual": probe}),
        resampling=replace(options.resampling, **own),
    )

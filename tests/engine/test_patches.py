"""Products of patches give what convolutions give; every other convolution stays one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tiltmeter.engine.embedding.patches import PatchesAsProducts, product  # noqa: E402


def channels_last(made):
    """A product writes patch by patch, a convolution of this size channel by channel."""
    return made.stride(1) == 1


@pytest.mark.parametrize(
    ("kernel", "image", "settings", "is_product"),
    [
        (4, (8, 12), {"stride": 4}, True),
        ((4, 2), (8, 6), {"stride": (4, 2)}, True),
        (4, (8, 8), {"stride": 4, "padding": "valid"}, True),
        (4, (8, 8), {"stride": 4, "bias": False}, True),
        (4, (9, 8), {"stride": 4}, False),  # a rest that a convolution leaves out
        (4, (8, 8), {"stride": 2}, False),
        (4, (8, 8), {"stride": 4, "padding": 2}, False),
        (2, (8, 8), {"stride": 2, "dilation": 2}, False),
        (4, (8, 8), {"stride": 4, "groups": 3}, False),
        (3, (8, 8), {"padding": "same"}, False),
    ],
)
def test_convolutions_give_the_same_in_and_out_of_the_context(kernel, image, settings, is_product):
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(3, 6, kernel, **settings)
    images = torch.rand(2, 3, *image)
    expected = layer(images)
    with PatchesAsProducts():
        made = layer(images)
    torch.testing.assert_close(made, expected, atol=1e-6, rtol=1e-5)
    assert channels_last(made) == is_product
    assert not channels_last(expected)


def test_one_image_without_a_batch_is_convolved():
    image, weight = torch.rand(3, 8, 8), torch.rand(5, 3, 4, 4)
    torch.testing.assert_close(
        product(image, weight, stride=4), torch.conv2d(image, weight, stride=4)
    )


def test_an_image_tower_gives_the_same_embeddings_and_gradients():
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    torch.manual_seed(0)
    tower = CLIPVisionModelWithProjection(
        CLIPVisionConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            image_size=32, patch_size=8, projection_dim=16,
        )
    ).eval()  # fmt: skip
    images = torch.rand(3, 3, 32, 32, requires_grad=True)
    expected = tower(pixel_values=images).image_embeds
    (slope,) = torch.autograd.grad(expected.sum(), images)
    with PatchesAsProducts():
        made = tower(pixel_values=images).image_embeds
        (its_slope,) = torch.autograd.grad(made.sum(), images)
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(its_slope, slope, atol=1e-5, rtol=1e-4)

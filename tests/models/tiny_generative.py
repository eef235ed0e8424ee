"""Small random generative checkpoints of the real classes, saved with their processors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers

from tests.models.tiny_fused import saved

WORDS = ("a", "photo", "of", "the", "nurse", "doctor", "man", "woman", "person", "is", "in",
         "who", "this", "picture", "smart", "red", "ball", "dog", "user", "assistant",
         ":", "?")  # fmt: skip
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<image>", "<boi>", "<eoi>",
           "<fake_token_around_image>", "<global-img>", "<end_of_utterance>",
           "<row_1_col_1>")  # fmt: skip
TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
          "num_attention_heads": 4, "image_size": 32, "patch_size": 8}  # fmt: skip
CHAT = (
    "{% for message in messages %}{{ message.role }} : {% for part in message.content %}"
    "{% if part.type == 'image' %}<image> {% else %}{{ part.text }} {% endif %}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}assistant : {% endif %}"
)


def tokenizer(
    extra: tuple[str, ...] = (), image_token: str | None = "<image>", **named: str
) -> Any:
    """One token per word; its own image token, or none where the processor adds one."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    vocab = {word: at for at, word in enumerate([*SPECIAL, *extra, *WORDS])}
    words = Tokenizer(WordLevel(vocab, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    named |= {"boi_token": "<boi>", "eoi_token": "<eoi>"}
    if image_token:
        named["image_token"] = image_token
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>", model_max_length=128,
        extra_special_tokens=named,
    )  # fmt: skip
    fast.add_special_tokens({"additional_special_tokens": [*SPECIAL[4:], *extra]})
    return fast


def clip_pixels() -> Any:
    return transformers.CLIPImageProcessorPil(
        size={"height": 32, "width": 32}, do_center_crop=False, do_resize=True
    )


def llava(directory: Path) -> Any:
    words = tokenizer()
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION, projection_dim=32),
        text_config=transformers.LlamaConfig(**TEXT, vocab_size=len(words)),
        image_token_id=words.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1, vision_feature_select_strategy="default", image_seq_length=16,
    )  # fmt: skip
    transformers.LlavaProcessor(
        clip_pixels(), words, patch_size=8, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=CHAT,
    ).save_pretrained(directory)  # fmt: skip
    return saved(transformers.LlavaForConditionalGeneration(config), directory)


def paligemma(directory: Path) -> Any:
    words = tokenizer(tuple(f"<loc{at}>" for at in range(4)))
    config = transformers.PaliGemmaConfig(
        vision_config=transformers.SiglipVisionConfig(**VISION, projection_dim=32),
        text_config=transformers.GemmaConfig(**TEXT, vocab_size=len(words), head_dim=8),
        image_token_index=words.convert_tokens_to_ids("<image>"), projection_dim=32,
    )  # fmt: skip
    pixels = transformers.SiglipImageProcessorPil(size={"height": 32, "width": 32})
    pixels.image_seq_length = 16
    transformers.PaliGemmaProcessor(pixels, words).save_pretrained(directory)
    return saved(transformers.PaliGemmaForConditionalGeneration(config), directory)


def gemma3(directory: Path) -> Any:
    words = tokenizer()
    config = transformers.Gemma3Config(
        vision_config=transformers.SiglipVisionConfig(**VISION),
        text_config=transformers.Gemma3TextConfig(
            **TEXT, vocab_size=len(words), head_dim=8, sliding_window=64,
            layer_types=["sliding_attention", "full_attention"],
        ),
        mm_tokens_per_image=4, boi_token_index=words.convert_tokens_to_ids("<boi>"),
        eoi_token_index=words.convert_tokens_to_ids("<eoi>"),
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    pixels = transformers.Gemma3ImageProcessorPil(size={"height": 32, "width": 32})
    transformers.Gemma3Processor(
        pixels, words, chat_template=CHAT.replace("<image>", "<boi>"), image_seq_length=4
    ).save_pretrained(directory)
    return saved(transformers.Gemma3ForConditionalGeneration(config), directory)


def idefics3(directory: Path, kind: str = "Idefics3", **parts: Any) -> Any:
    words = tokenizer()
    vision = getattr(transformers, f"{kind}VisionConfig")(**VISION)
    config = getattr(transformers, f"{kind}Config")(
        vision_config=vision, text_config=transformers.LlamaConfig(**TEXT, vocab_size=len(words)),
        image_token_id=words.convert_tokens_to_ids("<image>"), scale_factor=2, pad_token_id=0,
    )  # fmt: skip
    pixels = getattr(transformers, f"{kind}ImageProcessorPil")(
        size={"longest_edge": 32}, max_image_size={"longest_edge": 32}, do_image_splitting=False
    )
    getattr(transformers, f"{kind}Processor")(
        pixels, words, image_seq_len=4, chat_template=CHAT, **parts
    ).save_pretrained(directory)
    return saved(getattr(transformers, f"{kind}ForConditionalGeneration")(config), directory)


def blip2(directory: Path) -> Any:
    words = tokenizer(image_token=None)
    config = transformers.Blip2Config(
        vision_config=transformers.Blip2VisionConfig(**VISION),
        qformer_config=transformers.Blip2QFormerConfig(
            vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=48, encoder_hidden_size=32,
        ),
        text_config=transformers.OPTConfig(
            vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            ffn_dim=48, max_position_embeddings=128, word_embed_proj_dim=32,
            bos_token_id=1, eos_token_id=2, pad_token_id=0,
        ),
        num_query_tokens=4, image_token_index=words.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    pixels = transformers.BlipImageProcessorPil(size={"height": 32, "width": 32})
    transformers.Blip2Processor(pixels, words, num_query_tokens=4).save_pretrained(directory)
    return saved(transformers.Blip2ForConditionalGeneration(config), directory)


def mllama(directory: Path) -> Any:
    words = tokenizer(("<|image|>", "<|python_tag|>"), image_token="<|image|>")
    config = transformers.MllamaConfig(
        vision_config=transformers.models.mllama.configuration_mllama.MllamaVisionConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_global_layers=1,
            attention_heads=4, image_size=32, patch_size=8, max_num_tiles=1,
            vision_output_dim=64, intermediate_layers_indices=[0],
            supported_aspect_ratios=[[1, 1]],
        ),
        text_config=transformers.models.mllama.configuration_mllama.MllamaTextConfig(
            **TEXT, vocab_size=len(words), cross_attention_layers=[1],
        ),
        image_token_index=words.convert_tokens_to_ids("<|image|>"),
    )  # fmt: skip
    pixels = transformers.MllamaImageProcessorPil(
        size={"height": 32, "width": 32}, max_image_tiles=1
    )
    transformers.MllamaProcessor(
        pixels, words, chat_template=CHAT.replace("<image>", "<|image|>")
    ).save_pretrained(directory)
    return saved(transformers.MllamaForConditionalGeneration(config), directory)


#: Families whose processors load without torchvision.
FAMILIES: dict[str, Callable[[Path], Any]] = {
    "llava": llava,
    "paligemma": paligemma,
    "gemma3": gemma3,
    "idefics3": idefics3,
    "blip2": blip2,
    "mllama": mllama,
}


def qwen2vl(directory: Path) -> Any:
    marks = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    words = tokenizer(marks, image_token="<|image_pad|>")
    ids = dict(zip(marks, words.convert_tokens_to_ids(marks), strict=True))
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    config = transformers.Qwen2VLConfig(
        text_config={**TEXT, "vocab_size": len(words), "rope_parameters": rope},
        vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4,
                       "mlp_ratio": 2, "patch_size": 8, "spatial_merge_size": 2,
                       "temporal_patch_size": 2},
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
    )  # fmt: skip
    sizes = {"patch_size": 8, "temporal_patch_size": 2, "merge_size": 2,
             "min_pixels": 16 * 16, "max_pixels": 48 * 48}  # fmt: skip
    chat = CHAT.replace("<image>", "<|vision_start|> <|image_pad|> <|vision_end|>")
    transformers.Qwen2VLProcessor(
        transformers.Qwen2VLImageProcessorPil(**sizes), words,
        transformers.Qwen2VLVideoProcessor(**sizes), chat_template=chat,
    ).save_pretrained(directory)  # fmt: skip
    return saved(transformers.Qwen2VLForConditionalGeneration(config), directory)


def internvl(directory: Path) -> Any:
    marks = ("<IMG_CONTEXT>", "<img>", "</img>", "<video>")
    words = tokenizer(
        marks, image_token=None, context_image_token="<IMG_CONTEXT>", start_image_token="<img>",
        end_image_token="</img>", video_token="<video>",
    )  # fmt: skip
    vision = {**VISION, "image_size": [32, 32], "patch_size": [8, 8]}
    config = transformers.InternVLConfig(
        vision_config=transformers.InternVLVisionConfig(**vision),
        text_config=transformers.Qwen2Config(**TEXT, vocab_size=len(words)),
        image_token_id=words.convert_tokens_to_ids("<IMG_CONTEXT>"), downsample_ratio=0.5,
    )  # fmt: skip
    pixels = transformers.GotOcr2ImageProcessorPil(size={"height": 32, "width": 32})
    transformers.InternVLProcessor(
        pixels, words, transformers.InternVLVideoProcessor(size={"height": 32, "width": 32}),
        image_seq_length=4, chat_template=CHAT.replace("<image>", "<IMG_CONTEXT>"),
    ).save_pretrained(directory)  # fmt: skip
    return saved(transformers.InternVLForConditionalGeneration(config), directory)


def smolvlm(directory: Path) -> Any:
    video = transformers.SmolVLMVideoProcessor(
        size={"longest_edge": 32}, max_image_size={"longest_edge": 32}
    )
    return idefics3(directory, "SmolVLM", video_processor=video)


#: Families whose processors need torchvision, for their videos.
WITH_TORCHVISION: dict[str, Callable[[Path], Any]] = {
    "qwen2vl": qwen2vl,
    "internvl": internvl,
    "smolvlm": smolvlm,
}

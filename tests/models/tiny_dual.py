"""Small random dual encoders and retrievers of the real classes, as their libraries save them.

Each builder saves a model with its own kind of tokenizer and image processor, and gives the model.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageEnhance

from tests.models import tiny
from tests.models.tiny import WORDS

TOWER = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 2}  # fmt: skip
VISION = {**TOWER, "image_size": 32, "patch_size": 8}
LETTERS = sorted({letter for word in WORDS for letter in word})
SQUARE = {"height": 32, "width": 32}
CROPPED = {"size": {"shortest_edge": 32}, "crop_size": SQUARE}


def pictures(count: int = 3) -> list[Image.Image]:
    """Noise, each picture brighter than the last, so that averages over a picture differ too."""
    return [
        ImageEnhance.Brightness(picture).enhance((at + 1) / count)
        for at, picture in enumerate(tiny.pictures(count))
    ]


def saved(directory: Path, model, tokenizer, processor):
    """As on the hub: every part in files of its own."""
    shake(model)
    for part in (model, tokenizer, processor):
        part.save_pretrained(directory)
    return model


def shake(model) -> None:
    """Fresh weights are so small that all inputs give nearly one vector; these are larger."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    model.eval()


# tokenizers


def bert_tokenizer(limit: int = 24, words: tuple[str, ...] = WORDS):
    """BERT's word pieces: a few words whole, others by letters."""
    from transformers import BertTokenizer

    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *LETTERS,
             *(f"##{letter}" for letter in LETTERS)]  # fmt: skip
    vocab = {word: at for at, word in enumerate(dict.fromkeys(known))}
    return BertTokenizer(vocab=vocab, model_max_length=limit)


def roberta_tokenizer(**options):
    """XLM-RoBERTa's unigrams."""
    from transformers import XLMRobertaTokenizer

    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0),
              *((letter, -3.0) for letter in LETTERS if letter != "a"),
              *((f"▁{word}", -1.0) for word in WORDS), ("a", -3.0), ("<mask>", 0.0)]  # fmt: skip
    return XLMRobertaTokenizer(vocab=pieces, **options)


def gemma_tokenizer(kind: str):
    """Gemma's byte pairs, with settings as in the released SigLIP 2; capitals are known too."""
    import transformers

    known = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *LETTERS,
             *(letter.upper() for letter in LETTERS)]  # fmt: skip
    return getattr(transformers, kind)(
        vocab={piece: at for at, piece in enumerate(known)}, merges=[], padding_side="right",
        model_input_names=["input_ids"],
    )  # fmt: skip


def siglip_tokenizer(directory: Path):
    """SigLIP's sentence pieces, trained on a few sentences."""
    import sentencepiece
    from transformers import SiglipTokenizer

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS), "a photo of a nurse", "the doctor is a woman"]),
        model_prefix=str(directory / "trained"), vocab_size=60, hard_vocab_limit=False,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    return SiglipTokenizer(str(directory / "trained.model"), model_input_names=["input_ids"])


# models


def metaclip(directory: Path):
    from transformers import CLIPImageProcessorPil, MetaClip2Config, MetaClip2Model

    tokenizer = roberta_tokenizer()  # with no limit of its own
    text = {**TOWER, "vocab_size": len(tokenizer), "max_position_embeddings": 40,
            "bos_token_id": 0, "eos_token_id": 2}  # fmt: skip
    config = MetaClip2Config(text_config=text, vision_config=VISION, projection_dim=12)
    return saved(directory, MetaClip2Model(config), tokenizer, CLIPImageProcessorPil(**CROPPED))


def altclip(directory: Path):
    from transformers import AltCLIPConfig, AltCLIPModel, CLIPImageProcessorPil

    tokenizer = roberta_tokenizer(model_max_length=40)
    text = {**TOWER, "vocab_size": len(tokenizer), "max_position_embeddings": 44,
            "project_dim": 14}  # fmt: skip
    config = AltCLIPConfig(text_config=text, vision_config=VISION, projection_dim=12)
    return saved(directory, AltCLIPModel(config), tokenizer, CLIPImageProcessorPil(**CROPPED))


def chinese_clip(directory: Path):
    from transformers import ChineseCLIPConfig, ChineseCLIPImageProcessorPil, ChineseCLIPModel

    tokenizer = bert_tokenizer(words=(*WORDS, *"一张护士医生的照片"))
    text = {**TOWER, "vocab_size": len(tokenizer), "max_position_embeddings": 24}
    config = ChineseCLIPConfig(text_config=text, vision_config=VISION, projection_dim=12)
    processor = ChineseCLIPImageProcessorPil(**CROPPED)
    return saved(directory, ChineseCLIPModel(config), tokenizer, processor)


def align(directory: Path):
    from transformers import AlignConfig, AlignModel, EfficientNetImageProcessorPil

    tokenizer = bert_tokenizer(limit=64)
    text = {**TOWER, "vocab_size": len(tokenizer), "max_position_embeddings": 64}
    vision = {"image_size": 32, "width_coefficient": 1.0, "depth_coefficient": 1.0,
              "kernel_sizes": [3, 3], "in_channels": [32, 16], "out_channels": [16, 16],
              "strides": [1, 2], "num_block_repeats": [1, 1], "expand_ratios": [1, 2],
              "hidden_dim": 16}  # fmt: skip
    config = AlignConfig(text_config=text, vision_config=vision, projection_dim=16)
    # the settings of the published checkpoint, but for the size
    processor = EfficientNetImageProcessorPil(
        size={"height": 38, "width": 38}, crop_size=SQUARE, do_center_crop=True, resample=2,
        rescale_factor=1 / 127.5, rescale_offset=True, do_normalize=False, include_top=False,
    )  # fmt: skip
    return saved(directory, AlignModel(config), tokenizer, processor)


def siglip(directory: Path):
    return _siglip(directory, siglip_tokenizer(directory))


def siglip2(directory: Path):
    """SigLIP 2 of a fixed size: SigLIP's class, with Gemma's tokenizer."""
    return _siglip(directory, gemma_tokenizer("GemmaTokenizer"))


def _siglip(directory: Path, tokenizer):
    from transformers import SiglipConfig, SiglipImageProcessorPil, SiglipModel

    text = _siglip_text(tokenizer)
    model = SiglipModel(SiglipConfig(text_config=text, vision_config=VISION))
    return saved(directory, model, tokenizer, SiglipImageProcessorPil(size=SQUARE))


def _siglip_text(tokenizer):
    return {**TOWER, "vocab_size": len(tokenizer), "max_position_embeddings": 64,
            "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id}  # fmt: skip


def naflex(directory: Path):
    from transformers import Siglip2Config, Siglip2ImageProcessorPil, Siglip2Model

    tokenizer = gemma_tokenizer("Siglip2Tokenizer")
    text = _siglip_text(tokenizer)
    # patches as published: the library's processor takes no others
    model = Siglip2Model(Siglip2Config(text_config=text, vision_config={**TOWER, "patch_size": 16}))
    processor = Siglip2ImageProcessorPil(image_mean=[0.3, 0.5, 0.6], image_std=[0.2, 0.3, 0.4])
    return saved(directory, model, tokenizer, processor)


def blip(directory: Path):
    from transformers import BlipForImageTextRetrieval, BlipImageProcessorPil

    tokenizer = bert_tokenizer()
    model = BlipForImageTextRetrieval(blip_config(len(tokenizer)))
    return saved(directory, model, tokenizer, BlipImageProcessorPil(size=SQUARE))


def blip_config(words: int):
    from transformers import BlipConfig

    text = {**TOWER, "vocab_size": words, "max_position_embeddings": 24,
            "encoder_hidden_size": 16, "bos_token_id": 2, "sep_token_id": 3}  # fmt: skip
    return BlipConfig(text_config=text, vision_config=VISION, image_text_hidden_size=12)


def blip2(directory: Path, *, image_token: bool = True):
    """With image tokens before the text, as published now, or without, as published at first."""
    from transformers import Blip2ForImageTextRetrieval, Blip2Processor, BlipImageProcessorPil

    processor = Blip2Processor(
        BlipImageProcessorPil(size=SQUARE),
        bert_tokenizer(),
        num_query_tokens=5 * image_token or None,
    )
    config = blip2_config(len(processor.tokenizer))
    config.image_token_index = len(processor.tokenizer) - 1 if image_token else None
    model = Blip2ForImageTextRetrieval(config)
    shake(model)
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
    return model


def blip2_config(words: int):
    from transformers import Blip2Config

    former = {**TOWER, "vocab_size": words, "max_position_embeddings": 24,
              "use_qformer_text_input": True}  # fmt: skip
    text = {"model_type": "opt", "hidden_size": 16, "ffn_dim": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "vocab_size": words, "word_embed_proj_dim": 16}  # fmt: skip
    return Blip2Config(
        qformer_config=former, vision_config=VISION, text_config=text, num_query_tokens=5,
        image_text_hidden_size=12,
    )  # fmt: skip

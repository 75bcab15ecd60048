"""A random Whisper of two layers with a byte tokenizer: it transcribes any sound into printable nonsense of the wanted length."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.doubles.tiny_model import built, in_place

END, START = "<|endoftext|>", "<|startoftranscript|>"
TASKS = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")
MAX_MODEL_LEN = 448
ENGINE_ARGUMENTS = ("--no-enable-prefix-caching",)
"""With prefix caching vLLM 0.32 dies of a model that looks across at its encoder."""


def tiny_whisper() -> Path:
    """The model's directory; built on first use."""
    return built("tests.doubles.tiny_whisper", Path(__file__), "tiny-whisper")


def _write(directory: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import WhisperFeatureExtractor, WhisperProcessor, WhisperTokenizer
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), END, START, *(f"<|{language}|>" for language in LANGUAGES), *TASKS]
    words += [f"<|{number * 0.02:.2f}|>" for number in range(1501)]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[])
    WhisperProcessor(WhisperFeatureExtractor(feature_size=80), tokenizer).save_pretrained(directory)
    _write_weights(directory, vocabulary, [f"<|{language}|>" for language in LANGUAGES])


def _write_weights(directory: Path, vocabulary: dict[str, int], languages: list[str]) -> None:
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    end = vocabulary[END]
    config = WhisperConfig(
        vocab_size=(len(vocabulary) + 63) // 64 * 64,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        num_mel_bins=80,
        max_target_positions=MAX_MODEL_LEN,
        decoder_start_token_id=vocabulary[START],
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        begin_suppress_tokens=None,
        suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config)
    printable = torch.zeros(config.vocab_size, dtype=torch.bool)
    printable[[vocabulary[chr(code)] for code in range(33, 127)]] = True
    with torch.no_grad():
        # The same weights read the words and choose them; only printable ones are ever chosen.
        model.proj_out.weight[~printable] *= 0.05
        model.proj_out.weight[printable] *= 20.0
    model.generation_config.lang_to_id = {language: vocabulary[language] for language in languages}
    model.generation_config.no_timestamps_token_id = vocabulary["<|notimestamps|>"]
    model.to(torch.bfloat16).save_pretrained(directory)


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    in_place(Path(sys.argv[1]), _write)

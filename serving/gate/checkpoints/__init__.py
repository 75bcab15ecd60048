"""Quantized checkpoints: written by llm-compressor, and expanded again to the bfloat16 model that the gate compares with."""

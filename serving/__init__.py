"""A serving stack: a gateway and a hardware catalog for vLLM engines."""

__version__ = "0.1.0"

"""A model's shape, and what follows from it: parameters, KV bytes, operations. Pure counting; no hardware is known here.

Parameters are counted without norms and biases, which are less than a thousandth of any model.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from serving.catalog.records import Count, KvFormat, Record

KV_VALUE_BYTES: dict[KvFormat, int] = {"bf16": 2, "fp8": 1}
INDEX_SCALE_BYTES = 4
"""Beside each index key of a token, which vLLM keeps in 8 bits whatever the KV format."""


class GroupedAttention(Record):
    """Ordinary attention whose query heads share KV heads."""

    kind: Literal["grouped"]
    heads: Count
    kv_heads: Count
    head_size: Count
    sliding_layers: Annotated[int, Field(ge=0)] = 0
    """Layers that look back `sliding_window` tokens only."""
    sliding_window: Count | None = None

    @model_validator(mode="after")
    def _heads_in_groups(self) -> GroupedAttention:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: must divide the {self.heads} heads, not {self.kv_heads}")
        return self


class Indexer(Record):
    """What picks the tokens that sparse attention looks at."""

    heads: Count
    head_size: Count
    top_tokens: Count
    layers: Count
    """Layers with an indexer of their own; the others use the choice of one before them."""


class LatentAttention(Record):
    """Multi-head latent attention (MLA): one compressed key and value for all heads, the same on every tensor-parallel rank."""

    kind: Literal["latent"]
    heads: Count
    query_rank: Count | None = None
    kv_rank: Count
    rope_size: Count
    nope_size: Count
    value_size: Count
    indexer: Indexer | None = None


class Experts(Record):
    """A mixture of experts in place of the feed-forward network."""

    layers: Count
    experts: Count
    experts_per_token: Count
    intermediate_size: Count
    shared_experts: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _no_more_chosen_than_there_are(self) -> Experts:
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token: must be at most the {self.experts} experts, not {self.experts_per_token}")
        return self


class Shape(Record):
    """Sizes as in a model's config.json."""

    hidden_size: Count
    layers: Count
    vocabulary_size: Count
    tied_embeddings: bool = False
    attention: Annotated[GroupedAttention | LatentAttention, Field(discriminator="kind")]
    dense_intermediate_size: Count | None = None
    """Of the layers without experts."""
    experts: Experts | None = None
    draft_layers: Annotated[int, Field(ge=0)] = 0
    """Layers for multi-token prediction that come with the checkpoint."""

    @model_validator(mode="after")
    def _parts_within_the_layers(self) -> Shape:
        parts = {"experts.layers": self.expert_layers}
        if isinstance(self.attention, GroupedAttention):
            parts["attention.sliding_layers"] = self.attention.sliding_layers
        elif self.attention.indexer:
            parts["attention.indexer.layers"] = self.attention.indexer.layers
        for field, count in parts.items():
            if count > self.layers:
                raise ValueError(f"{field}: must be at most the {self.layers} layers, not {count}")
        if self.expert_layers < self.layers and self.dense_intermediate_size is None:
            dense = self.layers - self.expert_layers
            raise ValueError(f"dense_intermediate_size: is missing; {dense} of {self.layers} layers have no experts")
        return self

    @property
    def sparse(self) -> bool:
        return isinstance(self.attention, LatentAttention) and self.attention.indexer is not None

    @property
    def kv_is_replicated(self) -> bool:
        """Whether each tensor-parallel rank holds the whole KV cache."""
        return isinstance(self.attention, LatentAttention)

    @property
    def expert_layers(self) -> int:
        return self.experts.layers if self.experts else 0

    @property
    def embedding_parameters(self) -> int:
        """One table; the output layer is another one unless the embeddings are tied."""
        return self.vocabulary_size * self.hidden_size

    @property
    def expert_parameters(self) -> int:
        """Of one expert of one layer; 0 without experts."""
        return 3 * self.hidden_size * self.experts.intermediate_size if self.experts else 0

    @property
    def routed_parameters(self) -> int:
        """Of all experts among which a router chooses."""
        return self.experts.layers * self.experts.experts * self.expert_parameters if self.experts else 0

    @property
    def resident_parameters(self) -> int:
        """Of everything else: what each token uses, and the embeddings."""
        tables = 1 if self.tied_embeddings else 2
        return self.layer_parameters + tables * self.embedding_parameters

    @property
    def layer_parameters(self) -> int:
        """Of all layers, without routed experts and embeddings."""
        dense = 3 * self.hidden_size * (self.dense_intermediate_size or 0) * (self.layers - self.expert_layers)
        shared = router = 0
        if self.experts:
            shared = self.experts.layers * self.experts.shared_experts * self.expert_parameters
            router = self.experts.layers * self.hidden_size * self.experts.experts
        return self.layers * self._attention_parameters() + self._indexer_parameters() + dense + shared + router

    @property
    def parameters(self) -> int:
        """All of them, without draft layers."""
        return self.resident_parameters + self.routed_parameters

    @property
    def active_parameters(self) -> int:
        """Those that one token is multiplied with, the output layer among them."""
        chosen = self.experts.layers * self.experts.experts_per_token * self.expert_parameters if self.experts else 0
        return self.layer_parameters + self.embedding_parameters + chosen

    @property
    def replicated_parameters(self) -> int:
        """Those that each tensor-parallel rank holds whole: routers, and the compressing side of latent attention."""
        router = self.experts.layers * self.hidden_size * self.experts.experts if self.experts else 0
        attention = self.attention
        if not isinstance(attention, LatentAttention):
            return router
        compress = self.hidden_size * ((attention.query_rank or 0) + attention.kv_rank + attention.rope_size)
        return router + self.layers * compress + self._indexer_parameters()

    def kv_bytes_per_token(self, kv_format: KvFormat, *, draft: bool = False) -> int:
        """Bytes of KV cache of one token over all layers, on all tensor-parallel ranks together but for replicas.

        A sliding layer counts whole: as long as a request is shorter than its window it holds all tokens. With `draft` those
        of the draft layers come on top.
        """
        value_bytes = KV_VALUE_BYTES[kv_format]
        layers = self.layers + (self.draft_layers if draft else 0)
        attention = self.attention
        if isinstance(attention, GroupedAttention):
            return 2 * layers * attention.kv_heads * attention.head_size * value_bytes
        indexed = attention.indexer.layers + (self.draft_layers if draft else 0) if attention.indexer else 0
        key_bytes = attention.indexer.head_size + INDEX_SCALE_BYTES if attention.indexer else 0
        return layers * (attention.kv_rank + attention.rope_size) * value_bytes + indexed * key_bytes

    def request_kv_bytes(self, tokens: int, kv_format: KvFormat, *, draft: bool = False) -> int:
        """Bytes of KV cache of one request of so many tokens; sliding layers hold their window only."""
        attention = self.attention
        if isinstance(attention, LatentAttention) or not attention.sliding_window:
            return tokens * self.kv_bytes_per_token(kv_format, draft=draft)
        of_layer = 2 * attention.kv_heads * attention.head_size * KV_VALUE_BYTES[kv_format]
        kept = min(tokens, attention.sliding_window)
        return of_layer * ((self.layers - attention.sliding_layers) * tokens + attention.sliding_layers * kept)

    def kv_bytes_read(self, context_tokens: int, kv_format: KvFormat) -> int:
        """Bytes of KV cache that computing one token reads when so many tokens stand before it."""
        attention = self.attention
        if isinstance(attention, GroupedAttention):
            return self.request_kv_bytes(context_tokens, kv_format)
        latent_bytes = (attention.kv_rank + attention.rope_size) * KV_VALUE_BYTES[kv_format] * self.layers
        if attention.indexer is None:
            return context_tokens * latent_bytes
        index_bytes = attention.indexer.layers * (attention.indexer.head_size + INDEX_SCALE_BYTES)
        return min(context_tokens, attention.indexer.top_tokens) * latent_bytes + context_tokens * index_bytes

    def routed_flops(self) -> int:
        """Operations of a token in routed experts."""
        return 2 * self.experts.layers * self.experts.experts_per_token * self.expert_parameters if self.experts else 0

    def other_flops(self) -> int:
        """Operations of a token in all other matrices but the output layer, which a prompt needs once."""
        return 2 * self.layer_parameters

    def attention_flops(self, context_tokens: float) -> float:
        """Operations of a token in attention and indexer when so many tokens stand before it."""
        attention = self.attention
        if isinstance(attention, GroupedAttention):
            near = min(context_tokens, attention.sliding_window or context_tokens)
            seen = (self.layers - attention.sliding_layers) * context_tokens + attention.sliding_layers * near
            return 2 * attention.heads * 2 * attention.head_size * seen
        if attention.indexer is None:
            wide = attention.nope_size + attention.rope_size + attention.value_size
            return 2 * attention.heads * wide * self.layers * context_tokens
        wide = 2 * attention.kv_rank + attention.rope_size
        chosen = min(context_tokens, attention.indexer.top_tokens)
        indexing = 2 * attention.indexer.heads * attention.indexer.head_size * attention.indexer.layers * context_tokens
        return 2 * attention.heads * wide * self.layers * chosen + indexing

    def _attention_parameters(self) -> int:
        """Of one layer."""
        hidden, attention = self.hidden_size, self.attention
        if isinstance(attention, GroupedAttention):
            return 2 * hidden * attention.head_size * (attention.heads + attention.kv_heads)
        key_size = attention.nope_size + attention.rope_size
        query = hidden * attention.heads * key_size
        if attention.query_rank is not None:
            query = attention.query_rank * (hidden + attention.heads * key_size)
        compress = hidden * (attention.kv_rank + attention.rope_size)
        widen = attention.kv_rank * attention.heads * (attention.nope_size + attention.value_size)
        return query + compress + widen + attention.heads * attention.value_size * hidden

    def _indexer_parameters(self) -> int:
        attention = self.attention
        if not isinstance(attention, LatentAttention) or attention.indexer is None:
            return 0
        indexer = attention.indexer
        query = (attention.query_rank or self.hidden_size) * indexer.heads * indexer.head_size
        return indexer.layers * (query + self.hidden_size * (indexer.head_size + indexer.heads))

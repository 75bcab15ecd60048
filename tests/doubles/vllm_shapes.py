"""The request models of vLLM 0.32's routes that make no tokens, as far as the double reads them."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, NotRequired, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import TypedDict

from tests.doubles.vllm_errors import invalid, shown

Body = dict[str, Any]
Parts = list[Body]


class Turn(TypedDict):
    role: str
    content: NotRequired[str | Parts | None]


class Texts(TypedDict):
    """What is scored where it is no plain text."""

    content: Parts


Scored = str | Texts
Many = Scored | list[Scored]
Turns = list[Turn]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: str | None = None


class _Pooled(_Asked):
    cache_salt: Annotated[str | None, Field(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]*$")] = None


class Embedded(_Pooled):
    dimensions: Annotated[int | None, Field(ge=1)] = None
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"


class EmbeddedTexts(Embedded):
    input: list[int] | list[list[int]] | str | list[str]


class EmbeddedTurns(Embedded):
    """Conversations, which may also stand in `input`."""

    @model_validator(mode="before")
    @classmethod
    def _moved(cls, body: Any) -> Any:
        moves = "messages" not in body and body.get("input")
        return {**body, "messages": body["input"]} if moves else body

    def conversations(self) -> list[Turns]:
        raise NotImplementedError


class EmbeddedChat(EmbeddedTurns):
    messages: Turns

    def conversations(self) -> list[Turns]:
        return [self.messages]


class EmbeddedChats(EmbeddedTurns):
    messages: Annotated[list[Annotated[Turns, Field(min_length=1)]], Field(min_length=1)]

    def conversations(self) -> list[Turns]:
        return self.messages


class Ranked(_Pooled):
    query: Scored
    documents: Many
    top_n: Annotated[int, Field(ge=0)] = 0


class Pairs(_Pooled):
    def sides(self) -> tuple[Many, Many]:
        """The first and the second of each pair."""
        left, right = list(type(self).model_fields)[-2:]
        return getattr(self, left), getattr(self, right)


class _QueriesDocuments(Pairs):
    queries: Many
    documents: Many


class _QueriesItems(Pairs):
    queries: Many
    items: Many


class _DataPairs(Pairs):
    data_1: Many
    data_2: Many


class _TextPairs(Pairs):
    text_1: Many
    text_2: Many


class Tokenized(_Asked):
    return_token_strs: bool | None = False


class TokenizedText(Tokenized):
    prompt: str


class TokenizedChat(Tokenized):
    messages: Turns


class Detokenized(_Asked):
    tokens: list[Annotated[int, Field(ge=0, le=2**63 - 1)]]


Model = TypeVar("Model", bound=BaseModel)


class Shape(Generic[Model]):
    """The models that a route's body may be of."""

    def __init__(self, *models: type[Model]) -> None:
        self._models = models

    def read(self, body: Body) -> Model:
        """As the first model that it is. Raises: VllmError, with what keeps it from being the first of all."""
        problems = []
        for model in self._models:
            try:
                return model.model_validate(body)
            except ValidationError as error:
                problems.append(error.errors()[0])
        first = problems[0]
        where = ".".join(("body", *map(str, first["loc"])))
        raise invalid(first["type"], where, first["msg"], shown(first["input"]))


EMBEDDINGS = Shape[Embedded](EmbeddedTexts, EmbeddedChat, EmbeddedChats)
RERANK = Shape[Ranked](Ranked)
SCORE = Shape[Pairs](_QueriesDocuments, _QueriesItems, _DataPairs, _TextPairs)
TOKENIZE = Shape[Tokenized](TokenizedText, TokenizedChat)
DETOKENIZE = Shape[Detokenized](Detokenized)

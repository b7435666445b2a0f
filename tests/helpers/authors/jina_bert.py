"""JinaBERT in both of its variants: embeddings 2 and reranker 1."""

import math
from typing import Any

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling

from tests.helpers.authors.common import mix, run


class JinaBertConfig(BertConfig):  # type: ignore[misc]
    """The configuration of JinaBERT."""

    feed_forward_type: str = "original"
    position_embedding_type: str = "alibi"


def lowered(heads: int, length: int) -> Any:
    """Returns the negative numbers that ALiBi adds to attention scores, (1, H, L, L)."""
    power = 2 ** math.floor(math.log2(heads))
    exponents = [8 * n / power for n in range(1, power + 1)]
    exponents += [4 * n / power for n in range(1, 2 * power + 1, 2)][: heads - power]
    places = torch.arange(length)
    far = (places[:, None] - places).abs()
    return -torch.tensor([2.0**-exponent for exponent in exponents])[None, :, None, None] * far


class JinaBertLayer(nn.Module):  # type: ignore[misc]
    """A layer of the first variant: attention, add, norm, gated feed-forward, add, norm."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, inner, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.heads = config.num_attention_heads
        projections = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
        output = {"dense": nn.Linear(width, width), "LayerNorm": nn.LayerNorm(width, eps)}
        self.attention = nn.ModuleDict({"self": nn.ModuleDict(projections), "output": nn.ModuleDict(output)})
        self.mlp = nn.ModuleDict(self.feed_forward(width, inner, eps))
        self.activation = {"geglu": nn.functional.gelu, "reglu": nn.functional.relu}[config.feed_forward_type]
        self.rates = config.attention_probs_dropout_prob, config.hidden_dropout_prob

    def feed_forward(self, width: int, inner: int, eps: float) -> dict[str, nn.Module]:
        return {
            "gated_layers": nn.Linear(width, 2 * inner, bias=False), "wo": nn.Linear(inner, width),
            "layernorm": nn.LayerNorm(width, eps),
        }  # fmt: skip

    def drop(self, x: Any, rate: float) -> Any:
        return nn.functional.dropout(x, rate, self.training)

    def projected(self, x: Any) -> tuple[Any, Any]:
        """Returns the queries and the keys, (B, L, D)."""
        return self.attention["self"]["query"](x), self.attention["self"]["key"](x)

    def attended(self, x: Any, mask: Any, bias: Any, weighed: bool) -> tuple[Any, Any]:
        """Returns the normalized sum of the input and the attention output, and the attention weights."""
        q, k = self.projected(x)
        parts = q, k, self.attention["self"]["value"](x)
        q, k, v = (part.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for part in parts)
        mixed, weights = mix(q, k, v, mask, bias, weighed=weighed or self.training)
        if self.training:
            mixed = self.drop(weights, self.rates[0]) @ v
        mixed = mixed.transpose(1, 2).flatten(2)
        output = self.attention["output"]
        return output["LayerNorm"](self.drop(output["dense"](mixed), self.rates[1]) + x), weights

    def forward(self, x: Any, mask: Any, bias: Any, *, weighed: bool) -> tuple[Any, Any]:
        x, weights = self.attended(x, mask, bias, weighed)
        gate, value = self.mlp["gated_layers"](x).chunk(2, dim=-1)
        inner = self.drop(self.activation(gate) * value, self.rates[1])
        return self.mlp["layernorm"](self.mlp["wo"](inner) + x), weights


class NormedJinaBertLayer(JinaBertLayer):
    """A layer of the second variant: queries and keys have a norm, and the input of the attention is added twice."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width, eps = config.hidden_size, config.layer_norm_eps
        self.attention["self"]["layer_norm_q"] = nn.LayerNorm(width, eps)
        self.attention["self"]["layer_norm_k"] = nn.LayerNorm(width, eps)
        self.layer_norm_1, self.layer_norm_2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)

    def feed_forward(self, width: int, inner: int, eps: float) -> dict[str, nn.Module]:
        return {"up_gated_layer": nn.Linear(width, 2 * inner, bias=False), "down_layer": nn.Linear(inner, width)}

    def projected(self, x: Any) -> tuple[Any, Any]:
        layers = self.attention["self"]
        return layers["layer_norm_q"](layers["query"](x)), layers["layer_norm_k"](layers["key"](x))

    def forward(self, x: Any, mask: Any, bias: Any, *, weighed: bool) -> tuple[Any, Any]:
        attended, weights = self.attended(x, mask, bias, weighed)
        x = self.layer_norm_1(x + attended)
        value, gate = self.mlp["up_gated_layer"](x).chunk(2, dim=-1)
        inner = self.drop(value * self.activation(gate), self.rates[1])
        return self.layer_norm_2(x + self.mlp["down_layer"](inner)), weights


class JinaBertModel(BertModel):  # type: ignore[misc]
    """The encoder, which has no table of positions."""

    config_class = JinaBertConfig
    layer = JinaBertLayer

    def __init__(self, config: Any, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer)
        del self.embeddings.position_embeddings
        self.encoder.layer = nn.ModuleList(self.layer(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    def forward(
        self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None,
        output_hidden_states: bool = False, output_attentions: bool = False, **options: Any,
    ) -> Any:  # fmt: skip
        segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        embeddings = self.embeddings
        wanted: dict[str, Any] = {"hidden": output_hidden_states, "attentions": output_attentions}
        x = embeddings.LayerNorm(embeddings.word_embeddings(input_ids) + embeddings.token_type_embeddings(segments))
        bias = lowered(self.config.num_attention_heads, x.shape[1]).to(x)
        found = run(self.encoder.layer, embeddings.dropout(x), attention_mask, bias, **wanted)
        pooled = None if self.pooler is None else self.pooler(found["last_hidden_state"])
        return BaseModelOutputWithPooling(pooler_output=pooled, **found)


def _with_head(model: Any, head: Any, *, pooler: bool) -> Any:
    """Returns a class like transformers' class `head` of BERT, but with another encoder."""

    def init(self: Any, config: Any) -> None:
        head.__init__(self, config)
        self.bert = model(config, add_pooling_layer=pooler)
        self.post_init()

    name = f"JinaBert{head.__name__.removeprefix('Bert')}"
    return type(name, (head,), {"__init__": init, "config_class": JinaBertConfig, "__module__": __name__})


# The second form has the same names.
NormedJinaBertConfig = JinaBertConfig
NormedJinaBertModel = type("JinaBertModel", (JinaBertModel,), {"__module__": __name__, "layer": NormedJinaBertLayer})
for _prefix, _model in (("", JinaBertModel), ("Normed", NormedJinaBertModel)):
    for _head in (BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering):
        _class = _with_head(_model, _head, pooler=_head is BertForSequenceClassification)
        globals()[f"{_prefix}{_class.__name__}"] = _class

"""Models that transformers does not have: what their authors' code computes, with its names of tensors, in torch."""

import math
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    SequenceClassifierOutput,
)


def mix(q: Any, k: Any, v: Any, mask: Any, bias: Any = 0.0) -> tuple[Any, Any]:
    """Attention of queries, keys and values (B, H, L, d), and its weights; the mask is (B, L)."""
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + bias
    if mask is not None:
        scores = scores.masked_fill(mask[:, None, None, :] == 0, torch.finfo(scores.dtype).min)
    weights = torch.nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return weights @ v, weights


def loss_of(model: Any, logits: Any, labels: Any) -> Any:
    """The loss of classes of texts by their problem; `None` without labels."""
    if labels is None:
        return None
    if model.config.problem_type == "regression":
        return torch.nn.functional.mse_loss(logits.squeeze(), labels.squeeze())
    if model.config.problem_type == "multi_label_classification":
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
    return torch.nn.functional.cross_entropy(logits, labels)


class NeoBERTConfig(PreTrainedConfig):  # type: ignore[misc]
    """NeoBERT's configuration."""

    model_type = "neobert"

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 28
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    norm_eps: float = 1e-6
    initializer_range: float = 0.02
    max_length: int = 1024
    pad_token_id: int = 0
    classifier_dropout: float | None = None
    tie_word_embeddings: bool = False


AutoConfig.register("neobert", NeoBERTConfig, exist_ok=True)


class NeoBERTLayer(nn.Module):  # type: ignore[misc]
    """Norm, attention, add, norm, feed-forward, add."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        inner = 8 * math.ceil(int(2 * config.intermediate_size / 3) / 8)
        self.heads = config.num_attention_heads
        self.qkv, self.wo = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.ffn = nn.ModuleDict(
            {"w12": nn.Linear(width, 2 * inner, bias=False), "w3": nn.Linear(inner, width, bias=False)}
        )
        self.attention_norm = nn.RMSNorm(width, config.norm_eps)
        self.ffn_norm = nn.RMSNorm(width, config.norm_eps)

    def rotated(self, x: Any) -> Any:
        """Elements 2n and 2n + 1 are a complex number, which is multiplied by one of length 1."""
        size = x.shape[3]
        speeds = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        angles = torch.outer(torch.arange(x.shape[2], dtype=torch.float32), speeds)
        wide = torch.promote_types(x.dtype, torch.float32)
        pairs = torch.view_as_complex(x.to(wide).reshape(*x.shape[:3], -1, 2).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(3).to(x.dtype)

    def forward(self, x: Any, mask: Any) -> tuple[Any, Any]:
        fused = self.qkv(self.attention_norm(x)).view(*x.shape[:2], self.heads, -1).transpose(1, 2)
        q, k, v = fused.chunk(3, dim=-1)
        mixed, weights = mix(self.rotated(q), self.rotated(k), v, mask)
        x = x + self.wo(mixed.transpose(1, 2).flatten(2))
        gate, value = self.ffn["w12"](self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.ffn["w3"](torch.nn.functional.silu(gate) * value), weights


class _NeoBERT(PreTrainedModel):  # type: ignore[misc]
    config_class = NeoBERTConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def _init_weights(self, module: Any) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.data.normal_(std=self.config.initializer_range)
            if getattr(module, "bias", None) is not None:
                module.bias.data.zero_()


class NeoBERT(_NeoBERT):
    """The encoder."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.encoder = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.transformer_encoder = nn.ModuleList(NeoBERTLayer(config) for _ in range(config.num_hidden_layers))
        self.layer_norm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.post_init()

    def forward(self, input_ids: Any, attention_mask: Any = None, **options: Any) -> Any:
        hidden, attentions = [self.encoder(input_ids)], []
        for layer in self.transformer_encoder:
            x, weights = layer(hidden[-1], attention_mask)
            hidden.append(x)
            attentions.append(weights)
        hidden[-1] = self.layer_norm(hidden[-1])
        return BaseModelOutput(last_hidden_state=hidden[-1], hidden_states=(*hidden,), attentions=(*attentions,))


class NeoBERTLMHead(_NeoBERT):
    """The masked-LM head: one linear function, with a matrix of its own."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model, self.decoder = NeoBERT(config), nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None, **options: Any) -> Any:
        found = self.model(input_ids, attention_mask)
        logits = self.decoder(found.last_hidden_state)
        loss = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=found.hidden_states, attentions=found.attentions)


class NeoBERTForSequenceClassification(_NeoBERT):
    """Two linear functions of the first token, with tanh in between."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model, self.dense = NeoBERT(config), nn.Linear(config.hidden_size, config.hidden_size)
        rate = config.classifier_dropout
        self.dropout = nn.Dropout(0.1 if rate is None else rate)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None, **options: Any) -> Any:
        found = self.model(input_ids, attention_mask)
        x = torch.tanh(self.dense(self.dropout(found.last_hidden_state[:, 0])))
        logits = self.classifier(self.dropout(x))
        return SequenceClassifierOutput(
            loss=loss_of(self, logits, labels), logits=logits, hidden_states=found.hidden_states,
            attentions=found.attentions,
        )  # fmt: skip


class JinaBertConfig(BertConfig):  # type: ignore[misc]
    """The configuration of Jina's BERT."""

    feed_forward_type: str = "original"
    position_embedding_type: str = "alibi"


def lowered(heads: int, length: int) -> Any:
    """What ALiBi adds to the scores, (1, H, L, L)."""
    power = 2 ** math.floor(math.log2(heads))
    exponents = [8 * n / power for n in range(1, power + 1)]
    exponents += [4 * n / power for n in range(1, 2 * power + 1, 2)][: heads - power]
    places = torch.arange(length)
    far = (places[:, None] - places).abs()
    return -torch.tensor([2.0**-exponent for exponent in exponents])[None, :, None, None] * far


class JinaBertLayer(nn.Module):  # type: ignore[misc]
    """Attention, add, norm, gated feed-forward, add, norm; the names of its parts are those of the first form."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, inner, eps, rate = (
            config.hidden_size, config.intermediate_size, config.layer_norm_eps, config.hidden_dropout_prob,
        )  # fmt: skip
        self.heads = config.num_attention_heads
        own = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
        output = {"dense": nn.Linear(width, width), "LayerNorm": nn.LayerNorm(width, eps)}
        self.attention = nn.ModuleDict({"self": nn.ModuleDict(own), "output": nn.ModuleDict(output)})
        self.mlp = nn.ModuleDict(self.feed_forward(width, inner, eps))
        self.activation = {"geglu": nn.functional.gelu, "reglu": nn.functional.relu}[config.feed_forward_type]
        self.rates = config.attention_probs_dropout_prob, rate

    def feed_forward(self, width: int, inner: int, eps: float) -> dict[str, nn.Module]:
        """The layers of the feed-forward."""
        return {
            "gated_layers": nn.Linear(width, 2 * inner, bias=False), "wo": nn.Linear(inner, width),
            "layernorm": nn.LayerNorm(width, eps),
        }  # fmt: skip

    def drop(self, x: Any, rate: float) -> Any:
        """Dropout."""
        return nn.functional.dropout(x, rate, self.training)

    def projected(self, x: Any) -> tuple[Any, Any]:
        """Queries and keys (B, L, D)."""
        return self.attention["self"]["query"](x), self.attention["self"]["key"](x)

    def attended(self, x: Any, mask: Any) -> tuple[Any, Any]:
        """The input and attention, normed."""
        q, k = self.projected(x)
        given = (
            part.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
            for part in (q, k, self.attention["self"]["value"](x))
        )
        q, k, v = given
        bias = lowered(self.heads, x.shape[1]).to(x.dtype)
        _, weights = mix(q, k, v, mask, bias)
        mixed = (self.drop(weights, self.rates[0]) @ v).transpose(1, 2).flatten(2)
        output = self.attention["output"]
        return output["LayerNorm"](self.drop(output["dense"](mixed), self.rates[1]) + x), weights

    def forward(self, x: Any, mask: Any) -> tuple[Any, Any]:
        x, weights = self.attended(x, mask)
        gate, value = self.mlp["gated_layers"](x).chunk(2, dim=-1)
        inner = self.drop(self.activation(gate) * value, self.rates[1])
        return self.mlp["layernorm"](self.mlp["wo"](inner) + x), weights


class NormedJinaBertLayer(JinaBertLayer):
    """The second form: queries and keys are normed as a whole, and the input of the attention is added twice."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width, eps = config.hidden_size, config.layer_norm_eps
        self.attention["self"]["layer_norm_q"] = nn.LayerNorm(width, eps)
        self.attention["self"]["layer_norm_k"] = nn.LayerNorm(width, eps)
        self.layer_norm_1, self.layer_norm_2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)

    def feed_forward(self, width: int, inner: int, eps: float) -> dict[str, nn.Module]:
        """The layers of the feed-forward."""
        return {"up_gated_layer": nn.Linear(width, 2 * inner, bias=False), "down_layer": nn.Linear(inner, width)}

    def projected(self, x: Any) -> tuple[Any, Any]:
        """Queries and keys (B, L, D)."""
        own = self.attention["self"]
        return own["layer_norm_q"](own["query"](x)), own["layer_norm_k"](own["key"](x))

    def forward(self, x: Any, mask: Any) -> tuple[Any, Any]:
        attended, weights = self.attended(x, mask)
        x = self.layer_norm_1(x + attended)
        value, gate = self.mlp["up_gated_layer"](x).chunk(2, dim=-1)
        inner = self.drop(value * self.activation(gate), self.rates[1])
        return self.layer_norm_2(x + self.mlp["down_layer"](inner)), weights


class JinaBertModel(BertModel):  # type: ignore[misc]
    """The encoder, without a table of positions."""

    config_class = JinaBertConfig
    layer = JinaBertLayer

    def __init__(self, config: Any, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer)
        del self.embeddings.position_embeddings
        self.encoder.layer = nn.ModuleList(self.layer(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    def forward(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None, **options: Any) -> Any:
        segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        given = self.embeddings
        x = given.LayerNorm(given.word_embeddings(input_ids) + given.token_type_embeddings(segments))
        hidden, attentions = [given.dropout(x)], []
        for layer in self.encoder.layer:
            x, weights = layer(hidden[-1], attention_mask)
            hidden.append(x)
            attentions.append(weights)
        return BaseModelOutputWithPooling(
            last_hidden_state=x, pooler_output=None if self.pooler is None else self.pooler(x),
            hidden_states=(*hidden,), attentions=(*attentions,),
        )  # fmt: skip


class _NormedJinaBertModel(JinaBertModel):
    """The encoder in its second form."""

    layer = NormedJinaBertLayer


def _with_head(model: Any, head: Any, *, pooler: bool) -> Any:
    """A class of BERT with a head on another encoder."""

    def init(self: Any, config: Any) -> None:
        head.__init__(self, config)
        self.bert = model(config, add_pooling_layer=pooler)
        self.post_init()

    name = f"JinaBert{head.__name__.removeprefix('Bert')}"
    return type(name, (head,), {"__init__": init, "config_class": JinaBertConfig, "__module__": __name__})


JinaBertForMaskedLM = _with_head(JinaBertModel, BertForMaskedLM, pooler=False)
JinaBertForSequenceClassification = _with_head(JinaBertModel, BertForSequenceClassification, pooler=True)
JinaBertForTokenClassification = _with_head(JinaBertModel, BertForTokenClassification, pooler=False)
JinaBertForQuestionAnswering = _with_head(JinaBertModel, BertForQuestionAnswering, pooler=False)
# The second form has the same names.
NormedJinaBertConfig = JinaBertConfig
NormedJinaBertModel = type("JinaBertModel", (_NormedJinaBertModel,), {"__module__": __name__})
NormedJinaBertForMaskedLM = _with_head(NormedJinaBertModel, BertForMaskedLM, pooler=False)
NormedJinaBertForSequenceClassification = _with_head(NormedJinaBertModel, BertForSequenceClassification, pooler=True)
NormedJinaBertForTokenClassification = _with_head(NormedJinaBertModel, BertForTokenClassification, pooler=False)
NormedJinaBertForQuestionAnswering = _with_head(NormedJinaBertModel, BertForQuestionAnswering, pooler=False)
NeoBERTModel, NeoBERTForMaskedLM = NeoBERT, NeoBERTLMHead

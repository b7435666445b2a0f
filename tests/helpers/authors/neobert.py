"""NeoBERT."""

import math
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput, SequenceClassifierOutput

from tests.helpers.authors.common import loss_of, mix, run


class NeoBERTConfig(PreTrainedConfig):  # type: ignore[misc]
    """The configuration of NeoBERT."""

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
    """A layer: norm, attention, add, norm, feed-forward, add."""

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
        """Rotates each pair of elements 2n and 2n + 1, as if it were a complex number."""
        size = x.shape[3]
        speeds = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        angles = torch.outer(torch.arange(x.shape[2], dtype=torch.float32), speeds)
        wide = torch.promote_types(x.dtype, torch.float32)
        pairs = torch.view_as_complex(x.to(wide).reshape(*x.shape[:3], -1, 2).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(3).to(x.dtype)

    def forward(self, x: Any, mask: Any, *, weighed: bool) -> tuple[Any, Any]:
        fused = self.qkv(self.attention_norm(x)).view(*x.shape[:2], self.heads, -1).transpose(1, 2)
        q, k, v = fused.chunk(3, dim=-1)
        mixed, weights = mix(self.rotated(q), self.rotated(k), v, mask, weighed=weighed)
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
    """The encoder of NeoBERT."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.encoder = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.transformer_encoder = nn.ModuleList(NeoBERTLayer(config) for _ in range(config.num_hidden_layers))
        self.layer_norm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.post_init()

    def forward(
        self, input_ids: Any, attention_mask: Any = None, output_hidden_states: bool = False,
        output_attentions: bool = False, **options: Any,
    ) -> Any:  # fmt: skip
        wanted: dict[str, Any] = {"hidden": output_hidden_states, "attentions": output_attentions}
        x = self.encoder(input_ids)
        return BaseModelOutput(**run(self.transformer_encoder, x, attention_mask, last=self.layer_norm, **wanted))


class NeoBERTLMHead(_NeoBERT):
    """The model with the masked-LM head: one linear layer with its own matrix."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model, self.decoder = NeoBERT(config), nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None, **options: Any) -> Any:
        output = self.model(input_ids, attention_mask, **options)
        logits = self.decoder(output.last_hidden_state)
        return MaskedLMOutput(loss_of(self, logits, labels), logits, output.hidden_states, output.attentions)


class NeoBERTForSequenceClassification(_NeoBERT):
    """The model with the text classifier: two linear layers, with tanh between them, on the first token."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model, self.dense = NeoBERT(config), nn.Linear(config.hidden_size, config.hidden_size)
        rate = config.classifier_dropout
        self.dropout = nn.Dropout(0.1 if rate is None else rate)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None, **options: Any) -> Any:
        output = self.model(input_ids, attention_mask, **options)
        x = torch.tanh(self.dense(self.dropout(output.last_hidden_state[:, 0])))
        logits = self.classifier(self.dropout(x))
        return SequenceClassifierOutput(loss_of(self, logits, labels), logits, output.hidden_states, output.attentions)


NeoBERTModel, NeoBERTForMaskedLM = NeoBERT, NeoBERTLMHead

"""Models based on the BERT of flash-attention: nomic-embed-text-v2-moe, jina-embeddings-v3, jina-reranker-v2."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from tests.helpers.authors.common import loss_of, mix, run


class Config:
    """The facts of a model, as attributes."""

    theta: float | None = None  # the base of the rotary positions, or no base but a table of positions

    def __init__(self, **facts: Any) -> None:
        self.__dict__ |= facts

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def read(cls, values: dict[str, Any]) -> "Config":
        return cls(**values)

    @property
    def num_labels(self) -> int:
        return len(vars(self).get("id2label") or "12")


class Attention(nn.Module):  # type: ignore[misc]
    """Attention with a fused projection; queries and keys are rotated if the model has rotary positions."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads, self.config = config.num_attention_heads, config
        self.Wqkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Any, mask: Any, *, weighed: bool) -> tuple[Any, Any]:
        """Maps hidden states (B, L, D) to (B, L, D) and attention weights (B, H, L, L)."""
        rows, length, width = x.shape
        q, k, v = self.Wqkv(x).reshape(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if self.config.theta:
            half = width // self.heads // 2
            speeds = self.config.theta ** -(torch.arange(half, dtype=torch.float64) / half)
            angles = torch.outer(torch.arange(length, dtype=torch.float64), speeds)
            q, k = (_rotated(part, angles.cos().to(x.dtype), angles.sin().to(x.dtype)) for part in (q, k))
        mixed, weights = mix(q, k, v, mask, weighed=weighed)
        return self.out_proj(mixed.transpose(1, 2).reshape(x.shape)), weights


def _rotated(x: Any, cosines: Any, sines: Any) -> Any:
    near, far = x.chunk(2, -1)
    return torch.cat([near * cosines - far * sines, far * cosines + near * sines], -1)


class FeedForward(nn.Module):  # type: ignore[misc]
    """A feed-forward of two linear layers."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Any) -> Any:
        return self.fc2(functional.gelu(self.fc1(x)))


class Mixture(nn.Module):  # type: ignore[misc]
    """Experts without biases. Each token uses the experts that its router scores highest, and adds one shared bias."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        rows, width = config.num_experts * config.intermediate_size, config.hidden_size
        self.count, self.used = config.num_experts, config.moe_top_k
        self.router = nn.ModuleDict({"layer": nn.Linear(width, config.num_experts, bias=False)})
        self.experts = nn.Module()
        self.experts.mlp = nn.Module()
        self.experts.mlp.w1, self.experts.mlp.w2 = (nn.Parameter(torch.empty(rows, width)) for _ in range(2))
        self.experts.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Any) -> Any:
        shares = self.router["layer"](x).softmax(-1, dtype=torch.promote_types(x.dtype, torch.float32))
        least = shares.topk(self.used, -1).values[..., -1:]
        shares = torch.where(shares >= least, shares, 0).to(x.dtype)  # those that are used keep what they have
        mixed = torch.zeros_like(x)
        pairs = zip(*(matrix.chunk(self.count) for matrix in (self.experts.mlp.w1, self.experts.mlp.w2)), strict=True)
        for number, (up, down) in enumerate(pairs):
            rows = torch.nonzero(shares[..., number], as_tuple=True)
            outputs = functional.gelu(x[rows] @ up.T) @ down
            mixed = mixed.index_put(rows, outputs * shares[..., number][rows][:, None], accumulate=True)
        return mixed + self.experts.bias


class Layer(nn.Module):  # type: ignore[misc]
    """A layer: attention, add, norm, feed-forward, add, norm."""

    def __init__(self, config: Any, attention: str, mlp: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.add_module(attention, Attention(config))
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = mlp
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Any, mask: Any, *, weighed: bool) -> tuple[Any, Any]:
        attended, weights = getattr(self, self.attention)(x, mask, weighed=weighed)
        x = self.norm1(x + attended)
        return self.norm2(x + self.mlp(x)), weights


class Encoder(nn.Module):  # type: ignore[misc]
    """The embeddings and the layers of an encoder."""

    def __init__(self, config: Any, attention: str) -> None:
        super().__init__()
        width, self.config = config.hidden_size, config
        self.embeddings = nn.Module()
        self.embeddings.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.embeddings.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        if not config.theta:
            self.embeddings.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.emb_ln = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(
            Layer(config, attention, (Mixture if self.has_experts(number) else FeedForward)(config))
            for number in range(config.num_hidden_layers)
        )

    def has_experts(self, number: int) -> bool:
        every = vars(self.config).get("moe_every_n_layers", 0)
        return bool(every) and number % every == 1

    def forward(
        self, ids: Any, attention_mask: Any = None, token_type_ids: Any = None, output_hidden_states: bool = False,
        output_attentions: bool = False, **_: Any,
    ) -> Any:  # fmt: skip
        """Returns the outputs that a model of transformers returns."""
        segments = torch.zeros_like(ids) if token_type_ids is None else token_type_ids
        x = self.embeddings.word_embeddings(ids) + self.embeddings.token_type_embeddings(segments)
        if not self.config.theta:
            counted = ids != self.config.pad_token_id
            x = x + self.embeddings.position_embeddings(counted.cumsum(-1) * counted + self.config.pad_token_id)
        wanted: dict[str, Any] = {"hidden": output_hidden_states, "attentions": output_attentions}
        return SimpleNamespace(**run(self.encoder.layers, self.emb_ln(x), attention_mask, **wanted))


class Published(nn.Module):  # type: ignore[misc]
    """An encoder, alone or with a head."""

    config_class: ClassVar[Any]
    base_model_prefix: ClassVar[str]
    attention: ClassVar[str]

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.add_module(self.base_model_prefix, Encoder(config, self.attention))
        self.add_head()
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=config.initializer_range)

    def add_head(self) -> None:
        """Adds the layers of the head; overridden by classes with a head."""

    def logits(self, states: Any) -> Any:
        """Returns the scores of the head; `None` if there is no head."""

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        tensors = super().state_dict(*arguments, **options)
        alone = type(self).__name__.endswith("Model")
        return {name.removeprefix(f"{self.base_model_prefix}.") if alone else name: tensors[name] for name in tensors}

    def load_state_dict(self, tensors: Any, strict: bool = True, assign: bool = False) -> Any:
        mine = super().state_dict()
        full = {name if name in mine else f"{self.base_model_prefix}.{name}": tensors[name] for name in tensors}
        return super().load_state_dict(full, strict, assign)

    def forward(self, input_ids: Any, labels: Any = None, **inputs: Any) -> Any:
        """Returns the outputs that a model of transformers returns."""
        output = getattr(self, self.base_model_prefix)(input_ids, **inputs)
        output.logits = logits = self.logits(output.last_hidden_state)
        output.loss = loss_of(self, logits, labels)
        return output

    def save_pretrained(self, folder: str | Path) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, folder / "model.safetensors")
        values = self.config.published(type(self).__name__)
        (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def from_pretrained(cls, folder: Path, dtype: Any = torch.float32, **_: Any) -> Any:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model = cls(cls.config_class.read(values))
        found = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
        return model.to(dtype), {**found._asdict(), "mismatched_keys": []}


class NomicMoeConfig(Config):
    """Nomic's own configuration, which uses the keys of GPT-2."""

    NAMES: ClassVar[dict[str, str]] = {
        "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
        "intermediate_size": "n_inner", "max_position_embeddings": "n_positions", "hidden_act": "activation_function",
        "layer_norm_eps": "layer_norm_epsilon", "theta": "rotary_emb_base", "hidden_dropout_prob": "resid_pdrop",
        "attention_probs_dropout_prob": "attn_pdrop",
    }  # fmt: skip
    FIXED: ClassVar[dict[str, Any]] = {
        "model_type": "nomic_bert", "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "prenorm": False,
        "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "causal": False, "moe_impl": "megablocks",
        "moe_normalize_expert_weights": False, "num_shared_experts": 0, "expert_choice_router": False,
        **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True),
    }  # fmt: skip

    def published(self, name: str) -> dict[str, Any]:
        facts = {self.NAMES.get(key, key): value for key, value in vars(self).items() if key != "attn_implementation"}
        return facts | self.FIXED | {"architectures": [name.replace("Moe", "Bert")]}

    @classmethod
    def read(cls, values: dict[str, Any]) -> "NomicMoeConfig":
        standard = {theirs: key for key, theirs in cls.NAMES.items()}
        return cls(**{standard.get(key, key): value for key, value in values.items()})


class NomicMoeModel(Published):
    """nomic-embed-text-v2-moe: rotary positions, and experts in every n-th layer."""

    config_class, base_model_prefix, attention = NomicMoeConfig, "bert", "attn"


class NomicMoeForMaskedLM(NomicMoeModel):
    """The model with the masked-LM head, whose last matrix is the matrix of the word embeddings."""

    def add_head(self) -> None:
        width, self.cls = self.config.hidden_size, nn.Module()
        layers = {"dense": nn.Linear(width, width), "layer_norm": nn.LayerNorm(width, eps=self.config.layer_norm_eps)}
        self.cls.predictions = nn.ModuleDict({"transform": nn.ModuleDict(layers)})
        self.cls.predictions.bias = nn.Parameter(torch.zeros(self.config.vocab_size))

    def logits(self, states: Any) -> Any:
        layers = self.cls.predictions["transform"]
        states = layers["layer_norm"](functional.gelu(layers["dense"](states)))
        return states @ self.bert.embeddings.word_embeddings.weight.T + self.cls.predictions.bias


class NomicMoeForTokenClassification(NomicMoeModel):
    """The model with a classifier of tokens."""

    def add_head(self) -> None:
        self.classifier = nn.Linear(self.config.hidden_size, self.config.num_labels)

    def logits(self, states: Any) -> Any:
        return self.classifier(states)


class JinaFlashConfig(Config):
    """XLM-RoBERTa's configuration without a `model_type`, but with the name of the class that reads it."""

    def published(self, name: str) -> dict[str, Any]:
        facts = {key: value for key, value in vars(self).items() if key not in ("attn_implementation", "theta")}
        facts |= {"rotary_emb_base": self.theta} if self.theta else {}
        code = "jinaai/xlm-roberta-flash-implementation--configuration_xlm_roberta.XLMRobertaFlashConfig"
        facts |= {"architectures": [name.replace("JinaFlash", "XLMRoberta")], "auto_map": {"AutoConfig": code}}
        return facts | {"position_embedding_type": "rotary" if self.theta else "absolute", "use_flash_attn": True}

    @classmethod
    def read(cls, values: dict[str, Any]) -> "JinaFlashConfig":
        return cls(**values, theta=values.get("rotary_emb_base"))


class Stacked(nn.Module):  # type: ignore[misc]
    """The adapters of all tasks for one weight. The adapter of the current task, if any, is added to the weight."""

    task: ClassVar[int | None] = None

    def __init__(self, weight: Any, tasks: int, rank: int, *, table: bool) -> None:
        super().__init__()
        self.table, (rows, columns) = table, weight.shape
        first, second = ((rows, rank), (rank, columns)) if table else ((rank, columns), (rows, rank))
        self.lora_A, self.lora_B = (nn.Parameter(torch.zeros(tasks, *shape)) for shape in (first, second))

    def forward(self, weight: Any) -> Any:
        """Adds the adapter of the current task to a weight."""
        if Stacked.task is None:
            return weight
        a, b = self.lora_A[Stacked.task], self.lora_B[Stacked.task]
        return weight + (a @ b if self.table else b @ a) / a.shape[1 if self.table else 0]


class JinaFlashModel(Published):
    """jina-embeddings-v3, with adapters if the configuration names tasks; with absolute positions, jina-reranker-v2."""

    config_class, base_model_prefix, attention = JinaFlashConfig, "roberta", "mixer"

    def add_head(self) -> None:
        tasks = vars(self.config).get("lora_adaptations") or ()
        for module in [*self.modules()] if tasks else ():
            if isinstance(module, nn.Linear | nn.Embedding):
                table = isinstance(module, nn.Embedding)
                adapter = Stacked(module.weight, len(tasks), self.config.lora_rank, table=table)
                parametrize.register_parametrization(module, "weight", adapter)


class JinaFlashForSequenceClassification(JinaFlashModel):
    """The model with the text classifier of RoBERTa."""

    def add_head(self) -> None:
        self.num_labels, self.classifier = self.config.num_labels, nn.Module()
        self.classifier.dense = nn.Linear(self.config.hidden_size, self.config.hidden_size)
        self.classifier.out_proj = nn.Linear(self.config.hidden_size, self.config.num_labels)

    def logits(self, states: Any) -> Any:
        return self.classifier.out_proj(self.classifier.dense(states[:, 0]).tanh())

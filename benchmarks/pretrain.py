"""Trains a BERT from scratch with mlxbert and with torch on the same examples: losses, and tokens per second in turn.

Run: python benchmarks/pretrain.py CORPUS VOCABULARY RESULTS.jsonl --side ours|theirs|speed [--steps 2000]
    [--layers 4] [--width 256] [--batch-size 16] [--length 64] [--dropout 0.1] [--threads 2]
    [--gpu] [--dtype bfloat16]

Both sides start from the same weights, and see the same batches with the same masked tokens; both use AdamW with the
same rates, decay and clipping. The losses of all steps, and the loss on held-out examples, are written as a line of
JSON. Needs torch and transformers for `theirs` and `speed`.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
from runs import use_cores

ROUNDS, BLOCK = 7, 10  # of `speed`; updates of each side in turn
WARMUP, WEIGHT_DECAY, CLIP, LR = 0.1, 0.01, 1.0, 5e-4


class Both:
    """The run of mlxbert, with everything that torch needs to repeat it."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        import mlxbert
        from mlxbert.machine.device import mx
        from mlxbert.nn.ops import backend
        from mlxbert.train.loop.data_order import Training
        from mlxbert.train.loop.training_run import Run
        from mlxbert.train.options.loop_options import TrainingOptions
        from mlxbert.train.pretraining.corpus_material import ExampleMaker
        from mlxbert.train.pretraining.initial_model import find_initial
        from mlxbert.train.pretraining.loss_terms import MaskedWords
        from mlxbert.train.pretraining.objective import Pretraining
        from mlxbert.train.pretraining.pretraining_settings import Settings
        from mlxbert.weights.model_source import ModelRef

        config = {
            "model_type": "bert", "hidden_size": args.width, "num_hidden_layers": args.layers,
            "num_attention_heads": args.width // 64, "intermediate_size": 4 * args.width,
            "max_position_embeddings": 512, "hidden_dropout_prob": args.dropout,
            "attention_probs_dropout_prob": args.dropout, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
        }  # fmt: skip
        (folder / "size.json").write_text(json.dumps(config))
        start = find_initial(ModelRef(), folder / "size.json", args.vocabulary, None, ["masked_lm"])
        self.model = start.model(["masked_lm"], 0)
        mlxbert.save(self.model, folder / "start")
        settings = Settings(corpus=(args.corpus,), length=str(args.length), shards=folder / "corpus")
        options = TrainingOptions(
            lr=LR, batch_size=args.batch_size, warmup=WARMUP, weight_decay=WEIGHT_DECAY, max_grad_norm=CLIP, seed=0
        )
        maker = ExampleMaker(settings, self.model.tokenizer, None, self.model.config.max_length)
        self.data = maker.make(folder, options, args.steps, 1.0, None)
        self.objective = Pretraining({MaskedWords(): 1.0})
        self.objective.use(self.model.config)
        self.folder, self.steps, self.dtype = folder, args.steps, args.dtype
        self.device = "cuda" if args.gpu else "cpu"
        self.run = Run(
            Training(
                network=self.model.network, objective=self.objective, examples=cast(Any, self.data.train),
                place=self.data.train.describe, order=self.data.order, options=options,
                dtype=getattr(mx, args.dtype), evaluate=None, streams=max(backend().workers(), 1),
            ),
            None,
        )  # fmt: skip

    def ours(self) -> Iterator[float]:
        """The losses of mlxbert's updates."""
        from mlxbert.train.loop.events import Step

        return (event.loss for event in self.run.events() if isinstance(event, Step))

    def our_loss(self) -> float:
        """The loss of the trained weights on the held-out examples."""
        from mlxbert.train.loop.distributed import ProcessGroup
        from mlxbert.train.loop.gradients import install

        install(self.model.network, self.run.best())
        return self.objective.measure(self.model.network, self.data.valid, ProcessGroup(), 32)["loss"]

    def batch(self, examples: list[Any]) -> dict[str, Any]:
        """A batch for torch."""
        import torch

        collated = self.objective.collate(examples, random.Random(0))
        inputs, targets = collated.inputs, collated.targets
        count = sum(len(example.places) for example in examples)
        mask = inputs.attention_mask

        def tensor(array: Any) -> Any:
            return torch.tensor(np.array(array), dtype=torch.long, device=self.device)

        return {
            "ids": tensor(inputs.input_ids),
            "mask": None if mask is None else tensor(mask),
            **{name: tensor(getattr(targets, name))[:count] for name in ("rows", "columns", "originals")},
        }


class Theirs:
    """The same model in torch."""

    def __init__(self, both: Both) -> None:
        import torch
        from transformers import BertForMaskedLM, get_linear_schedule_with_warmup

        torch.manual_seed(0)
        self.both = both
        self.model = BertForMaskedLM.from_pretrained(both.folder / "start").to(both.device).train()
        named = [*self.model.named_parameters()]
        undecayed = [parameter for _, parameter in named if parameter.ndim < 2]
        decayed = [parameter for _, parameter in named if parameter.ndim > 1]
        groups = [{"params": decayed}, {"params": undecayed, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=LR, weight_decay=WEIGHT_DECAY)
        self.schedule = get_linear_schedule_with_warmup(self.optimizer, round(WARMUP * both.steps), both.steps)

    def loss(self, batch: dict[str, Any], reduction: str = "mean") -> Any:
        """The cross-entropy of the masked tokens."""
        import torch

        with torch.autocast(self.both.device, torch.bfloat16, enabled=self.both.dtype == "bfloat16"):
            hidden = self.model.bert(batch["ids"], attention_mask=batch["mask"]).last_hidden_state
            words = self.model.cls(hidden[batch["rows"], batch["columns"]])
        return torch.nn.functional.cross_entropy(words.float(), batch["originals"], reduction=reduction)

    def losses(self) -> Iterator[float]:
        """The losses of the updates."""
        import torch

        for step in range(self.both.steps):
            [numbers] = self.both.data.order.batches(step)
            loss = self.loss(self.both.batch([self.both.data.train[number] for number in numbers]))
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            self.optimizer.step()
            self.schedule.step()
            yield float(loss.detach())

    def held_out(self) -> float:
        """The loss on the held-out examples."""
        import torch

        self.model.eval()
        loss = count = 0.0
        with torch.no_grad():
            for start in range(0, len(self.both.data.valid), 32):
                numbers = range(start, min(start + 32, len(self.both.data.valid)))
                batch = self.both.batch([self.both.data.valid[number] for number in numbers])
                loss, count = loss + float(self.loss(batch, "sum")), count + len(batch["originals"])
        return loss / count


def speed(both: Both) -> dict[str, Any]:
    """Tokens per second of both sides in turn: medians of blocks of updates."""
    sides: dict[str, Iterator[float]] = {"ours": both.ours(), "theirs": Theirs(both).losses()}
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(ROUNDS + 1):
        steps = range(turn * BLOCK, (turn + 1) * BLOCK)
        tokens = sum(both.data.order.tokens(both.data.order.batches(step)[0]) for step in steps)
        for name, losses in sides.items():
            begun = time.perf_counter()
            for _ in steps:
                next(losses)
            if turn:  # the first block warms up
                speeds[name].append(tokens / (time.perf_counter() - begun))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    ratios = [ours / theirs for ours, theirs in zip(speeds["ours"], speeds["theirs"], strict=True)]
    return {**medians, "ratio": statistics.median(ratios), "ratios": sorted(ratios)}


def main() -> None:
    """Runs one side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("vocabulary")
    parser.add_argument("results", type=Path)
    parser.add_argument("--side", choices=("ours", "theirs", "speed"), required=True)
    for name, default in (
        ("steps", 2000), ("layers", 4), ("width", 256), ("batch-size", 16), ("length", 64), ("threads", 2)
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--gpu", action="store_true", help="compute on the GPU; otherwise on the CPU")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    args = parser.parse_args()
    os.environ["MLXBERT_DEVICE"] = "gpu" if args.gpu else "cpu"
    use_cores(args, args.threads)
    if args.side != "ours":
        import torch

        torch.set_num_threads(args.threads)
    facts = {
        name: getattr(args, name)
        for name in ("side", "steps", "batch_size", "length", "dropout", "threads", "gpu", "dtype")
    }
    with tempfile.TemporaryDirectory() as folder:
        both = Both(args, Path(folder))
        if args.side == "speed":
            result = speed(both)
        else:
            begun = time.process_time()
            theirs = Theirs(both) if args.side == "theirs" else None
            losses = [*(both.ours() if theirs is None else theirs.losses())]
            spent = time.process_time() - begun
            held = both.our_loss() if theirs is None else theirs.held_out()
            result = {"held_out": held, "cpu_s": spent, "losses": losses}
        with args.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**facts, **result}) + "\n")
    print({name: value for name, value in {**facts, **result}.items() if name != "losses"})


if __name__ == "__main__":
    main()

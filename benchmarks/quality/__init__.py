"""How good fine-tuned models are, beside transformers' own training: same checkpoint, data and hyper-parameters."""

"""How good a model is: metrics, intervals, baselines."""

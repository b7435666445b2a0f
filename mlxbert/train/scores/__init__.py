"""Scores of models: metrics, intervals, baselines."""

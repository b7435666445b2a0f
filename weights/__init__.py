"""The files of models: configurations, weights and vocabularies of many formats; and the built-in model."""

"""The files of models: configurations, weights and vocabularies in many formats. The built-in model is here, too."""

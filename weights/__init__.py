"""Other projects' files: configurations, weights, vocabularies; and the model that ships with the package."""

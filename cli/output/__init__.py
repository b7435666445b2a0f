"""Results into files: formats, parts that survive an interruption, and what a run is made of."""

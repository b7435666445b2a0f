"""Weight formats: one module or folder per format, each with the same two functions (`weight_files.WeightReader`)."""

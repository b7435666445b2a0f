"""Weight formats. Each one is a module or package with the two functions of `weight_files.WeightReader`."""

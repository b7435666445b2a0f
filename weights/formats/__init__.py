"""Files of weights: a module or folder per format, all with the same two functions (see `files.Reader`)."""

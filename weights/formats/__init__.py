"""Weight formats: one module or folder per format, each with the same two functions (see `files.Reader`)."""

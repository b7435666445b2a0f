"""Where the events of training go besides the terminal."""

"""The commands. Each file turns the options of a command into records, calls the library, and shows the result."""

"""The classes of a classification head, and the tagging schemes that classes of words may follow."""

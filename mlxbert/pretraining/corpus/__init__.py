"""The text corpus: reads documents from files, and stores their token ids on disk."""

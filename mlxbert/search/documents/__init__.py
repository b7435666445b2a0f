"""Reads documents, such as PDF files, e-mails and web pages: a registry of kinds, and a module for each kind."""

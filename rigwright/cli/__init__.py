"""The commands: one file for each, and the modules that read their options and run them."""

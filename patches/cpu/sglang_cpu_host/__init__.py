"""Stand-ins that let SGLang run on a machine without a GPU. Start reading in finder.py."""

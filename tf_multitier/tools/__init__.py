"""Command-line tools: `python3 -m tf_multitier.tools.<name>`."""

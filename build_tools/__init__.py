"""The parts of configure.py. They run on any Python 3 with nothing installed: no f-strings, no imports but the standard library's."""

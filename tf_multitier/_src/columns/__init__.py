"""Feature columns over embedding variables, below feature_column.py. Only columns are here."""

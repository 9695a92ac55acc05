"""The embedding variable: its classes, rows, saves and scopes. No lookup, gradient or optimizer is here."""

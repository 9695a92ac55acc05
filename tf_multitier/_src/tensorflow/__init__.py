"""How the package meets TensorFlow: its internals, the op library, the start of our programs. Nothing here knows options."""

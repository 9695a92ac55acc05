"""Several processes, for the rooms above: worlds and TensorFlow's strategies. What users call is in distribute."""

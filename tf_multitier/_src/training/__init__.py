"""Update rules and how they reach the rows. The optimizers of users are in optimizers.py, train and keras."""

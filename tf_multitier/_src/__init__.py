"""What the public modules are made of, in rooms. A room imports those before it: ROOMS in tests/house/test_layers.py has the order."""

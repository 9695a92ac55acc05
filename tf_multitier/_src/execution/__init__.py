"""How eager execution, functions, graphs and devices differ, for the rooms above. Nothing here knows several processes."""

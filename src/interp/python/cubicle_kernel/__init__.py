"""What the Python kernel of code-interpreter templates does beyond ipykernel. README.md beside it is the map."""

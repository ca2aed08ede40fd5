"""PyTorch's own distributed test suite, pointed at a backend of our choice."""

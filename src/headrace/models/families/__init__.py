"""The families' forward passes, in PyTorch: one file a family, and the layers that they share."""

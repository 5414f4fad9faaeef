"""Handwritten digits on Flower with PyTorch, calibrated after training."""

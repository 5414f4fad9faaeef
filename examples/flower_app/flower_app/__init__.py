"""Handwritten digits on Flower, with prediction sets that survive malicious nodes."""

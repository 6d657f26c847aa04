"""Measuring a model: protocol-stamped perplexity, accuracy and fidelity."""

"""Figures: functions from a tidy table to a matplotlib figure, and saving one with the data behind it."""

from rwkvlab.plots.activations import activation_histogram, activation_ranges
from rwkvlab.plots.model import memory_spans, parity_errors, state_sizes
from rwkvlab.plots.scores import accuracy_against_bytes, divergence_against_bytes, divergence_by_position, surprise
from rwkvlab.plots.style import SavedFigure, save_figure
from rwkvlab.plots.traffic import compile_stages, memory_traffic, operation_counts, proof_errors, proof_traffic
from rwkvlab.plots.weights import error_by_linear, error_map, weights_on_grid

__all__ = [
    "SavedFigure",
    "accuracy_against_bytes",
    "activation_histogram",
    "activation_ranges",
    "compile_stages",
    "divergence_against_bytes",
    "divergence_by_position",
    "error_by_linear",
    "error_map",
    "memory_spans",
    "memory_traffic",
    "operation_counts",
    "parity_errors",
    "proof_errors",
    "proof_traffic",
    "save_figure",
    "state_sizes",
    "surprise",
    "weights_on_grid",
]

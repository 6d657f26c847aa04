"""Quantization: recipes, calibration, grids, encodings, AIMET QuantSim."""

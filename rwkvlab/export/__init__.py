"""Exporting chunks as ONNX decode and prefill graphs."""

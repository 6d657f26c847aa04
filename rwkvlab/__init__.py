"""RWKV language models on Qualcomm's HTP: calibrate, quantize, compile to context binaries, run, measure.

Importing the package imports nothing heavy. `rwkvlab.htp.session`, `rwkvlab.device`, `rwkvlab.evaluate` and
`rwkvlab.tokenizer` need neither torch nor AIMET, so they also run on a Snapdragon laptop or board.
"""

__version__ = "0.1.0"

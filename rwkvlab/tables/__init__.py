"""Tables the notebooks show and the figures are drawn from: tidy pandas frames, one module per station."""

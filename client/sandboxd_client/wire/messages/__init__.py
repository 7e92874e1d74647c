"""Parameters and results of every method, as frozen dataclasses; `methods.METHODS` lists them all."""

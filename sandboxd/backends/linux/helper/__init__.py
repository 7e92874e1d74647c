"""The helper `apply-seccomp`: its protocol, its connections and the launches behind them."""

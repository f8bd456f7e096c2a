"""The HTTP side of the service: routes, limits, errors, metrics, logs. It computes nothing and never imports torch."""

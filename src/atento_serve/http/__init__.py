"""What every request passes: limits, clients, hosts, errors, logs. It computes nothing and never imports torch."""

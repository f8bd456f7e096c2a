"""The engine of the service: worker processes that compute, and the queue before them; only workers import torch."""

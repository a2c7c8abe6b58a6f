"""Measurements that are too noisy to be tests."""

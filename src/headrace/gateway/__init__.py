"""The web application: routes, keys, admission, replicas, metrics."""

"""From a PyTorch module to native code: capture, rewrite rules, search, code generation. See README.md."""

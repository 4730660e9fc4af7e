"""The two primitives, `scan_p` and `while_p`: parameters, abstract evaluation and lowering."""

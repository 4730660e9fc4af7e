"""The tests: unit, rules, properties, messages, lesson, docs and benchmarks, by purpose."""

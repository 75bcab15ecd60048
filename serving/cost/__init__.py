"""What machines cost, and whose requests used them: docs/cost.md says it in formulas."""

"""What descends: any Risk, step by step, in closed form, by skipping or along its flow. Knows no family."""

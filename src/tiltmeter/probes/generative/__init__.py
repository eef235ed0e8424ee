"""What the probes of generative models share: questions, written answers, groups and their gaps."""

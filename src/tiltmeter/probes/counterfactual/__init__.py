"""CounterBias: masked prediction on an image and its counterfactual."""

"""Association and ranking metrics of words over images."""

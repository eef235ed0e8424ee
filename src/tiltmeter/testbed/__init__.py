"""A small synthetic world with planted bias, so that the true bias of every word is known.

Its figures have a shape and a hue; it shows no people and represents none. A concept is an icon
next to the figure. What is planted is which figures a concept comes with: this says nothing about
real models, only whether a metric would find such a bias.
"""

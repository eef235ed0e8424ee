"""A small world whose bias is dialled in, so that the true tilt of every word is known.

Its figures have a shape and a hue; it shows no people and stands for none. A concept is an icon
beside the figure. What is planted is which figures a concept comes with: nothing here says that a
real model has such a tilt, only whether a measure would find it.
"""

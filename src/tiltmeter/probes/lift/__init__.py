"""Lift: how many times as high a model scores a word with one group as with the others."""

"""Stimuli: word lists with their sources, and the prompts made from them.

>>> from tiltmeter.stimuli import load, prompts
>>> prompts(load("occupations"))[0].text
'a photo of an athlete'
"""

from tiltmeter.stimuli.articles import article, fill
from tiltmeter.stimuli.captions import articles_of, prompts
from tiltmeter.stimuli.catalogue import DEFAULT, STIMULI
from tiltmeter.stimuli.groups import GroupPhrase, group_phrases
from tiltmeter.stimuli.loader import load
from tiltmeter.stimuli.neutral import neutralise
from tiltmeter.stimuli.words import TEMPLATES, Stimuli, WeatTest, Word, WordSet

__all__ = [
    "DEFAULT",
    "STIMULI",
    "TEMPLATES",
    "GroupPhrase",
    "Stimuli",
    "WeatTest",
    "Word",
    "WordSet",
    "article",
    "articles_of",
    "fill",
    "group_phrases",
    "load",
    "neutralise",
    "prompts",
]

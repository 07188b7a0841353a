"""The live page: it follows a line, takes reviews, passes alarms on, and has an API."""

from skpatchsvdd._serve.command import run

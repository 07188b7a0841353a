"""A line, live: a page that follows it, reviews, signals, and an API."""

from skpatchsvdd._cli.serve.command import run

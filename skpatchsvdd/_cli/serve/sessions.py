"""Who has shown the token: browsers that are signed in, and limits to guessing."""

import hmac
import secrets
import time
from collections import Counter

from skpatchsvdd._cli.terminal import tell

# Seconds that a browser stays signed in, and browsers that are at a time.
_SESSION_SECONDS, _MOST_SESSIONS = 7 * 86400, 1000
# Wrong tokens within so many seconds, from one address and from all, after which no
# other is looked at until these are over.
_SPAN, _MOST_OF_ONE, _MOST_OF_ALL = 60, 10, 100


class TooManyGuesses(Exception):
    """Tokens of an address are not looked at now; `seconds` later they are."""

    def __init__(self, seconds):
        super().__init__(f"too many wrong tokens; try again in {seconds} seconds")
        self.seconds = seconds


class Sessions:
    """Checks tokens, and keeps in memory which browsers are signed in.

    It belongs to the event loop: nothing of it waits, and it needs no locks. A restart
    ends all sessions.
    """

    seconds = _SESSION_SECONDS

    def __init__(self, token):
        self._token = token
        self._ends = {}  # when each session ends, the oldest first
        self._wrong, self._renewed = Counter(), -float(_SPAN)
        # Addresses that had the token once: a crowd elsewhere does not lock them out.
        self._trusted = {}

    def check(self, token, address):
        """Whether a token is right; raises `TooManyGuesses` without a look at it."""
        passed = time.monotonic() - self._renewed
        if passed >= _SPAN:
            self._wrong.clear()
            self._renewed, passed = time.monotonic(), 0
        is_crowd = self._wrong.total() >= _MOST_OF_ALL and address not in self._trusted
        if is_crowd or self._wrong[address] >= _MOST_OF_ONE:
            raise TooManyGuesses(int(_SPAN - passed) + 1)
        if hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            self._trusted[address] = None
            _drop_oldest(self._trusted)
            return True
        self._wrong[address] += 1
        self._tell(address)
        return False

    def _tell(self, address):
        """Tell of the first wrong token of a span, and of reaching a limit."""
        n_all = self._wrong.total()
        if self._wrong[address] == _MOST_OF_ONE:
            tell(f"{_MOST_OF_ONE} wrong tokens from {address}: no more for {_SPAN} s")
        elif n_all == _MOST_OF_ALL:
            tell(f"{n_all} wrong tokens from many addresses: no more for {_SPAN} s")
        elif n_all == 1:
            tell(f"wrong token from {address}")

    def begin(self):
        """Return what the cookie of a browser holds that is signed in from now on."""
        session = secrets.token_urlsafe(32)
        self._ends[session] = time.monotonic() + _SESSION_SECONDS
        _drop_oldest(self._ends)
        return session

    def is_signed_in(self, session):
        """Whether a cookie is that of a session which has not ended."""
        return self._ends.get(session, 0.0) > time.monotonic()

    def end(self, session):
        """Sign a browser out."""
        self._ends.pop(session, None)


def _drop_oldest(items):
    while len(items) > _MOST_SESSIONS:
        del items[next(iter(items))]

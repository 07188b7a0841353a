"""Connections that ask nothing are closed, the first where there are too many."""

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# Connections at a time.
MOST = 256
# Seconds until the head of a request must be there, until an answer is read, and until
# a connection is closed whose request was answered before all of it was there.
_PATIENCE, _UNREAD, _LINGER = 10, 20, 1


class Connection(H11Protocol):
    """A connection of uvicorn's, closed if the head of a request does not come.

    Where there are too many, the oldest goes of those that have not sent all of a
    request, or else of those that ask nothing more: they keep nobody out.
    """

    def connection_made(self, transport):
        """Begin to wait for a request."""
        super().connection_made(transport)
        if len(self.connections) >= MOST:
            others = [x for x in self.connections if x is not self and x.stage < 2]
            given_up = min(others, key=lambda x: (x.stage, x.since), default=self)
            given_up.transport.abort()
            self.connections.discard(given_up)  # now, not when its end is noticed
            if given_up is self:
                return
        self._watch_head()

    @property
    def stage(self):
        """0 until a request is whole, 2 until it is answered, then 1."""
        if self.cycle is None or (self.cycle.more_body and not self.has_answered):
            return 0
        return 1 if self.has_answered else 2

    @property
    def has_answered(self):
        """Whether there was a request, and the last one is answered."""
        return self.cycle is not None and self.cycle.response_complete

    def pause_writing(self):
        """Wait for a client that does not read, and not for ever."""
        super().pause_writing()
        self._unread = self.loop.call_later(_UNREAD, self.transport.abort)

    def resume_writing(self):
        """Go on: it reads again."""
        super().resume_writing()
        self._unread.cancel()

    def data_received(self, data):
        """Take in bytes; after an answer, wait again for all of the next head."""
        former = self.cycle
        super().data_received(data)
        if self.cycle is not former:
            self.since = self.loop.time()
        elif self.has_answered:
            self._watch_head()

    def on_response_complete(self):
        """Wait for the next request; of one that was refused nothing more is read."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self.flow.pause_reading()
            self.loop.call_later(_LINGER, self.transport.abort)

    def _watch_head(self):
        self.since = self.loop.time()
        self.loop.call_later(_PATIENCE, self._close_if, self.cycle)

    def _close_if(self, waiting_for):
        if self.cycle is waiting_for and not self.transport.is_closing():
            self.transport.abort()

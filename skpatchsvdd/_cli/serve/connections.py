"""Connections that ask nothing are closed."""

from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds until the head of a request must be there, and until an answer is read; and
# connections at a time.
_PATIENCE, _UNREAD = 10, 20
_MOST = 300


class Connection(H11Protocol):
    """A connection of uvicorn's, closed if the head of a request does not come."""

    def connection_made(self, transport):
        """Begin to wait for a request."""
        super().connection_made(transport)
        if len(self.connections) > _MOST:
            transport.abort()
            return
        self._watch_head()

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
        is_idle = self.cycle is not None and self.cycle.response_complete
        super().data_received(data)
        if is_idle:
            self._watch_head()

    def _watch_head(self):
        waiting_for = self.cycle
        self.loop.call_later(_PATIENCE, self._close_if, waiting_for)

    def _close_if(self, waiting_for):
        if self.cycle is waiting_for and not self.transport.is_closing():
            self.transport.abort()

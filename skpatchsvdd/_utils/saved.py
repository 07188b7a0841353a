"""What is saved of an object, the same in pickles and in model files."""

from typing import ClassVar


class Saved:
    """Base of objects that are saved by the attributes that their class names.

    `_saved` names them, once for pickles, copies and model files. All else, such as
    what lives on a device, is not saved: `_unsaved` returns it as it is at first.
    """

    _saved: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def saved_names(cls):
        """Return the names of what is saved."""
        return cls._saved

    def _unsaved(self):
        """Return what is not saved, by attribute, as it is before any use."""
        return {}

    def __getstate__(self):
        now = vars(self).copy()  # at once: another thread may be changing them
        return {name: now[name] for name in self.saved_names()}

    def __setstate__(self, state):
        if set(state) != set(self.saved_names()):
            raise ValueError(f"{type(self).__name__} is invalid")
        vars(self).update(state, **self._unsaved())

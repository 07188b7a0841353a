"""What pictures are drawn on."""


def import_pyplot():
    """Return matplotlib.pyplot, or say how to install it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "drawing needs matplotlib: pip install skpatchsvdd[plot]"
        ) from error
    return plt

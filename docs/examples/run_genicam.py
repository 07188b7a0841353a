"""A source of a station: a camera of GenICam.

It stands in the folder that the server is started in, and in the file of the station as
source = "run_genicam:Camera".
"""

import time


class Camera:
    """The first camera that a producer of GenTL finds, one with three channels."""

    name = "camera on the left"

    def frames(self):
        """Yield each picture, and when it came."""
        from harvesters.core import Harvester

        with Harvester() as harvester:
            harvester.add_file("/opt/producer.cti")  # of the maker of the camera
            harvester.update()
            with harvester.create(0) as camera:
                camera.start()
                while True:
                    with camera.fetch(timeout=5) as buffer:
                        part = buffer.payload.components[0]
                        shape = part.height, part.width, 3
                        yield part.data.reshape(shape).copy(), time.monotonic()

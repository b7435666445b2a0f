"""Writes `examples/data/manual.pdf`, the manual that docs/search.md searches: `python scripts/make_manual.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.helpers.papers import pdf

MANUAL = Path(__file__).parents[1] / "examples/data/manual.pdf"
# Pages of about the size of a chunk.
ASSEMBLY = """
Thank you for buying the L3 lamp. Unpack all of its parts and lay them on a soft cloth. There are a foot, a pole in two
pieces, a shade and a bag of screws. Join both pieces of the pole: the arrows on them must meet. Screw the foot to the
pole with the four long screws, and do not tighten them yet. Lead the cable through the hole in the foot. Stand the lamp
up and see whether it is straight. Now tighten the screws, each a little at a time. Set the shade on the ring at the top
and turn it to the left until it clicks. Keep the bag with the spare screws, as they fit no other lamp of ours.
"""
LIGHT = """
The lamp is sold without a light source. Use an E14 bulb of at most 40 watts. A stronger one would damage the shade. We
recommend LEDs of a warm white, which last for years and stay cool. Before you change the bulb, pull the plug and wait
for ten minutes. Hold the shade with one hand and turn the bulb to the left with the other. The dimmer in the cable has
three steps: press it once for each of them, and hold it down to switch the lamp off. If the light flickers, the bulb is
not made for dimmers. Wipe the shade with a dry brush from time to time, since dust takes away a lot of the light.
"""


def manual() -> bytes:
    """The file: a page about the assembly, and a page about the light."""
    return pdf(*(" ".join(page.split()) for page in (ASSEMBLY, LIGHT)), title="Manual of the L3 lamp")


if __name__ == "__main__":
    MANUAL.write_bytes(manual())

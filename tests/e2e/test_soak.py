"""Everything at once, for a while, with processes killed (soak.py). SOAK_MINUTES, SOAK_CLIENTS, SOAK_KILLS (seconds between two, about) and SOAK_SEED choose how much and which."""

import os
import random

from soak import Soak


def test_nothing_is_lost_stuck_or_wrong(own_server):
    s = own_server()
    seed = int(os.environ.get("SOAK_SEED") or random.randrange(10**6))
    Soak(s, seed, float(os.environ.get("SOAK_MINUTES") or 1), int(os.environ.get("SOAK_CLIENTS") or 6), float(os.environ.get("SOAK_KILLS") or 6)).run()

"""Every bound of what is computed for a result beside its text. What is over a bound is left out whole, never cut silently."""

# Cells of a DataFrame that still gets `data`, and the characters in them.
FRAME_CELLS = 250_000
FRAME_COLUMNS = 5_000
FRAME_CHARACTERS = 16 << 20

# Values (containers, scalars and keys) of a list or dict that still gets `json`, and the characters in them.
JSON_NODES = 250_000
JSON_CHARACTERS = 16 << 20
JSON_DEPTH = 100

# One figure's `chart`: axes, elements (lines, bars, boxes, wedges), points of all elements together, ticks of one axis.
CHART_AXES = 200
CHART_ELEMENTS = 10_000
CHART_POINTS = 100_000
CHART_TICKS = 1_000

# Images shown because they were saved: pixels of one, how many in one cell.
IMAGE_PIXELS = 16_000_000
IMAGES_PER_CELL = 20

# One result: longer text is cut with a mark that says so, other representations that are longer are left out with a word on stderr.
TEXT_CHARACTERS = 8 << 20
REPRESENTATION_CHARACTERS = 48 << 20

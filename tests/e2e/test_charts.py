"""Charts of figures through the published Python client: each kind arrives as its class, with its values (e2b.md C.3; case F 94)."""

import datetime

import pytest
from e2b_code_interpreter.charts import (
    BarChart, BoxAndWhiskerChart, Chart, ChartType, LineChart, PieChart, ScaleType, ScatterChart, SuperChart)

from conftest import serving
from interpreter import png, run, sandbox

HEAD = "import matplotlib.pyplot as plt, numpy as np, pandas as pd, datetime\n"


@pytest.fixture(scope="module")
def box():
    with serving(templates=("base", "code-interpreter-v1")), sandbox() as b:
        yield b


def chart(box, code, cls):
    """The chart of the one figure that the code shows, which must be of that class. It is a picture too."""
    (result,) = run(box, HEAD + code + "\nplt.show()").results
    assert not result.is_main_result and result.text.startswith("<Figure size") and png(result.png)[0] > 10
    assert {"text", "png", "chart"} == set(result.formats())
    assert type(result.chart) is cls, result.chart.to_dict()
    return result.chart


def named(elements):
    return {e.label: e.points for e in elements}


def test_line(box):
    got = chart(box, """
plt.plot([0, 1, 2], [0, 10, 40], label="ä"); plt.plot([0, 2], [5, 5.5], label="b")
plt.xlabel("Time (s)"); plt.ylabel("Speed (m/s)"); plt.title("Run")
plt.xticks([0, 1, 2]); plt.yticks([0, 20, 40], ["zero", "twenty", "forty"])""", LineChart)
    assert (got.type, got.title, got.x_label, got.y_label, got.x_unit, got.y_unit) == (ChartType.LINE, "Run", "Time (s)", "Speed (m/s)", "s", "m/s")
    assert (got.x_scale, got.y_scale) == (ScaleType.LINEAR, ScaleType.LINEAR)
    assert (got.x_ticks, got.x_tick_labels) == ([0.0, 1.0, 2.0], ["0", "1", "2"])
    assert (got.y_ticks, got.y_tick_labels) == ([0.0, 20.0, 40.0], ["zero", "twenty", "forty"])
    assert named(got.elements) == {"ä": [(0.0, 0.0), (1.0, 10.0), (2.0, 40.0)], "b": [(0.0, 5.0), (2.0, 5.5)]}
    assert all(type(v) is float for e in got.elements for p in e.points for v in p)
    assert all(type(v) is float for v in got.x_ticks + got.y_ticks)


def test_scatter(box):
    got = chart(box, "plt.scatter([1, 2], [3, 4], label='one'); plt.scatter([5], [6], label='two'); plt.xlabel('A')", ScatterChart)
    assert (got.type, got.title, got.x_label, got.y_label) == (ChartType.SCATTER, None, "A", None)
    assert named(got.elements) == {"one": [(1.0, 3.0), (2.0, 4.0)], "two": [(5.0, 6.0)]}


def test_bar(box):
    got = chart(box, "plt.bar(['Author A', 'Author B'], [100, 200], label='Books'); plt.ylabel('Sold (1000)')", BarChart)
    assert (got.type, got.y_label, got.y_unit) == (ChartType.BAR, "Sold (1000)", "1000")
    assert [(e.label, e.group, e.value) for e in got.elements] == [("Author A", "Books", 100), ("Author B", "Books", 200)]


def test_bars_across_and_in_groups(box):
    got = chart(box, "plt.barh(['a', 'b'], [1.5, -2], label='g')", BarChart)
    assert [(e.label, e.group, e.value) for e in got.elements] == [("a", "g", 1.5), ("b", "g", -2)]
    got = chart(box, """
x = np.arange(2)
plt.bar(x - 0.2, [1, 2], 0.4, label="men"); plt.bar(x + 0.2, [3, 4], 0.4, label="women"); plt.xticks(x, ["G1", "G2"])""", BarChart)
    assert [(e.label, e.group, e.value) for e in got.elements] == [("G1", "men", 1), ("G2", "men", 2), ("G1", "women", 3), ("G2", "women", 4)]


def test_pie(box):
    got = chart(box, "plt.pie([90, 10], labels=['No', 'No, in blue'], autopct='%1.1f%%', startangle=90); plt.title('Early?')", PieChart)
    assert (got.type, got.title) == (ChartType.PIE, "Early?")
    assert [(e.label, e.angle, e.radius) for e in got.elements] == [("No", 324, 1), ("No, in blue", 36, 1)]


def test_box_and_whisker(box):
    got = chart(box, """
plt.boxplot([[85, 90, 78, 92, 88], [95, 89, 84, 91, 85, 20, 89]]); plt.xticks([1, 2], ["A", "B"]); plt.ylabel("Score")""", BoxAndWhiskerChart)
    assert (got.type, got.y_label) == (ChartType.BOX_AND_WHISKER, "Score")
    assert [(e.label, e.min, e.first_quartile, e.median, e.third_quartile, e.max, e.outliers) for e in got.elements] == [
        ("A", 78.0, 85.0, 88.0, 90.0, 92.0, []), ("B", 84.0, 84.5, 89.0, 90.0, 95.0, [20.0])]


def test_superchart(box):
    got = chart(box, """
fig, axs = plt.subplots(1, 3); fig.suptitle("All")
axs[0].plot([1, 2], label="l"); axs[0].set_title("Line"); axs[1].scatter([1], [2]); axs[1].set_xlabel("X (u)")
axs[2].imshow([[1, 2]]); axs[2].set_title("Image")""", SuperChart)
    assert (got.type, got.title) == (ChartType.SUPERCHART, "All")
    line, scatter, unknown = got.elements
    assert (type(line), line.title, named(line.elements)) == (LineChart, "Line", {"l": [(0.0, 1.0), (1.0, 2.0)]})
    assert (type(scatter), scatter.x_unit, scatter.elements[0].points) == (ScatterChart, "u", [(1.0, 2.0)])
    assert (type(unknown), unknown.type, unknown.title, unknown.elements) == (Chart, ChartType.UNKNOWN, "Image", [])


def test_unknown(box):
    got = chart(box, "_, ax = plt.subplots(); ax.add_artist(plt.Circle((0, 0), 1)); plt.title('Circle')", Chart)
    assert (got.type, got.title, got.elements) == (ChartType.UNKNOWN, "Circle", [])


SCALES = {
    ScaleType.LOG: "'log'",
    ScaleType.SYMLOG: "'symlog'",
    ScaleType.LOGIT: "'logit'",
    ScaleType.ASINH: "'asinh'",
    ScaleType.FUNCTION: "'function', functions=(lambda v: v * 2, lambda v: v / 2)",
    ScaleType.FUNCTIONLOG: "'functionlog', functions=(lambda v: v * 2, lambda v: v / 2)",
}


@pytest.mark.parametrize("scale", SCALES, ids=lambda s: s.value)
def test_scales(box, scale):
    got = chart(box, f"plt.plot([1, 2], [0.1, 0.9]); plt.yscale({SCALES[scale]})", LineChart)
    assert (got.x_scale, got.y_scale) == (ScaleType.LINEAR, scale)
    assert got.elements[0].points == [(1.0, 0.1), (2.0, 0.9)] and len(got.y_ticks) == len(got.y_tick_labels)


def test_times_and_categories(box):
    got = chart(box, "plt.plot([datetime.date(2023, 9, d) for d in (1, 2)], ['low', 'high'])", LineChart)
    assert (got.x_scale, got.y_scale) == (ScaleType.DATETIME, ScaleType.CATEGORICAL)
    assert got.elements[0].points == [("2023-09-01T00:00:00", "low"), ("2023-09-02T00:00:00", "high")]
    assert got.y_tick_labels == ["low", "high"] and got.x_ticks and all(datetime.datetime.fromisoformat(t).year == 2023 for t in got.x_ticks)


def test_pandas_plots(box):
    got = chart(box, "pd.Series([1., 2.], index=pd.date_range('2024-02-28', periods=2), name='v').plot(legend=True)", LineChart)
    assert (got.x_scale, named(got.elements)) == (ScaleType.DATETIME, {"v": [("2024-02-28T00:00:00", 1.0), ("2024-02-29T00:00:00", 2.0)]})
    got = chart(box, "pd.DataFrame({'a': [1, 2], 'b': [3, 4]}, index=['x', 'y']).plot.bar()", BarChart)
    assert [(e.label, e.group, e.value) for e in got.elements] == [("x", "a", 1), ("y", "a", 2), ("x", "b", 3), ("y", "b", 4)]


def test_a_figure_without_data_has_no_chart_and_one_over_the_limit_neither(box):
    for code in ("plt.subplots()", "plt.plot(np.arange(1000000))"):
        (result,) = run(box, HEAD + code + ";\nplt.show()").results
        assert result.chart is None and png(result.png)[0] > 10 and result.text.startswith("<Figure")


def test_what_an_object_raises_costs_neither_its_text_nor_the_cell(box):
    execution = run(box, "class A:\n    def _repr_html_(self): raise ValueError('boo')\n    def __repr__(self): return 'still here'\nA()")
    (result,) = execution.results
    assert (execution.text, result.html) == ("still here", None) and "ValueError" in "".join(execution.logs.stderr)


def test_numbers_keep_their_value_on_the_way(box):
    (result,) = run(box, "[2**53 + 1, -2**63, 2**64 - 1, 0.1, 1e22, 5e-324, float('nan'), '\\0\\ud83d\\ude00']").results
    assert result.json == [2**53 + 1, -(2**63), 2**64 - 1, 0.1, 1e22, 5e-324, None, "\0😀"]
    (result,) = run(box, "import pandas as pd, decimal\npd.DataFrame({'a': [1.5, None], 'd': [decimal.Decimal('1.10'), 2**64], 'i': [float('inf'), 0.0]})").results
    assert result.data == {"a": [1.5, None], "d": ["1.10", str(2**64)], "i": ["Infinity", 0.0]}

"""`chart` of matplotlib figures, by value: every type and every scale of e2b.md C.3 (row F 94: charts for plt.show() and last-line figures)."""

import datetime

import pytest

HEAD = "import matplotlib.pyplot as plt, numpy as np, pandas as pd, datetime\n"


def chart(kernel, code):
    """The chart of the one figure that the code leaves."""
    return kernel.run(HEAD + code).chart


def points(element):
    return element["points"]


def test_line_with_labels_units_ticks(kernel):
    got = chart(kernel, """
plt.plot([0, 1, 2], [0, 10, 40], label="a")
plt.plot([0, 2], [5, 5.5], label="b")
plt.xlabel("Time (s)"); plt.ylabel("Speed (m/s)"); plt.title("Run")
plt.xticks([0, 1, 2]); plt.yticks([0, 20, 40], ["zero", "twenty", "forty"])
plt.show()""")
    assert got == {
        "type": "line", "title": "Run", "x_label": "Time (s)", "y_label": "Speed (m/s)", "x_unit": "s", "y_unit": "m/s",
        "x_ticks": [0.0, 1.0, 2.0], "x_tick_labels": ["0", "1", "2"], "x_scale": "linear",
        "y_ticks": [0.0, 20.0, 40.0], "y_tick_labels": ["zero", "twenty", "forty"], "y_scale": "linear",
        "elements": [{"label": "a", "points": [[0.0, 0.0], [1.0, 10.0], [2.0, 40.0]]}, {"label": "b", "points": [[0.0, 5.0], [2.0, 5.5]]}],
    }
    assert all(type(v) is float for e in got["elements"] for p in e["points"] for v in p)


def test_line_without_names_has_nulls(kernel):
    got = chart(kernel, "plt.plot([1, 2]); plt.show()")
    assert [got[k] for k in ("title", "x_label", "y_label", "x_unit", "y_unit")] == [None] * 5
    assert [e["label"] for e in got["elements"]] == [""]
    got = chart(kernel, "plt.plot([1, 2]); plt.plot([2, 3], label='named'); plt.plot([3, 4]); plt.show()")
    assert [e["label"] for e in got["elements"]] == ["Line 1", "named", "Line 3"]


@pytest.mark.parametrize("label, unit", [("T (s)", "s"), ("T (°C) ", "°C"), ("T", None), ("(x) of T", None), ("T ()", None), ("f(x) (a) (b)", "b"), ("T [s]", None)])
def test_unit_is_what_is_in_parentheses_at_the_end(kernel, label, unit):
    assert chart(kernel, f"plt.plot([1]); plt.xlabel({label!r}); plt.show()")["x_unit"] == unit


def test_scatter(kernel):
    got = chart(kernel, """
plt.scatter([1, 2, 3], [4, 5, 6], label="one"); plt.scatter(np.array([1.5]), np.array([2.5]), label="two")
plt.xlabel("A"); plt.ylabel("B"); plt.show()""")
    assert got["type"] == "scatter" and (got["x_label"], got["y_label"]) == ("A", "B")
    assert got["elements"] == [{"label": "one", "points": [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]}, {"label": "two", "points": [[1.5, 2.5]]}]


def test_markers_without_a_line_are_a_scatter_chart(kernel):
    got = chart(kernel, "plt.plot([1, 2], [3, 4], 'o'); plt.show()")
    assert got["type"] == "scatter" and points(got["elements"][0]) == [[1.0, 3.0], [2.0, 4.0]]


def test_points_and_their_fitted_line_are_one_scatter_chart(kernel):
    got = chart(kernel, "plt.scatter([1, 2, 3], [1, 2, 3], label='seen'); plt.plot([1, 3], [1, 3], label='fit'); plt.show()")
    assert got["type"] == "scatter" and [e["label"] for e in got["elements"]] == ["seen", "fit"]


def test_bar_vertical(kernel):
    got = chart(kernel, """
plt.bar(["Author A", "Author B"], [100, 200], label="Books sold")
plt.xlabel("Authors"); plt.ylabel("Number (1000)"); plt.title("Sales"); plt.show()""")
    assert got == {
        "type": "bar", "title": "Sales", "x_label": "Authors", "y_label": "Number (1000)", "x_unit": None, "y_unit": "1000",
        "elements": [{"label": "Author A", "group": "Books sold", "value": 100}, {"label": "Author B", "group": "Books sold", "value": 200}],
    }


def test_bar_horizontal(kernel):
    got = chart(kernel, "plt.barh(['a', 'b'], [1.5, -2], label='g'); plt.show()")
    assert got["elements"] == [{"label": "a", "group": "g", "value": 1.5}, {"label": "b", "group": "g", "value": -2.0}]


def test_bar_grouped_beside_each_other(kernel):
    got = chart(kernel, """
x = np.arange(3)
plt.bar(x - 0.2, [1, 2, 3], 0.4, label="men"); plt.bar(x + 0.2, [4, 5, 6], 0.4, label="women")
plt.xticks(x, ["G1", "G2", "G3"]); plt.legend(); plt.show()""")
    assert [(e["label"], e["group"], e["value"]) for e in got["elements"]] == [
        ("G1", "men", 1), ("G2", "men", 2), ("G3", "men", 3), ("G1", "women", 4), ("G2", "women", 5), ("G3", "women", 6)]


def test_bar_stacked_has_each_parts_own_height(kernel):
    got = chart(kernel, "plt.bar(['x'], [3], label='low'); plt.bar(['x'], [4], bottom=[3], label='high'); plt.show()")
    assert [(e["group"], e["value"]) for e in got["elements"]] == [("low", 3), ("high", 4)]


def test_bar_groups_without_labels_differ(kernel):
    got = chart(kernel, "plt.bar(['x'], [3]); plt.bar(['x'], [4], bottom=[3]); plt.show()")
    assert [e["group"] for e in got["elements"]] == ["Group 1", "Group 2"]
    assert chart(kernel, "plt.bar(['x'], [3]); plt.show()")["elements"] == [{"label": "x", "group": "", "value": 3}]


def test_bar_on_numbers_and_dates_is_labelled_by_place(kernel):
    got = chart(kernel, "plt.bar([2019, 2020.5], [1, 2]); plt.show()")
    assert [e["label"] for e in got["elements"]] == ["2019", "2020.5"]
    got = chart(kernel, "plt.bar([datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 2)], [1, 2]); plt.show()")
    assert [e["label"] for e in got["elements"]] == ["2024-01-01T00:00:00", "2024-01-02T00:00:00"]


def test_bar_with_error_bars_is_only_bars(kernel):
    got = chart(kernel, "plt.bar(['a', 'b'], [1, 2], yerr=[.1, .2], capsize=3); plt.show()")
    assert got["type"] == "bar" and len(got["elements"]) == 2


def test_histogram_is_bars(kernel):
    got = chart(kernel, "plt.hist([1, 1, 2, 4], bins=[0, 2, 4, 6], label='h'); plt.axvline(2, label='mean'); plt.show()")
    assert [(e["label"], e["group"], e["value"]) for e in got["elements"]] == [("1", "h", 2), ("3", "h", 1), ("5", "h", 1)]


def test_pie(kernel):
    got = chart(kernel, """
plt.xlabel("x"); plt.pie([90, 10], labels=["No", "No, in blue"], autopct="%1.1f%%", startangle=90, explode=[0, .1]); plt.title("Early?"); plt.show()""")
    assert got == {"type": "pie", "title": "Early?", "elements": [
        {"label": "No", "angle": 324.0, "radius": 1}, {"label": "No, in blue", "angle": 36.0, "radius": 1}]}


def test_pie_named_by_its_legend(kernel):
    got = chart(kernel, "plt.pie([1, 3], radius=2); plt.legend(['a', 'b']); plt.show()")
    assert got["elements"] == [{"label": "a", "angle": 90.0, "radius": 2}, {"label": "b", "angle": 270.0, "radius": 2}]


BOX_A = {"min": 78.0, "first_quartile": 85.0, "median": 88.0, "third_quartile": 90.0, "max": 92.0, "outliers": []}
BOX_B = {"min": 84.0, "first_quartile": 84.5, "median": 89.0, "third_quartile": 90.0, "max": 95.0, "outliers": [20.0]}
BOXES = "a, b = [85, 90, 78, 92, 88], [95, 89, 84, 91, 85, 20, 89]\n"


def boxes(kernel, code):
    got = chart(kernel, BOXES + code)
    assert got["type"] == "box_and_whisker"
    return [(e.pop("label"), e) for e in got["elements"]]


def test_box_and_whisker(kernel):
    assert boxes(kernel, "plt.boxplot([a, b]); plt.xticks([1, 2], ['A', 'B']); plt.ylabel('Score'); plt.show()") == [("A", BOX_A), ("B", BOX_B)]


@pytest.mark.parametrize("how", ["patch_artist=True", "notch=True", "showmeans=True, meanline=True", "showcaps=False", "showbox=False"])
def test_box_drawn_in_other_ways(kernel, how):
    assert [e for _, e in boxes(kernel, f"plt.boxplot([a, b], {how}); plt.show()")] == [BOX_A, BOX_B]


def test_box_horizontal(kernel):
    assert boxes(kernel, "plt.boxplot([a, b], vert=False); plt.yticks([1, 2], ['A', 'B']); plt.show()") == [("A", BOX_A), ("B", BOX_B)]


def test_box_without_fliers_shown(kernel):
    assert [e["outliers"] for _, e in boxes(kernel, "plt.boxplot([a, b], showfliers=False); plt.show()")] == [[], []]


def test_box_drawn_twice_at_one_place_is_one(kernel):
    got = boxes(kernel, "_, ax = plt.subplots(); ax.boxplot([a, b]); ax.boxplot([a, b], patch_artist=True); plt.show()")
    assert [e for _, e in got] == [BOX_A, BOX_B]


def test_box_of_pandas(kernel):
    got = boxes(kernel, "pd.DataFrame({'A': a, 'B': b[:5]}).plot.box(); plt.show()")
    assert got[0] == ("A", BOX_A) and got[1][0] == "B"
    got = boxes(kernel, "pd.DataFrame({'v': a + a, 'k': ['x'] * 5 + ['y'] * 5}).boxplot(column='v', by='k'); plt.show()")
    assert got == [("x", BOX_A), ("y", BOX_A)]


def test_box_cleared_leaves_nothing(kernel):
    got = chart(kernel, "_, ax = plt.subplots(); ax.boxplot([1, 2, 3]); ax.clear(); ax.plot([1, 2]); plt.show()")
    assert got["type"] == "line"


def test_superchart(kernel):
    got = chart(kernel, """
fig, axs = plt.subplots(2, 2); fig.suptitle("All")
axs[0, 0].plot([1, 2], label="l"); axs[0, 0].set_title("Line")
axs[0, 1].scatter([1], [2]); axs[0, 1].set_title("Dots"); axs[0, 1].set_xlabel("X (u)")
axs[1, 0].imshow([[1, 2], [3, 4]]); axs[1, 0].set_title("Image")
plt.show()""")
    assert (got["type"], got["title"]) == ("superchart", "All")
    assert [(e["type"], e["title"]) for e in got["elements"]] == [("line", "Line"), ("scatter", "Dots"), ("unknown", "Image")]
    assert got["elements"][1]["x_unit"] == "u" and points(got["elements"][0]["elements"][0]) == [[0.0, 1.0], [1.0, 2.0]]
    assert got["elements"][2] == {"type": "unknown", "title": "Image", "elements": []}


def test_twin_axes_share_the_label_of_the_common_axis(kernel):
    got = chart(kernel, """
fig, ax = plt.subplots(); ax.bar(["a", "b"], [1, 2], label="n"); ax.set_xlabel("What"); ax.set_ylabel("Count")
right = ax.twinx(); right.plot(["a", "b"], [0.1, 0.2], label="share"); right.set_ylabel("Share (%)"); plt.show()""")
    assert got["type"] == "superchart"
    bars, line = got["elements"]
    assert (bars["type"], bars["x_label"], bars["y_label"]) == ("bar", "What", "Count")
    assert (line["type"], line["x_label"], line["y_label"], line["y_unit"]) == ("line", "What", "Share (%)", "%")
    assert points(line["elements"][0]) == [["a", 0.1], ["b", 0.2]]


def test_bars_with_a_line_over_them_lose_neither(kernel):
    got = chart(kernel, "plt.bar([1, 2], [3, 4]); plt.plot([1, 2], [3.5, 4.5]); plt.show()")
    assert got["type"] == "superchart" and [e["type"] for e in got["elements"]] == ["bar", "line"]


def test_colorbar_does_not_count(kernel):
    got = chart(kernel, "s = plt.scatter([1, 2], [3, 4], c=[1, 2]); plt.colorbar(s); plt.show()")
    assert got["type"] == "scatter"


def test_inset_axes_count(kernel):
    got = chart(kernel, "_, ax = plt.subplots(); ax.plot([1, 2]); ax.inset_axes([.5, .5, .4, .4]).plot([3, 4]); plt.show()")
    assert got["type"] == "superchart" and points(got["elements"][1]["elements"][0])[0] == [0.0, 3.0]


@pytest.mark.parametrize("code", [
    "_, ax = plt.subplots(); ax.add_artist(plt.Circle((0, 0), 1)); plt.title('T'); plt.show()",
    "plt.imshow(np.zeros((3, 3))); plt.title('T'); plt.show()",
    "plt.contourf([[1, 2], [3, 4]]); plt.title('T'); plt.show()",
    "plt.violinplot([[1, 2, 3]], showextrema=False); plt.title('T'); plt.show()",
    "ax = plt.figure().add_subplot(projection='3d'); ax.plot([1, 2], [1, 2], [1, 2]); ax.set_title('T'); plt.show()",
    "plt.stackplot([1, 2], [1, 2], [3, 4]); plt.title('T'); plt.show()",
])
def test_unknown(kernel, code):
    assert chart(kernel, code) == {"type": "unknown", "title": "T", "elements": []}


@pytest.mark.parametrize("code", ["plt.subplots(2, 2); plt.show()", "plt.text(0, 0, 'x'); plt.show()"])
def test_empty_figures_have_a_picture_and_no_chart(kernel, code):
    shown = kernel.run(HEAD + code).display
    assert "e2b/chart" not in shown and shown["image/png"] and shown["text/plain"].startswith("<Figure size")


SCALES = {
    "log": ("plt.yscale('log')", [1, 10, 100]),
    "symlog": ("plt.yscale('symlog')", [-10, 0, 10]),
    "logit": ("plt.yscale('logit')", [0.1, 0.5, 0.9]),
    "asinh": ("plt.yscale('asinh')", [-10, 0, 10]),
    "function": ("plt.yscale('function', functions=(lambda v: v ** .5, lambda v: v ** 2))", [1, 4, 9]),
    "functionlog": ("plt.yscale('functionlog', functions=(lambda v: v * 2, lambda v: v / 2))", [1, 10, 100]),
    "linear": ("pass", [1, 2, 3]),
}


@pytest.mark.parametrize("scale", SCALES)
def test_scales(kernel, scale):
    how, values = SCALES[scale]
    got = chart(kernel, f"plt.plot([1, 2, 3], {values}); {how}; plt.show()")
    assert (got["x_scale"], got["y_scale"]) == ("linear", scale)
    assert points(got["elements"][0]) == [[x, y] for x, y in zip([1.0, 2.0, 3.0], values)]
    assert got["y_ticks"] and len(got["y_ticks"]) == len(got["y_tick_labels"])
    assert all(type(t) is float for t in got["y_ticks"])


def test_log_ticks_read_plainly(kernel):
    got = chart(kernel, "plt.plot([1, 2, 3], [1, 10, 1000]); plt.yscale('log'); plt.show()")
    assert list(zip(got["y_ticks"], got["y_tick_labels"])) == [(1.0, "10^{0}"), (10.0, "10^{1}"), (100.0, "10^{2}"), (1000.0, "10^{3}")]


DATES = {
    "date": ("[datetime.date(2023, 9, d) for d in (1, 2, 3)]", ["2023-09-01T00:00:00", "2023-09-02T00:00:00", "2023-09-03T00:00:00"]),
    "datetime": ("[datetime.datetime(2023, 9, 1, 12, 30, s) for s in (0, 1, 2)]", ["2023-09-01T12:30:00", "2023-09-01T12:30:01", "2023-09-01T12:30:02"]),
    "zone": ("[datetime.datetime(2023, 9, d, tzinfo=datetime.timezone(datetime.timedelta(hours=2))) for d in (1, 2, 3)]",
             ["2023-09-01T00:00:00+02:00", "2023-09-02T00:00:00+02:00", "2023-09-03T00:00:00+02:00"]),
    "numpy": ("np.array(['1999-12-31T23:59:59.5', '2000-01-01', '2000-01-02'], 'datetime64[ms]')", ["1999-12-31T23:59:59.500000", "2000-01-01T00:00:00", "2000-01-02T00:00:00"]),
    "pandas": ("pd.date_range('2024-02-28', periods=3)", ["2024-02-28T00:00:00", "2024-02-29T00:00:00", "2024-03-01T00:00:00"]),
}


@pytest.mark.parametrize("kind", DATES)
def test_datetime_axis(kernel, kind):
    code, expected = DATES[kind]
    got = chart(kernel, f"plt.plot({code}, [1, 2, 3]); plt.show()")
    assert (got["x_scale"], got["y_scale"]) == ("datetime", "linear")
    assert points(got["elements"][0]) == [[x, y] for x, y in zip(expected, [1.0, 2.0, 3.0])]
    assert got["x_ticks"] and all(datetime.datetime.fromisoformat(t) for t in got["x_ticks"])


def test_datetime_on_y_and_by_format_only(kernel):
    got = chart(kernel, "plt.scatter([1], [datetime.datetime(2020, 1, 1)]); plt.show()")
    assert (got["type"], got["y_scale"], points(got["elements"][0])) == ("scatter", "datetime", [[1.0, "2020-01-01T00:00:00"]])
    got = chart(kernel, """
import matplotlib.dates as md
plt.plot([18262.0, 18263.0], [1, 2]); plt.gca().xaxis.set_major_formatter(md.DateFormatter('%d.%m.%y')); plt.gca().xaxis.set_major_locator(md.DayLocator()); plt.show()""")
    assert (got["x_scale"], got["x_ticks"], got["x_tick_labels"]) == ("datetime", ["2020-01-01T00:00:00", "2020-01-02T00:00:00"], ["01.01.20", "02.01.20"])


def test_times_at_the_ends_of_the_calendar(kernel):
    got = kernel.run(HEAD + "from matplotlib.figure import Figure\nf = Figure(); f.add_subplot().plot(np.array(['0001-01-02', '9999-12-30'], 'datetime64[D]'), [1, 2]); f").data["e2b/chart"]
    assert points(got["elements"][0]) == [["0001-01-02T00:00:00", 1.0], ["9999-12-30T00:00:00", 2.0]]
    got = chart(kernel, "plt.plot([-1e9, 0.5], [1, 2]); plt.gca().xaxis_date(); plt.gca().set_xlim(0, 1); plt.show()")
    assert points(got["elements"][0]) == [[-1e9, 1.0], ["1970-01-01T12:00:00", 2.0]]


@pytest.mark.parametrize("freq, expected", [("D", ["2024-01-30T00:00:00", "2024-01-31T00:00:00", "2024-02-01T00:00:00"]), ("MS", ["2024-02-01T00:00:00", "2024-03-01T00:00:00", "2024-04-01T00:00:00"])])
def test_pandas_time_series(kernel, freq, expected):
    got = chart(kernel, f"pd.Series([1., 2., 3.], index=pd.date_range('2024-01-30', periods=3, freq={freq!r}), name='v').plot(legend=True); plt.show()")
    assert got["x_scale"] == "datetime" and got["elements"] == [{"label": "v", "points": [[x, y] for x, y in zip(expected, [1.0, 2.0, 3.0])]}]


def test_pandas_plots(kernel):
    frame = "f = pd.DataFrame({'a': [1, 2], 'b': [3, 4]}, index=['x', 'y'])\n"
    got = chart(kernel, frame + "f.plot.bar(title='T'); plt.show()")
    assert [(e["label"], e["group"], e["value"]) for e in got["elements"]] == [("x", "a", 1), ("y", "a", 2), ("x", "b", 3), ("y", "b", 4)]
    got = chart(kernel, frame + "f.plot.barh(stacked=True); plt.show()")
    assert [(e["label"], e["group"], e["value"]) for e in got["elements"]] == [("x", "a", 1), ("y", "a", 2), ("x", "b", 3), ("y", "b", 4)]
    got = chart(kernel, frame + "f.plot(); plt.show()")
    assert got["type"] == "line" and [(e["label"], [p[1] for p in e["points"]]) for e in got["elements"]] == [("a", [1.0, 2.0]), ("b", [3.0, 4.0])]
    got = chart(kernel, frame + "f.plot.scatter(x='a', y='b'); plt.show()")
    assert (got["type"], got["x_label"], points(got["elements"][0])) == ("scatter", "a", [[1.0, 3.0], [2.0, 4.0]])
    got = chart(kernel, frame + "f['a'].plot.pie(); plt.show()")
    assert [(e["label"], e["angle"]) for e in got["elements"]] == [("x", 120.0), ("y", 240.0)]


def test_categorical_axes(kernel):
    got = chart(kernel, "plt.plot([1, 2, 3], ['A', 'B', 'A']); plt.show()")
    assert (got["x_scale"], got["y_scale"]) == ("linear", "categorical")
    assert (got["y_ticks"], got["y_tick_labels"]) == (["A", "B"], ["A", "B"])
    assert points(got["elements"][0]) == [[1.0, "A"], [2.0, "B"], [3.0, "A"]]


def test_numbers_that_are_not_finite_are_null(kernel):
    got = chart(kernel, "plt.plot([1, 2, np.nan, 4], [1, np.nan, 3, np.inf]); plt.show()")
    assert points(got["elements"][0]) == [[1.0, 1.0], [2.0, None], [None, 3.0], [4.0, None]]
    got = chart(kernel, "plt.scatter(np.ma.array([1, 2], mask=[0, 1]), [3, 4]); plt.show()")
    assert points(got["elements"][0])[0] == [1.0, 3.0]
    got = chart(kernel, "plt.bar(['a', 'b'], [np.nan, 2]); plt.show()")
    assert [e["value"] for e in got["elements"]] == [None, 2]


def test_error_bars_stems_and_reference_lines(kernel):
    got = chart(kernel, "plt.errorbar([1, 2], [3, 4], yerr=.5, capsize=4, label='e'); plt.show()")
    assert got["type"] == "line" and got["elements"] == [{"label": "e", "points": [[1.0, 3.0], [2.0, 4.0]]}]
    got = chart(kernel, "plt.stem([1, 2], [3, 4], label='s'); plt.show()")
    assert got["elements"] == [{"label": "s", "points": [[1.0, 3.0], [2.0, 4.0]]}]
    got = chart(kernel, "plt.plot([0, 1], [0, 1], label='l'); plt.xlim(0, 2); plt.axhline(.5, label='half'); plt.axhline(0); plt.grid(True); plt.show()")
    assert [e["label"] for e in got["elements"]] == ["l", "half"] and points(got["elements"][1]) == [[0.0, 0.5], [2.0, 0.5]]


def test_figure_made_without_pyplot(kernel):
    got = kernel.run("from matplotlib.figure import Figure\nf = Figure(); f.add_subplot().plot([1, 2], label='x'); f")
    assert got.data["image/png"] and got.data["e2b/chart"]["elements"][0]["label"] == "x" and not got.displays


def test_figure_as_value_and_at_the_end_of_the_cell(kernel):
    got = kernel.run(HEAD + "plt.plot([1, 2])\n'text'")
    assert got.data["text/plain"] == "'text'" and got.chart["type"] == "line"
    got = kernel.run(HEAD + "fig, ax = plt.subplots(); ax.plot([1, 2]); plt.close(); fig")
    assert got.data["e2b/chart"]["type"] == "line" and not got.displays
    assert not kernel.run(HEAD + "fig, ax = plt.subplots(); ax.plot([1, 2]); plt.close()").displays


def test_figures_of_one_cell_in_order(kernel):
    got = kernel.run(HEAD + "for k in range(3):\n    plt.plot([k]); plt.title(str(k)); plt.show()")
    assert [d["e2b/chart"]["title"] for d in got.displays] == ["0", "1", "2"]


def test_a_million_points_have_a_picture_and_no_chart(kernel):
    shown = kernel.run(HEAD + "plt.plot(np.arange(1000000)); plt.show()").display
    assert shown["image/png"] and "e2b/chart" not in shown
    got = chart(kernel, "plt.plot(np.arange(100000)); plt.show()")
    assert len(points(got["elements"][0])) == 100000
    shown = kernel.run(HEAD + "plt.plot(np.arange(60000)); plt.plot(np.arange(60000)); plt.show()").display
    assert "e2b/chart" not in shown


def test_chosen_formats_come_with_png_and_chart(kernel):
    kernel.run("from matplotlib_inline.backend_inline import set_matplotlib_formats")
    shown = kernel.run(HEAD + "set_matplotlib_formats('svg', 'pdf', 'jpeg'); plt.plot([1, 2]); plt.show()").display
    assert set(shown) == {"text/plain", "image/png", "image/svg+xml", "application/pdf", "image/jpeg", "e2b/chart"}
    assert shown["image/svg+xml"].lstrip().startswith("<?xml") and shown["application/pdf"].startswith("JVBER")
    assert shown["image/jpeg"].startswith("/9j") and shown["image/png"].startswith("iVBORw0KGgo")
    shown = kernel.run(HEAD + "set_matplotlib_formats('png'); plt.plot([1, 2]); plt.show()").display
    assert set(shown) == {"text/plain", "image/png", "e2b/chart"}


def test_strange_figures_keep_picture_and_text(kernel):
    got = kernel.run(HEAD + """
from matplotlib.figure import Figure
class Odd(Figure):
    @property
    def axes(self):
        if bad: raise RuntimeError("no")
        return super().axes
class Plain(Figure): pass
bad = False
f, g = Odd(), Plain()
bad = True
g.add_subplot().plot([1, 2])
display(g)
f""")
    assert got.data["text/plain"] and "e2b/chart" not in got.data
    assert got.displays[0]["e2b/chart"]["type"] == "line"


def test_artists_that_lie_cost_only_their_own_chart(kernel):
    got = chart(kernel, """
from matplotlib.lines import Line2D
class Bad(Line2D):
    def get_xydata(self): raise RuntimeError("no")
_, ax = plt.subplots(); ax.bar(["a"], [1]); ax.add_line(Bad([0, 1], [0, 1])); plt.show()""")
    assert (got["type"], got["elements"]) == ("bar", [{"label": "a", "group": "", "value": 1}])
    got = chart(kernel, """
import matplotlib.ticker as mt
def bad(value, place): raise ValueError("no")
fig, ax = plt.subplots(); ax.plot([1, 2]); ax.xaxis.set_major_locator(mt.NullLocator()); plt.show()""")
    assert (got["x_ticks"], got["x_tick_labels"]) == ([], [])



def test_inline_magics(kernel):
    got = kernel.run("%matplotlib inline\n" + HEAD + "plt.plot([1, 2]); plt.show()")
    assert got.chart["type"] == "line" and got.display["image/png"]
    got = kernel.run("%config InlineBackend.figure_format = 'retina'\n" + HEAD + "plt.plot([1, 2]); plt.show()")
    assert got.chart["type"] == "line" and got.display["image/png"]
    got = kernel.run("%config InlineBackend.figure_format = 'svg'\n" + HEAD + "plt.plot([1, 2]); plt.show()")
    assert set(got.display) == {"text/plain", "image/png", "image/svg+xml", "e2b/chart"}
    kernel.run("%config InlineBackend.figure_format = 'png'")


def test_a_label_that_cannot_be_drawn_costs_only_the_picture(kernel):
    got = kernel.run(HEAD + "plt.plot([1, 2]); plt.title(r'$\\frac{$'); plt.show()")
    assert "image/png" not in got.display and got.display["text/plain"] and "ParseFatalException" in got.stderr or "ValueError" in got.stderr


SEABORN = HEAD + """
import seaborn as sns
f = pd.DataFrame({"k": ["x", "y", "x", "y"], "h": ["m", "m", "w", "w"], "v": [1., 2., 3., 4.]})
"""


def seaborn(kernel, code):
    """The chart of a seaborn figure."""
    if kernel.run("import importlib.util; importlib.util.find_spec('seaborn') is None").data["text/plain"] == "True":
        pytest.skip("seaborn is not installed")
    return kernel.run(SEABORN + code + "; plt.show()").chart


def test_seaborn_bars(kernel):
    got = seaborn(kernel, "sns.barplot(f, x='k', y='v', errorbar=None)")
    assert (got["type"], got["x_label"]) == ("bar", "k") and [(e["label"], e["value"]) for e in got["elements"]] == [("x", 2.0), ("y", 3.0)]
    got = seaborn(kernel, "sns.barplot(f, x='k', y='v', hue='h', errorbar=None)")
    assert [(e["label"], e["group"], e["value"]) for e in got["elements"]] == [("x", "m", 1.0), ("y", "m", 2.0), ("x", "w", 3.0), ("y", "w", 4.0)]
    got = seaborn(kernel, "sns.countplot(f, y='k')")
    assert [(e["label"], e["value"]) for e in got["elements"]] == [("x", 2.0), ("y", 2.0)]


def test_seaborn_boxes_lines_and_points(kernel):
    got = seaborn(kernel, "sns.boxplot(f, x='k', y='v')")
    assert got["type"] == "box_and_whisker" and [(e["label"], e["median"]) for e in got["elements"]] == [("x", 2.0), ("y", 3.0)]
    got = seaborn(kernel, "sns.boxplot(f, x='k', y='v', hue='h')")
    assert [(e["label"], e["median"]) for e in got["elements"]] == [("x", 1.0), ("y", 2.0), ("x", 3.0), ("y", 4.0)]
    got = seaborn(kernel, "sns.lineplot(x=[1, 2], y=[3, 4], label='l')")
    assert (got["type"], got["elements"]) == ("line", [{"label": "l", "points": [[1.0, 3.0], [2.0, 4.0]]}])
    got = seaborn(kernel, "sns.scatterplot(f, x='v', y='v')")
    assert got["type"] == "scatter" and len(got["elements"][0]["points"]) == 4
    got = seaborn(kernel, "sns.heatmap([[1, 2], [3, 4]])")
    assert got["type"] == "unknown"
    got = seaborn(kernel, "sns.histplot([1, 2, 2, 3], bins=2, kde=False)")
    assert got["type"] == "bar" and [e["value"] for e in got["elements"]] == [1, 3]

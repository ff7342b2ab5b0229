"""`data` of pandas frames and `json` of lists and dicts, by value (e2b.md C.3; row F 94: json only of objects and lists, data of frames)."""

import pytest

HEAD = "import pandas as pd, numpy as np, datetime, decimal, enum, uuid\n"


def data(kernel, code):
    """The data of the frame that the code ends with."""
    got = kernel.run(HEAD + code).data
    assert got["text/plain"]
    return got.get("e2b/data")


def json_of(kernel, code):
    """The json of the list or dict that the code ends with, "absent" when there is none."""
    got = kernel.run(HEAD + code).data
    assert got["text/plain"]
    return got.get("application/json", "absent")


FRAMES = {
    "ints": ("{'a': [1, 2, 3]}", {"a": [1, 2, 3]}),
    "missing": ("{'a': [1.5, np.nan], 'b': ['x', None]}", {"a": [1.5, None], "b": ["x", None]}),
    "infinite": ("{'a': [np.inf, -np.inf, 0.1]}", {"a": ["Infinity", "-Infinity", 0.1]}),
    "bool": ("{'a': [True, False]}", {"a": [True, False]}),
    "times": ("{'t': pd.to_datetime(['2024-01-31', None])}", {"t": ["2024-01-31T00:00:00", None]}),
    "nanoseconds": ("{'t': [pd.Timestamp('2024-01-31T12:00:00.000000001')]}", {"t": ["2024-01-31T12:00:00.000000001"]}),
    "fractions": ("{'t': np.array(['2024-01-31T12:00:00.5', '2024-01-31', 'NaT', '1969-12-31T23:59:59.25'], 'M8[ns]')}",
                  {"t": ["2024-01-31T12:00:00.500000", "2024-01-31T00:00:00", None, "1969-12-31T23:59:59.250000"]}),
    "zones": ("{'t': pd.to_datetime(['2024-01-31T10:00']).tz_localize('Europe/Paris')}", {"t": ["2024-01-31T10:00:00+01:00"]}),
    "date objects": ("{'t': [datetime.date(2024, 1, 31), datetime.time(1, 2)]}", {"t": ["2024-01-31", "01:02:00"]}),
    "durations": ("{'t': pd.to_timedelta(['1 days 01:02:03', None])}", {"t": ["P1DT1H2M3S", None]}),
    "decimal": ("{'d': [decimal.Decimal('1.10'), decimal.Decimal('NaN')]}", {"d": ["1.10", None]}),
    "category": ("{'c': pd.Categorical(['a', 'b', None])}", {"c": ["a", "b", None]}),
    "category of numbers": ("{'c': pd.Categorical([1, 2, 1])}", {"c": [1, 2, 1]}),
    "nullable": ("{'i': pd.array([1, None], 'Int64'), 'b': pd.array([True, None], 'boolean'), 's': pd.array(['x', None], 'string')}",
                 {"i": [1, None], "b": [True, None], "s": ["x", None]}),
    "periods": ("{'p': pd.period_range('2024-01', periods=2, freq='M')}", {"p": ["2024-01", "2024-02"]}),
    "intervals": ("{'i': pd.interval_range(0, 2)}", {"i": ["(0, 1]", "(1, 2]"]}),
    "big integers": ("{'n': [2**63, 2**64, -2**63 - 1, 7]}", {"n": [2**63, str(2**64), str(-2**63 - 1), 7]}),
    "unsigned": ("{'n': np.array([2**64 - 1], 'uint64')}", {"n": [2**64 - 1]}),
    "small floats": ("{'f': np.array([0.5, np.nan], 'float32')}", {"f": [0.5, None]}),
    "complex": ("{'z': [1 + 2j]}", {"z": ["(1+2j)"]}),
    "numpy scalars": ("{'o': pd.Series([np.int8(1), np.float32(.5), np.bool_(True), np.datetime64('2024-01-01'), np.str_('s')], dtype=object)}",
                      {"o": [1, 0.5, True, "2024-01-01", "s"]}),
    "nested": ("{'o': [[1, np.nan], {'k': (1, 2)}, {3}, np.array([1, 2])]}", {"o": [[1, None], {"k": [1, 2]}, [3], [1, 2]]}),
    "bytes": ("{'o': [b'abc', b'\\xff']}", {"o": ["abc", "\\xff"]}),
    "sparse": ("{'s': pd.arrays.SparseArray([0, 0, 1])}", {"s": [0, 0, 1]}),
    "enum and uuid": ("{'o': [uuid.UUID(int=1), enum.Enum('E', 'A')['A']]}", {"o": ["00000000-0000-0000-0000-000000000001", "E.A"]}),
    "no rows": ("{'a': []}", {"a": []}),
    "no columns": ("index=[1, 2]", {}),
}


@pytest.mark.parametrize("case", FRAMES)
def test_frame(kernel, case):
    code, expected = FRAMES[case]
    got = data(kernel, f"pd.DataFrame({code})")
    assert got == expected and list(map(type, sum(got.values(), []))) == list(map(type, sum(expected.values(), [])))


NAMES = {
    "numbers": ("[[1, 2]]", {"0": [1], "1": [2]}),
    "twice": ("[[1, 2, 3]], columns=['a', 'a', 'a']", {"a": [1], "a.1": [2], "a.2": [3]}),
    "twice and taken": ("[[1, 2, 3]], columns=['a', 'a.1', 'a']", {"a": [1], "a.1": [2], "a.2": [3]}),
    "number and text": ("[[1, 2]], columns=[1, '1']", {"1": [1], "1.1": [2]}),
    "levels": ("[[1, 2, 3]], columns=pd.MultiIndex.from_tuples([('a', 'x'), ('a', 'y'), ('b', '')])", {"a, x": [1], "a, y": [2], "b": [3]}),
    "times": ("[[1]], columns=pd.to_datetime(['2024-01-31'])", {"2024-01-31T00:00:00": [1]}),
}


@pytest.mark.parametrize("case", NAMES)
def test_frame_names(kernel, case):
    code, expected = NAMES[case]
    got = data(kernel, f"pd.DataFrame({code})")
    assert got == expected and list(got) == list(expected)


def test_frame_has_its_other_representations(kernel):
    got = kernel.run(HEAD + "pd.DataFrame({'a': [1]})").data
    assert set(got) == {"text/plain", "text/html", "e2b/data"} and "<table" in got["text/html"]
    got = kernel.run(HEAD + "display(pd.DataFrame({'a': [1]}))").display
    assert got["e2b/data"] == {"a": [1]}
    assert "e2b/data" not in kernel.run(HEAD + "pd.Series([1])").data


def test_frame_over_the_limit_has_no_data_and_its_text(kernel):
    assert len(data(kernel, "pd.DataFrame({'a': np.zeros(250000)})")["a"]) == 250000
    for frame in ("{'a': np.zeros(10000000)}", "{'a': np.zeros(125001), 'b': 1}", "np.zeros((2, 5001))", "{'a': ['x' * 1000] * 20000}", "{'a': [['y'] * 1000] * 1000}"):
        assert data(kernel, f"pd.DataFrame({frame})") is None


def test_frame_of_odd_objects(kernel):
    got = data(kernel, """
class Bad:
    def __str__(self): raise ValueError("no")
    __repr__ = lambda self: "bad"
class Good:
    def __str__(self): return "good"
loop = []; loop.append(loop)
frames = pd.DataFrame({"a": [Good()]}), pd.DataFrame({"a": [Bad()]}), pd.DataFrame({"a": [loop]})
frames[0]""")
    assert got == {"a": ["good"]}
    assert data(kernel, "frames[1]")["a"][0].startswith("<__main__.Bad object at 0x")
    assert data(kernel, "frames[2]") is None
    assert data(kernel, """
class Sub(pd.DataFrame):
    @property
    def columns(self): raise RuntimeError("no")
class Own(pd.DataFrame): pass
Own({"a": [1]})""") == {"a": [1]}


JSON = {
    "list": ("[1, 2.5, 'x', None, True]", [1, 2.5, "x", None, True]),
    "dict": ("{'a': {'b': [1]}}", {"a": {"b": [1]}}),
    "empty": ("{}", {}),
    "not finite": ("[float('nan'), float('inf'), np.float64('nan')]", [None, None, None]),
    "keys": ("{1: 1, 2.5: 2, None: 3, True: 4}", "absent"),
    "other keys": ("{1: 1, 2.5: 2, None: 3, False: 4, datetime.date(2024, 1, 31): 5}", {"1": 1, "2.5": 2, "null": 3, "false": 4, "2024-01-31": 5}),
    "colliding keys": ("{1: 1, '1': 2}", "absent"),
    "numpy": ("[np.int64(1), np.float32(.5), np.array([[1, 2], [3, 4]]), np.bool_(True), np.datetime64('2024-01-31T01:02:03')]",
              [1, 0.5, [[1, 2], [3, 4]], True, "2024-01-31T01:02:03"]),
    "times": ("[datetime.datetime(2024, 1, 31, 1, 2, 3), datetime.date(2024, 1, 31), datetime.time(1, 2)]", ["2024-01-31T01:02:03", "2024-01-31", "01:02:00"]),
    "tuple inside": ("[(1, 2)]", [[1, 2]]),
    "tuple": ("(1, 2)", "absent"),
    "set": ("[{1}]", "absent"),
    "bytes": ("[b'x']", "absent"),
    "decimal": ("[decimal.Decimal(1)]", "absent"),
    "object": ("[object()]", "absent"),
    "frame inside": ("[pd.DataFrame()]", "absent"),
    "64 bits": ("[2**64 - 1, -2**63]", [2**64 - 1, -2**63]),
    "over 64 bits": ("[2**64]", "absent"),
    "subclasses": ("__import__('collections').OrderedDict(a=__import__('collections').Counter('aab'))", {"a": {"a": 2, "b": 1}}),
    "enum, uuid": ("[enum.Enum('E', 'A')['A'], uuid.UUID(int=1)]", [1, "00000000-0000-0000-0000-000000000001"]),
    "numbers": ("7", "absent"),
    "text": ("'x'", "absent"),
}


@pytest.mark.parametrize("case", JSON)
def test_json(kernel, case):
    code, expected = JSON[case]
    if case == "keys":
        code, expected = "{1: 1, True: 2}", {"1": 2}
    assert json_of(kernel, code) == expected


def test_json_of_cycles_and_depth(kernel):
    assert json_of(kernel, "loop = [1]; loop.append(loop); loop") == "absent"
    assert json_of(kernel, "loop = {}; loop['x'] = loop; loop") == "absent"
    deep = "deep = []\nfor _ in range(50000): deep = [deep]\n"
    got = kernel.run(deep + "deep", fails=True)
    assert got.data["text/plain"]
    assert kernel.run("1").data["text/plain"] == "1"


def test_json_over_the_limit_has_its_text(kernel):
    assert len(json_of(kernel, "list(range(250000))")) == 250000
    for big in ("list(range(250001))", "[[1] * 500] * 500 + [2]", "[np.zeros(250001)]", "[np.zeros((600, 600))]", "{k: [k] for k in range(130000)}"):
        assert json_of(kernel, big) == "absent"
    assert json_of(kernel, "['x' * 20000000]") == "absent"


def test_json_objects_of_ipython_and_own_methods(kernel):
    got = kernel.run("from IPython.display import JSON\nJSON({'a': [1]})").data
    assert got["application/json"] == {"a": [1]}
    got = kernel.run("class L(list):\n    def _repr_json_(self): return {'own': 1}\nL([1, 2])").data
    assert got["application/json"] == {"own": 1} and got["text/plain"] == "[1, 2]"

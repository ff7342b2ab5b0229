"""What a kernel does before it is ready leaves nothing for the user to find, and what is faster than in plain ipykernel is still in order."""

import shutil

import pytest
from conftest import SOURCE

# Everything a cell can leave behind, as text that is the same in two kernels with the same past.
INVENTORY = """
import gc, linecache, os, sys, tempfile
def inventory():
    shell = get_ipython()
    history, display = shell.history_manager, shell.displayhook
    yield sorted(shell.user_ns), sorted(shell.user_ns_hidden), sorted(map(str, shell.user_ns['_dh']))[1:]
    yield shell.execution_count, In, Out, [shell.user_ns[n] for n in ('_', '__', '___', '_i', '_ii', '_iii')]
    yield history.input_hist_raw, history.db_input_cache, history.db_output_cache, dict(history.output_hist_reprs), history._i00
    yield display._, display.__, display.___, shell.last_execution_result, shell.last_execution_succeeded
    yield len(shell.compile._filename_map), [k for k, v in linecache.cache.items() if 'ipykernel_' in k and len(v[2]) < 9]
    yield tempfile.tempdir, [n for n in ('last_type', 'last_value', 'last_traceback') if hasattr(sys, n)], gc.isenabled()
    yield sys.stdout._written, sys.stderr._written, shell.payload_manager.read_payload()
list(inventory())"""


def value(answer):
    """The text of a cell's value."""
    return answer.data["text/plain"]


@pytest.fixture
def launchers(tmp_path):
    """Two that start the kernel: one tells on stderr how warming up went, the other does not warm up."""
    def launcher(name, warm_up):
        path = tmp_path / f"{name}.py"
        path.write_text(f"""
import sys
sys.path.insert(0, {str(SOURCE)!r})
import cubicle_kernel.warmup as warmup
plain = warmup.warm_up
warmup.warm_up = {warm_up}
from cubicle_kernel.app import KernelApp
sys.path.remove({str(SOURCE)!r})
KernelApp.launch_instance()
""")
        return path
    return launcher("warm", "lambda kernel: print('warm:', plain(kernel), file=sys.__stderr__)"), launcher("cold", "lambda kernel: None")


def test_it_leaves_no_trace(own_kernel, launchers):
    warm, cold = (own_kernel(launcher.stem, launcher=launcher) for launcher in launchers)
    answers = [kernel.run(INVENTORY) for kernel in (warm, cold)]
    assert "warm: True" in (warm.home / ".kernel.log").read_text()
    assert [a.count for a in answers] == [1, 1]
    assert value(answers[0]) == value(answers[1])


def test_it_runs_before_the_users_startup_files(own_kernel, home_root, request):
    home = home_root / f"{request.node.name[:40]}-own"
    startup = home / ".ipython/profile_default/startup"
    startup.mkdir(parents=True)
    (startup / "own.py").write_text("ran = []\nget_ipython().events.register('pre_execute', lambda: ran.append('pre'))\nget_ipython().events.register('post_execute', lambda: ran.append('post'))\n")
    kernel = own_kernel()
    assert value(kernel.run("ran")) == "['pre']"


def test_output_of_all_kinds_stays_in_order_and_is_there_at_the_end(kernel):
    for _ in range(20):
        answer = kernel.run("import sys\nfor i in range(50): print(i, file=(sys.stdout, sys.stderr)[i % 2])\n'end'")
        assert answer.stdout == "".join(f"{i}\n" for i in range(0, 50, 2))
        assert answer.stderr == "".join(f"{i}\n" for i in range(1, 50, 2))
        assert value(answer) == "'end'"


@pytest.mark.parametrize("flush", [False, True])
def test_output_of_threads_that_write_at_once_is_complete(kernel, flush):
    code = f"""
import sys, threading
def write(n):
    for i in range(100):
        sys.stdout.write(f'{{n}}:{{i}}\\n')
        if {flush}: sys.stdout.flush()
threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
for t in threads: t.start()
for t in threads: t.join()
"""
    assert sorted(kernel.run(code).stdout.split()) == sorted(f"{n}:{i}" for n in range(8) for i in range(100))


def test_subshells_are_said_to_be_missing(kernel):
    assert "subshells" not in str(kernel.client.kernel_info(reply=True, timeout=60)["content"].get("supported_features"))


def test_what_it_starts_without_is_there_for_who_asks(own_kernel):
    kernel = own_kernel()
    heavy = "jupyter_client.manager jupyter_client.provisioning jupyter_client.blocking dateutil"
    assert value(kernel.run(f"import sys; [n for n in {heavy.split()!r} if n in sys.modules]")) == "[]"
    assert value(kernel.run("import jupyter_client; jupyter_client.__version__ == jupyter_client._version.__version__")) == "True"
    assert value(kernel.run("jupyter_client.KernelManager.__module__, jupyter_client.write_connection_file.__module__")) == "('jupyter_client.manager', 'jupyter_client.connect')"
    assert value(kernel.run("from jupyter_client import BlockingKernelClient, session; import dateutil.parser; dateutil.parser.parse('1 May 2020').month")) == "5"
    assert value(kernel.run("import gc; gc.isenabled()")) == "True"


def test_dates_of_all_forms_are_read(own_kernel):
    kernel = own_kernel()
    client = kernel.client
    for date in ("2026-11-30T03:15:15.180535Z", "2026-11-30T03:15:15+01:00", "2026-11-30T03:15:15", "2026-11-30T03:15:15.1+00:00", "2026-99-99T03:15:15Z", "no date"):
        message = client.session.msg("execute_request", {"code": "1", "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False})
        message["header"]["date"] = date
        client.shell_channel.send(message)
        if "99" in date:
            continue  # ipykernel drops it
        assert kernel.finish(message["header"]["msg_id"]).status == "ok", date


def test_additions_that_break_leave_plain_ipykernel(own_kernel, tmp_path):
    """Here with a jupyter_client that is not as they expect it."""
    shutil.copy(SOURCE / "launch.py", tmp_path)
    shutil.copytree(SOURCE / "cubicle_kernel", tmp_path / "cubicle_kernel")
    lean = tmp_path / "cubicle_kernel/lean.py"
    expected = 'write_connection_file="connect"'
    assert expected in lean.read_text()
    lean.write_text(lean.read_text().replace(expected, 'write_connection_file="elsewhere"'))
    kernel = own_kernel(launcher=tmp_path / "launch.py")
    assert value(kernel.run("import dateutil.parser, jupyter_client\ndateutil.parser.parse('Jan 1 2001').year, jupyter_client.KernelManager.__name__")) == "(2001, 'KernelManager')"
    assert value(kernel.run("type(get_ipython().kernel).__module__")) == "'ipykernel.ipkernel'"
    assert "jupyter_client.elsewhere" in (kernel.home / ".kernel.log").read_text()

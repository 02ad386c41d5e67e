"""The command line: mistakes are sentences and exit code 2, each setting is an option, secrets are hidden."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from streamloop.cli import main as cli
from streamloop.cli.logs import JsonFormatter, TextFormatter, set_up_logging
from streamloop.settings import Settings
from streamloop.settings.describe import settings_in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECRET = "hunter2-very-secret"
_numbers = count()

# A loop as the command line knows it: real settings, and a run that only says how it was called.
DOUBLE = """
import types
from streamloop.errors import ConfigurationError
from streamloop.settings import Settings

class Loop:
    def __init__(self, **keywords):
        self.keywords, self.code, self.error = keywords, 0, None
        self.problems = []
        self.overrides, self.config = {}, None

    def configure(self, overrides, *, config=None):
        self.overrides, self.config = dict(overrides), config

    def load_settings(self):
        return Settings.load(self.keywords, None, self.config, command_line=self.overrides)

    def consumer_settings(self):
        return [self.load_settings().settings.for_consumer("charge", {"concurrency": 7})]

    def run(
        self, *, max_messages=None, max_runtime=None, until_end=False, handle_signals=True, ends_process=False
    ):
        assert ends_process  # nothing else runs in the process
        if self.error is not None:
            raise self.error
        return types.SimpleNamespace(
            exit_code=self.code, reason=f"ran {max_messages} {max_runtime} {until_end} {handle_signals}"
        )

    def check(self, timeout=10.0):
        self.waited = timeout
        return types.SimpleNamespace(ok=not self.problems, problems=self.problems)
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a module into the working directory; returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", os.getcwd())])
    for name in [name for name in os.environ if name.startswith("STREAMLOOP_")]:
        monkeypatch.delenv(name)

    def write(text: str) -> str:
        name = f"cli_app_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(DOUBLE + textwrap.dedent(text), encoding="utf-8")
        return name

    return write


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[int, Result]]]:
    """Call the command line in this process; returns its exit code and what it printed."""

    monkeypatch.setattr(cli, "leave", sys.exit)
    before = logging.root.handlers[:], logging.root.level

    def call(*arguments: str) -> tuple[int, Result]:
        result = CliRunner().invoke(cli.main, arguments, prog_name="streamloop", catch_exceptions=True)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result.exit_code, result

    yield call
    logging.root.handlers[:], level = before[0], before[1]
    logging.root.setLevel(level)


def said(result: Any) -> str:
    """Why the loop ended: the message of the last line."""
    message: str = json.loads(result.stderr.splitlines()[-1])["message"]
    return message


class TestRun:
    def test_options_and_bounds_reach_the_loop(self, app: Any, invoke: Any) -> None:
        name = app("loop = Loop(group='billing')")
        code, result = invoke(
            *("run", f"{name}:loop", "--brokers", "a:1", "--group", "other"),
            *("--no-dead-letter", "--create-topics", "--high-watermark-bytes", "8MiB"),
            *("--topic", "orders=orders-v2", "--topic", "x=y"),
            *("--set", "kafka.consumer.debug=cgrp,topic", "--set", "consumers.charge.timeout=5s"),
            *("--max-messages", "5", "--max-runtime", "2m", "--until-end"),
        )
        assert (code, said(result)) == (0, "ran 5 120.0 True True")
        loop = sys.modules[name].loop
        assert loop.overrides == {
            "brokers": "a:1",
            "group": "other",
            "dead_letter": False,
            "create_topics": True,
            "topics": {"orders": "orders-v2", "x": "y"},
            "kafka.consumer.debug": "cgrp,topic",
            "consumers.charge.timeout": "5s",
            "high_watermark_bytes": "8MiB",
        }
        loaded = loop.load_settings()
        assert (loaded.settings.group, loaded.origin("group")) == ("other", "command line option --group")
        assert loaded.origin("topics") == "command line option --topic"

    def test_without_bounds_there_are_none(self, app: Any, invoke: Any) -> None:
        code, result = invoke("run", f"{app('loop = Loop()')}:loop")
        assert (code, said(result)) == (0, "ran None None False True")

    def test_the_last_line_says_why_it_ended_in_the_format_of_the_log(self, app: Any, invoke: Any) -> None:
        name = app("loop = Loop(group='billing'); loop.code = 3")
        _, result = invoke("run", f"{name}:loop", "--log-format", "json", "--log-level", "ERROR")
        line = json.loads(result.stderr.splitlines()[-1])
        assert (line["kind"], line["exit_code"], line["level"]) == ("ended", 3, "ERROR")
        assert (line["group"], line["message"]) == ("billing", "ran None None False True")
        _, result = invoke("run", f"{name}:loop", "--log-format", "text")
        assert result.stderr == "ran None None False True\n"

    @pytest.mark.parametrize("code", [0, 1, 3, 70])
    def test_the_exit_code_is_the_loop_s(self, app: Any, invoke: Any, code: int) -> None:
        assert invoke("run", f"{app(f'loop = Loop(); loop.code = {code}')}:loop")[0] == code

    def test_a_wrong_setting_is_a_sentence_and_exit_code_2(self, app: Any, invoke: Any) -> None:
        code, result = invoke("run", f"{app('loop = Loop()')}:loop", "--timeout", "soon")
        assert code == 2
        assert result.stderr.startswith("timeout is 'soon' (command line option --timeout): give seconds")
        assert "Traceback" not in result.output

    def test_an_error_of_ours_while_it_runs_is_a_sentence_with_its_exit_code(
        self, app: Any, invoke: Any
    ) -> None:
        name = app("loop = Loop(); loop.error = ConfigurationError('Topic orders is missing.')")
        code, result = invoke("run", f"{name}:loop")
        assert (code, said(result)) == (2, "Topic orders is missing.")

    def test_an_unexpected_error_is_logged_with_its_traceback(self, app: Any, invoke: Any) -> None:
        code, result = invoke(
            "run", f"{app('loop = Loop(); loop.error = OSError(7)')}:loop", "--log-format", "json"
        )
        assert code == 1
        line = json.loads(result.stderr.splitlines()[0])
        assert line["level"] == "ERROR"
        assert "OSError: 7" in line["exception"]

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--nosuch", "1"), "--nosuch"),
            (("--max-messages", "0"), "--max-messages"),
            (("--max-runtime", "soon"), "'soon': give seconds"),
            (("--set", "timeout"), "--set needs NAME=VALUE"),
            (("--topic", "=x"), "--topic needs OLD=NEW"),
            (
                ("--set", "tmeout=1"),
                "option --set tmeout is not a setting: did you mean --set timeout?",
            ),
            (("--set", "timeout=x"), "timeout is 'x' (command line option --set timeout)"),
            (("--config", "nowhere.yaml"), "The settings file nowhere.yaml can't be read"),
        ],
    )
    def test_wrong_options_end_with_2(
        self, app: Any, invoke: Any, arguments: tuple[str, ...], words: str
    ) -> None:
        code, result = invoke("run", f"{app('loop = Loop()')}:loop", *arguments)
        assert code == 2
        assert words in result.stderr

    def test_a_malformed_secret_is_not_repeated(self, app: Any, invoke: Any) -> None:
        code, result = invoke("run", f"{app('loop = Loop()')}:loop", "--set", f"sasl_password:{SECRET}")
        assert code == 2
        assert SECRET not in result.output


class TestTarget:
    @pytest.mark.parametrize(
        ("target", "words"),
        [
            ("app", "'app' names no loop. Name the loop as module:loop"),
            ("app:", "names no loop"),
            (":loop", "names no loop"),
            ("my-app:loop", "names no loop"),
            ("src/app.py:loop", "is a file. Name the module: 'src.app:loop'"),
            ("app.py", "is a file. Name the module: 'app:loop'"),
            ("no_such_module_here:loop", "There is no module 'no_such_module_here', neither in "),
            ("json.nothing:loop", "There is no module 'json.nothing'"),
        ],
    )
    def test_a_target_that_names_nothing_is_explained(
        self, app: Any, invoke: Any, target: str, words: str
    ) -> None:
        code, result = invoke("run", target)
        assert code == 2
        assert words in result.stderr
        assert "Traceback" not in result.output

    def test_a_missing_name_offers_the_loop_that_is_there(self, app: Any, invoke: Any) -> None:
        name = app("billing = Loop()")
        code, result = invoke("run", f"{name}:biling")
        assert (code, result.stderr) == (
            2,
            f"The module {name!r} has no 'biling'. Did you mean {name}:billing?\n",
        )
        assert f"It has {name}:billing." in invoke("run", f"{name}:zzz")[1].stderr

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("loop = 5", "is a value of type int, not a StreamLoop. Name the loop"),
            ("loop = Loop", "is the class Loop, not a StreamLoop."),
            ("def loop(): ...\nother = Loop()", "is the function loop, not a StreamLoop. It has "),
        ],
    )
    def test_what_is_no_loop_is_named(self, app: Any, invoke: Any, text: str, words: str) -> None:
        code, result = invoke("run", f"{app(text)}:loop")
        assert code == 2
        assert words in result.stderr

    def test_an_error_in_the_user_s_module_shows_its_own_frames_only(self, app: Any, invoke: Any) -> None:
        name = app("def connect():\n    raise KeyError('DATABASE')\n\nconnect()\n")
        code, result = invoke("run", f"{name}:loop")
        assert code == 2
        assert f"{name}.py" in result.stderr
        assert "in connect" in result.stderr
        assert "importlib" not in result.stderr
        assert "target.py" not in result.stderr
        assert result.stderr.endswith(f"The module {name!r} can't be imported: KeyError: 'DATABASE'\n")

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("import no_such_dependency", "can't be imported: ModuleNotFoundError: No module named"),
            ("def broken(:", "SyntaxError"),
            ("raise SystemExit(3)", "it ended the program (SystemExit 3)"),
        ],
    )
    def test_a_module_that_can_t_be_imported_is_explained(
        self, app: Any, invoke: Any, text: str, words: str
    ) -> None:
        code, result = invoke("run", f"{app(text)}:loop")
        assert code == 2
        assert words in result.stderr

    def test_a_mistake_in_a_declaration_names_its_line(self, app: Any, invoke: Any) -> None:
        name = app("loop = Loop()\nraise ConfigurationError('Topic orders is in two consumers.')")
        code, result = invoke("run", f"{name}:loop")
        assert code == 2
        line = len(DOUBLE.splitlines()) + 2
        assert result.stderr == f"{name}.py:{line}: Topic orders is in two consumers.\n"

    def test_a_loop_inside_an_object_is_found(self, app: Any, invoke: Any) -> None:
        assert (
            invoke("run", f"{app('import types; box = types.SimpleNamespace(loop=Loop())')}:box.loop")[0] == 0
        )


class TestCheck:
    def test_ready(self, app: Any, invoke: Any) -> None:
        name = app("loop = Loop()")
        code, result = invoke("check", f"{name}:loop")
        assert (code, result.stdout) == (0, "Ready to run.\n")
        assert sys.modules[name].loop.waited == 10.0
        invoke("check", f"{name}:loop", "--wait", "500ms")
        assert sys.modules[name].loop.waited == 0.5

    def test_problems_end_with_2(self, app: Any, invoke: Any) -> None:
        name = app("loop = Loop(); loop.problems = ['Topic orders is missing.', 'No broker answered.']")
        code, result = invoke("check", f"{name}:loop")
        assert code == 2
        assert result.stderr.splitlines() == [
            "Topic orders is missing.",
            "No broker answered.",
            "Not ready to run: see above.",
        ]


class TestConfig:
    def test_it_prints_values_and_origins(
        self, app: Any, invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app("")
        monkeypatch.setenv("STREAMLOOP_TIMEOUT", "90s")
        (tmp_path / "streamloop.yaml").write_text("group: billing\n")
        code, result = invoke("config", "--brokers", "a:1")
        assert code == 0
        lines = [line.split(maxsplit=2) for line in result.stdout.splitlines()]
        assert lines[0] == ["settings", "file:", "streamloop.yaml"]
        assert ["brokers", "a:1", "command line option --brokers"] in lines
        assert ["timeout", "90s", "environment variable STREAMLOOP_TIMEOUT"] in lines
        assert ["group", "billing", "streamloop.yaml:1"] in lines
        assert ["high_watermark_bytes", "64MiB", "default"] in lines

    def test_with_a_loop_it_knows_its_keywords_and_consumers(self, app: Any, invoke: Any) -> None:
        name = app("loop = Loop(group='billing')")
        code, result = invoke("config", f"{name}:loop", "--json")
        assert code == 0
        shown = json.loads(result.stdout)
        assert shown["group"] == {"value": "billing", "origin": "keyword group"}
        assert shown["consumers.charge.concurrency"]["value"] == 7
        assert shown["timeout"] == {"value": 30.0, "origin": "default"}

    def test_secrets_are_masked(self, app: Any, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        app("")
        monkeypatch.setenv("STREAMLOOP_SASL_PASSWORD", SECRET)
        monkeypatch.setenv("STREAMLOOP_KAFKA__COMMON__SSL_KEYSTORE_PASSWORD", SECRET)
        for arguments in ((), ("--json",)):
            code, result = invoke("config", *arguments)
            assert code == 0
            assert SECRET not in result.output
            assert result.stdout.count("**********") == 2

    def test_a_property_that_librdkafka_does_not_know_ends_with_2(self, app: Any, invoke: Any) -> None:
        app("")
        code, result = invoke("config", "--set", "kafka.common.sasl.pasword=" + SECRET)
        assert code == 2
        assert "did you mean sasl.password?" in result.stderr
        assert SECRET not in result.output

    def test_the_schema(self, app: Any, invoke: Any) -> None:
        app("")
        code, result = invoke("config", "--schema")
        assert code == 0
        assert json.loads(result.stdout)["properties"]["brokers"]

    def test_every_setting_is_an_option_of_every_command(self, invoke: Any) -> None:
        for command in (cli.run, cli.check, cli.config):
            named = {name for parameter in command.params for name in parameter.opts}
            missing = [name for name in settings_in_order() if "--" + name.replace("_", "-") not in named]
            assert missing == ["topics"]
            assert {"--topic", "--set", "--config"} <= named


class TestProcess:
    """In a process of its own, as a user starts it."""

    def streamloop(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        env = {name: value for name, value in os.environ.items() if not name.startswith("STREAMLOOP_")}
        env["PYTHONPATH"] = root
        return subprocess.run(
            [sys.executable, "-m", "streamloop.cli.main", *arguments],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def test_version(self, tmp_path: Path) -> None:
        done = self.streamloop(tmp_path, "version")
        assert done.returncode == 0
        assert [line.split()[0] for line in done.stdout.splitlines()] == [
            "streamloop",
            "python",
            "confluent-kafka",
            "librdkafka",
        ]
        assert all(line.split()[1][0].isdigit() for line in done.stdout.splitlines())

    def test_H2_a_thread_that_never_ends_does_not_keep_the_process(self, app: Any, tmp_path: Path) -> None:
        name = app(
            """
            import logging, threading
            class Stuck(Loop):
                def run(self, **bounds):
                    threading.Thread(target=threading.Event().wait).start()
                    logging.getLogger("app").warning("last words", extra={"partition": 3})
                    return super().run(**bounds)
            loop = Stuck()
            loop.code = 3
            """
        )
        done = self.streamloop(tmp_path, "run", f"{name}:loop")
        assert done.returncode == 3
        first, second = done.stderr.splitlines()
        assert json.loads(first) | {
            "message": "last words",
            "partition": 3,
            "level": "WARNING",
        } == json.loads(first)
        assert json.loads(second)["message"] == "ran None None False True"

    def test_a_user_s_mistake_is_no_traceback(self, tmp_path: Path) -> None:
        done = self.streamloop(tmp_path, "run", "no_such_module:loop")
        assert done.returncode == 2
        assert "There is no module 'no_such_module'" in done.stderr
        assert "Traceback" not in done.stderr


class TestLogs:
    def record(self, **extra: object) -> logging.LogRecord:
        try:
            raise ValueError("bad")
        except ValueError:
            return logging.getLogger("streamloop.x").makeRecord(
                "streamloop.x", logging.WARNING, "f", 1, "held %s", ("p0",), sys.exc_info(), extra=dict(extra)
            )

    def test_json_has_one_line_with_what_was_given(self) -> None:
        line = JsonFormatter().format(self.record(partition=3, key=b"\xff", why=object))
        assert "\n" not in line
        shown = json.loads(line)
        assert (shown["level"], shown["logger"], shown["message"]) == ("WARNING", "streamloop.x", "held p0")
        assert (shown["partition"], shown["key"]) == (3, "b'\\xff'")
        assert "ValueError: bad" in shown["exception"]
        assert shown["time"].endswith("Z")

    def test_text_has_what_was_given_behind_the_message(self) -> None:
        first, *rest = TextFormatter().format(self.record(partition=3)).splitlines()
        assert first.endswith("WARNING streamloop.x: held p0  partition=3")
        assert rest[-1] == "    ValueError: bad"

    @pytest.mark.parametrize(
        ("chosen", "formatter"), [("text", TextFormatter), ("json", JsonFormatter), ("auto", JsonFormatter)]
    )
    def test_the_format_is_the_setting_s(
        self, invoke: Any, monkeypatch: pytest.MonkeyPatch, chosen: str, formatter: type
    ) -> None:
        set_up_logging(Settings.load({"log_format": chosen, "log_level": "error"}, {}).settings)
        assert isinstance(logging.root.handlers[0].formatter, formatter)
        assert logging.root.level == logging.ERROR

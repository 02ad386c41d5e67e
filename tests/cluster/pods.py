"""Pods of a rendered chart as processes of this machine: what a kubelet would run, with what it would give.

Command line, environment, mounted files, ports and probes are the chart's; what the image brings (entry
point, environment, working directory) is read from the Dockerfile. Three things can't be the pod's own here,
and others stand in their places wherever its texts name them: folders of volumes, the addresses that it
listens on (several pods share one machine), and the command `streamloop`, which is this project under this
Python.

What calls it: test_pods.py. It ends only processes that it started.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.realkafka.members import ROOT, Member
from tests.realkafka.node import HOST, free_ports
from tests.tools.program import Answer, request

Object = dict[str, Any]
LISTENS = re.compile(r"\b(?:0\.0\.0\.0|127\.0\.0\.1):(\d+)\b")


class Image:
    """What the Dockerfile's last stage says."""

    def __init__(self, dockerfile: Path) -> None:
        text = re.sub(r"\\\n", " ", dockerfile.read_text(encoding="utf-8"))
        lines = [line.split(None, 1) for line in text.splitlines() if line.strip() and line[0] != "#"]
        last = max(number for number, line in enumerate(lines) if line[0] == "FROM")
        found = lines[last:]
        self.entry_point: list[str] = next(
            json.loads(rest) for word, rest in reversed(found) if word == "ENTRYPOINT"
        )
        self.command: list[str] = next(
            (json.loads(rest) for word, rest in reversed(found) if word == "CMD"), []
        )
        self.folder: str = next((rest for word, rest in reversed(found) if word == "WORKDIR"), "/")
        self.environment: dict[str, str] = {}
        for word, rest in found:
            if word == "ENV":
                self.environment |= dict(part.split("=", 1) for part in shlex.split(rest))


class Pod:
    """One pod: made by Node.start()."""

    def __init__(self, name: str, spec: Object, member: Member, ports: Mapping[int, int]) -> None:
        self.name = name
        self.member = member
        self._spec = spec
        self._container = spec["containers"][0]
        self._ports = ports

    def __repr__(self) -> str:
        return f"<Pod {self.name} {self.member!r}>"

    def port(self, number: int) -> int:
        """Where this pod serves what the chart has on this port."""
        return self._ports[number]

    def probe(self, kind: str) -> Answer | None:
        """What the probe (startup, readiness, liveness) gets, as rendered. None: no answer in its time."""
        probe = self._container[f"{kind}Probe"]
        port = probe["httpGet"]["port"]
        if isinstance(port, str):
            [port] = [each["containerPort"] for each in self._container["ports"] if each["name"] == port]
        return request(
            f"http://{HOST}:{self._ports[port]}{probe['httpGet']['path']}",
            seconds=probe["timeoutSeconds"],
        )

    def passes(self, kind: str) -> bool:
        """Whether the kubelet would count that as a success."""
        answer = self.probe(kind)
        return answer is not None and 200 <= answer.status < 400

    def delete(self) -> None:
        """SIGTERM, as the kubelet sends it at once: the chart has no preStop by default."""
        assert "preStop" not in self._container.get("lifecycle", {}), "a preStop would have to be run first"
        self.member.terminate()

    def gone(self) -> int:
        """Its exit code, once it has ended. AssertionError when the grace period is over before: SIGKILL."""
        return self.member.wait(self._spec["terminationGracePeriodSeconds"])


class Node:
    """Runs pods. secrets: by name, what is in them. folder: where their volumes and working folders are."""

    def __init__(
        self,
        objects: Sequence[Object],
        image: Image,
        folder: Path,
        *,
        code: Path,
        secrets: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._maps = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ConfigMap"}
        self._image = image
        self._folder = folder
        self._code = code
        self._secrets = secrets
        self._pods: list[Pod] = []

    def start(self, template: Object, name: str, *, command: Sequence[str] | None = None) -> Pod:
        """Run the pod's container. command: another one in its place, such as a `kubectl exec` would run."""
        spec = template["spec"]
        [container] = spec["containers"]
        home = self._folder / f"{len(self._pods)}-{name}"  # a pod of a StatefulSet comes back by its name
        home.mkdir(parents=True)
        for file in self._code.glob("*.py"):
            (home / file.name).write_bytes(file.read_bytes())
        moved = _Moved(self._mounts(spec, container, home), self._listening(container, spec))
        for volume in spec.get("volumes", ()):
            self._fill(volume, home / "volumes" / volume["name"], moved)
        environment = self._environment(template, container, name, moved)
        words = self._argv(container, command)
        argv = self._here([moved.text(_expanded(word, environment)) for word in words])
        member = Member(name, argv, home, environment)
        pod = Pod(name, spec, member, moved.ports)
        self._pods.append(pod)
        return pod

    def end(self) -> None:
        """Kill what still runs."""
        for pod in self._pods:
            pod.member.kill()

    def transcript(self) -> str:
        """What each pod printed."""
        return "\n".join("\n".join([f"--- {pod!r}", *pod.member.lines]) for pod in self._pods)

    def _argv(self, container: Object, command: Sequence[str] | None) -> list[str]:
        own = list(command or ())
        if not own:
            entry = container.get("command") or self._image.entry_point
            arguments = container.get("args") or ([] if container.get("command") else self._image.command)
            own = [*entry, *arguments]
        return own

    def _here(self, words: list[str]) -> list[str]:
        """The same with the programs of this Python: process 1 of the image, and streamloop."""
        if Path(words[0]).name == "dumb-init":
            own = words.index("--") + 1
            return [str(Path(sys.executable).parent / "dumb-init"), *words[1:own], *self._here(words[own:])]
        if Path(words[0]).name == "streamloop":
            return [sys.executable, "-m", "streamloop.cli.main", *words[1:]]
        return words

    def _environment(self, template: Object, container: Object, name: str, moved: "_Moved") -> dict[str, str]:
        found = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOSTNAME": name,
            **{key: value for key, value in self._image.environment.items() if key != "PATH"},
        }
        fields = {"metadata.name": name, "metadata.namespace": "default", "metadata.uid": f"uid-of-{name}"}
        fields |= {"spec.nodeName": "node-1", "status.podIP": HOST}
        for label, value in template["metadata"].get("labels", {}).items():
            fields[f"metadata.labels['{label}']"] = value
        for each in container.get("envFrom", ()):
            if "secretRef" in each:
                found |= self._secrets[each["secretRef"]["name"]]
            else:
                found |= self._maps[each["configMapRef"]["name"]]["data"]
        for each in container.get("env", ()):
            source = each.get("valueFrom", {})
            if not source:
                value = _expanded(each.get("value", ""), found)
            elif "fieldRef" in source:
                value = fields[source["fieldRef"]["fieldPath"]]
            elif "secretKeyRef" in source:
                value = self._secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
            elif "configMapKeyRef" in source:
                reference = source["configMapKeyRef"]
                value = self._maps[reference["name"]]["data"][reference["key"]]
            else:
                raise AssertionError(f"{each['name']}: this source is not known here: {source}")
            found[each["name"]] = moved.text(value)
        return found

    def _mounts(self, spec: Object, container: Object, home: Path) -> dict[str, Path]:
        known = {volume["name"] for volume in spec.get("volumes", ())}
        mounts = {self._image.folder: home}
        for mount in container.get("volumeMounts", ()):
            assert mount["name"] in known, f"{mount['mountPath']}: the pod has no volume {mount['name']}"
            mounts[mount["mountPath"]] = home / "volumes" / mount["name"] / mount.get("subPath", "")
        return mounts

    def _listening(self, container: Object, spec: Object) -> dict[int, int]:
        """Ports that the pod's settings name to listen on, and free ones for them."""
        texts = json.dumps(container)
        for volume in spec.get("volumes", ()):
            for source in (volume, *volume.get("projected", {}).get("sources", ())):
                if "configMap" in source:
                    texts += json.dumps(self._maps[source["configMap"]["name"]]["data"])
        wanted = {each["containerPort"] for each in container.get("ports", ())}
        wanted |= {int(port) for port in re.findall(r"(?:ops|control)_address: \S*:(\d+)\b", texts)}
        return dict(zip(sorted(wanted), free_ports(len(wanted)), strict=True))

    def _fill(self, volume: Object, folder: Path, moved: "_Moved") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if "projected" in volume:
            for source in volume["projected"]["sources"]:
                self._fill(source, folder, moved)
        elif "configMap" in volume:
            texts = self._maps[volume["configMap"]["name"]]["data"]
            for name, path in _items(volume["configMap"], texts).items():
                _write(folder / path, moved.text(texts[name]))
        elif "secret" in volume:
            secret = volume["secret"]
            texts = self._secrets[secret.get("secretName") or secret["name"]]
            for name, path in _items(secret, texts).items():
                _write(folder / path, texts[name])
        elif "emptyDir" not in volume:
            raise AssertionError(f"a volume of this kind: {volume}")


class _Moved:
    """Where the pod's folders and ports are on this machine."""

    def __init__(self, folders: Mapping[str, Path], ports: Mapping[int, int]) -> None:
        self.ports = ports
        self._folders = folders
        longest = sorted((re.escape(folder) for folder in folders if folder != "/"), key=len, reverse=True)
        self._named = re.compile(rf"(?<![\w.-])({'|'.join(longest)})(?=[/\s\"',;:]|$)")

    def text(self, text: str) -> str:
        moved = self._named.sub(lambda found: str(self._folders[found[1]]), text)
        return LISTENS.sub(self._address, moved)

    def _address(self, found: re.Match[str]) -> str:
        port = self.ports.get(int(found[1]))
        return found[0] if port is None else f"{HOST}:{port}"


def _items(source: Object, texts: Mapping[str, str]) -> dict[str, str]:
    """Which keys of a ConfigMap or Secret become files, and their paths."""
    if "items" not in source:
        return {name: name for name in texts}
    for item in source["items"]:
        assert item["key"] in texts, f"{source}: it has no key {item['key']}"
    return {item["key"]: item["path"] for item in source["items"]}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    """$(NAME) as the kubelet replaces it: what is not known stays."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), text)

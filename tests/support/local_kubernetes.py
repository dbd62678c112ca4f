"""LocalKubernetes: the API of Kubernetes as far as Spark uses it. Its pods are processes of this machine.

What Spark posts is kept, and answered by the rights of a Role: what that does not allow is refused, as a cluster does.
"""

import json
import os
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from spark_cluster import die_with_parent

EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update"}


class Pod(NamedTuple):
    """A pod, and the process of its container."""

    manifest: dict[str, Any]
    process: "subprocess.Popen[bytes]"

    def shown(self) -> dict[str, Any]:
        code = self.process.poll()
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        return self.manifest | {"status": {"phase": phase, "podIP": "127.0.0.1", "containerStatuses": []}}


class LocalKubernetes:
    """A server at `url` and the processes of its pods, which end with this one."""

    def __init__(self, folder: Path, role: dict[str, Any]) -> None:
        """`role` is the manifest of what the only account may do."""
        self.folder = folder
        self.posted: list[dict[str, Any]] = []
        """Everything that was created."""
        self.refused: list[str] = []
        """What the role does not allow."""
        self._rules = role["rules"]
        self._pods: dict[str, Pod] = {}
        self._lock = threading.Lock()
        folder.mkdir()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        for name in list(self._pods):
            self._end(name)

    @property
    def pods(self) -> list[str]:
        return sorted(self._pods)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *arguments: Any) -> None:
                """Say nothing: the requests are many."""

            def _reply(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                code, found = answer(self.command, self.path, body)
                content = json.dumps(found).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _reply  # noqa: N815 - names of the library

        return Handler

    def _answer(self, method: str, url: str, body: Any) -> tuple[int, dict[str, Any]]:
        path = urlsplit(url)
        # /api/v1/namespaces/NAMESPACE/KIND[/NAME]
        _, _, _, _, _, kind, *rest = path.path.split("/")
        verb = _verb(method, rest, path.query)
        if not any(kind in rule["resources"] and verb in rule["verbs"] for rule in self._rules):
            self.refused.append(f"{verb} {kind}")
            return 403, _status(403, f"may not {verb} {kind}")
        with self._lock:
            if method == "POST":
                return 201, self._create(kind, body)
            if kind != "pods":
                return 200, _status(200, "Success") if method == "DELETE" else _listed(kind, [])
            if method == "DELETE":
                for name in rest or list(self._pods):
                    self._end(name)
                return 200, _status(200, "Success")
            if not rest:
                return 200, _listed("Pod", [each.shown() for each in self._pods.values()])
            found = self._pods.get(rest[0])
            return (404, _status(404, "there is none")) if found is None else (200, found.shown())

    def _create(self, kind: str, manifest: dict[str, Any]) -> dict[str, Any]:
        self.posted.append(json.loads(json.dumps(manifest)))
        name = manifest["metadata"]["name"]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        manifest["metadata"] |= {"uid": name, "resourceVersion": "1", "creationTimestamp": now}
        if kind == "pods":
            self._pods[name] = Pod(manifest, self._start(name, manifest))
        return manifest

    def _start(self, name: str, manifest: dict[str, Any]) -> "subprocess.Popen[bytes]":
        """Start what the image of Spark starts for the only container, as its program for executors does."""
        [container] = manifest["spec"]["containers"]
        assert container["args"] == ["executor"]
        given = {each["name"]: each.get("value") for each in container["env"]}
        own = {"SPARK_EXECUTOR_POD_IP": "127.0.0.1", "SPARK_EXECUTOR_POD_NAME": name}
        variables = {key: value or own.get(key, "") for key, value in given.items()}
        java = [value for key, value in variables.items() if key.startswith("SPARK_JAVA_OPT_")]
        options = {
            "--driver-url": variables["SPARK_DRIVER_URL"],
            "--executor-id": variables["SPARK_EXECUTOR_ID"],
            "--cores": variables["SPARK_EXECUTOR_CORES"],
            "--app-id": variables["SPARK_APPLICATION_ID"],
            "--hostname": variables["SPARK_EXECUTOR_POD_IP"],
            "--resourceProfileId": variables["SPARK_RESOURCE_PROFILE_ID"],
            "--podName": variables["SPARK_EXECUTOR_POD_NAME"],
        }
        memory = f"-Xmx{variables['SPARK_EXECUTOR_MEMORY']}"
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                ["java", *java, memory, "-cp", _jars(), EXECUTOR, *(part for each in options.items() for part in each)],
                env=os.environ | variables | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(self.folder)},
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )

    def _end(self, name: str) -> None:
        if (pod := self._pods.pop(name, None)) is not None:
            pod.process.kill()
            pod.process.wait()


def _verb(method: str, rest: list[str], query: str) -> str:
    if method == "GET":
        return "watch" if "watch=true" in query else "get" if rest else "list"
    return ("delete" if rest else "deletecollection") if method == "DELETE" else _VERBS[method]


def _status(code: int, message: str) -> dict[str, Any]:
    outcome = "Success" if code < 400 else "Failure"
    return {"kind": "Status", "apiVersion": "v1", "status": outcome, "message": message, "code": code}


def _listed(kind: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}


def _jars() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent / "jars" / "*")

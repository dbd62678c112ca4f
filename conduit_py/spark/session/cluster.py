"""Checks that a cluster answers before Spark tries to reach it, for minutes and in silence.

An application that waits too long in the queues of YARN is withdrawn.
"""

import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

from conduit_py.errors import FatalError, TransientError

_logger = logging.getLogger(__name__)

MASTER = "yarn"
FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""The variables that name the folders with the cluster's settings, in order of precedence."""
_SITE = "yarn-site.xml"
_MANAGER = "yarn.resourcemanager"
_PORT = 8032
_CONNECT_PORT = 15002
_CONNECT_SECONDS = 5.0
_LOOK_SECONDS = 2.0
_WAITING = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED")


def require_server(remote: str, where: str) -> None:
    """Check the address first: Spark's client would try for ten minutes, in silence, to reach a missing server."""
    address = urlsplit(remote)
    try:
        with socket.create_connection((address.hostname, address.port or _CONNECT_PORT), timeout=_CONNECT_SECONDS):
            return
    except ValueError:
        raise FatalError(f"remote {where!r} has no such port", suggestion='write it as "sc://host:15002"') from None
    except OSError as error:
        raise TransientError(
            f"no Spark Connect server answers at {where}: {error.strerror or error}",
            suggestion="start one, or correct `remote`",
        ) from error


def require_master(master: str) -> None:
    """Check the address first: Spark would try for a minute, in silence, to reach a missing standalone master."""
    if not master.startswith("spark://"):
        return
    addresses = master.removeprefix("spark://").split(",")
    if not all(colon and port.isdecimal() for _, colon, port in (each.rpartition(":") for each in addresses)):
        raise FatalError(f"master {master!r} has no port", suggestion='write it as "spark://host:7077"')
    if failures := _failures(addresses):
        raise TransientError(
            f"no Spark master answers ({'; '.join(failures)})", suggestion="start the cluster, or correct `master`"
        )


def require_manager(conf: Mapping[str, str]) -> None:
    """Raise TransientError when no ResourceManager answers: Spark would try for a quarter of an hour, in silence.

    Nothing is checked where the settings do not give its address plainly.
    """
    if failures := _failures(_addresses(_settings(conf))):
        raise TransientError(
            f"no ResourceManager of YARN answers ({'; '.join(failures)})",
            suggestion=f"start it, or correct {_MANAGER}.address in the {_SITE} that HADOOP_CONF_DIR leads to",
        )


def _failures(addresses: Iterable[str]) -> list[str]:
    """Return why each address does not answer; nothing if one does."""
    failures = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
                return []
        except OSError as error:
            failures.append(f"{address}: {error.strerror or error}")
    return failures


class Submission:
    """One application submitted to YARN, found by a tag of its own.

    Spark would wait for ever for a node to run it. Here it is withdrawn after `seconds` in the queue, so that none is
    left there when the pipeline tries again.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._tag = f"conduit-py-{uuid.uuid4().hex}"
        self._over = threading.Event()
        self._waits_since: float | None = None
        self._taken_back = False

    def tags(self, others: str | None) -> str:
        """The value for `spark.yarn.tags`."""
        return ",".join(filter(None, [others, self._tag]))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the queue while Spark starts in the block."""
        # A daemon: a call into a Java that hangs must not keep the process alive.
        threading.Thread(target=self._watch, name="conduit-spark-yarn", daemon=True).start()
        try:
            yield
        finally:
            self._over.set()

    def explanation(self) -> FatalError | TransientError | None:
        """The error for a Spark that did not start because of YARN, or None."""
        if self._taken_back:
            return TransientError(
                f"YARN did not run the application within {self._seconds:g} s",
                suggestion="check that its nodes are alive and its queue has free memory and cores, "
                "or choose another queue with spark.yarn.queue, or ask for less with spark.yarn.am.memory in `conf`",
            )
        if not any(os.environ.get(name) for name in FOLDERS):
            return FatalError(
                "Spark cannot find YARN: neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set",
                suggestion=f"set HADOOP_CONF_DIR to the folder with the cluster's core-site.xml and {_SITE}",
            )
        return None

    def _watch(self) -> None:
        from py4j.protocol import Py4JError
        from pyspark import SparkContext

        client = None
        try:
            while not self._over.wait(_LOOK_SECONDS) and not self._taken_back:
                jvm: Any = SparkContext._jvm
                if jvm is not None:
                    client = client or _client(jvm)
                    self._look(jvm, client)
            if client is not None:
                client.stop()
        except (Py4JError, OSError) as error:
            # Java has ended, or YARN does not answer. The thread that starts Spark gets the error.
            _logger.debug("stopped asking YARN about the application: %s", error)

    def _look(self, jvm: Any, client: Any) -> None:
        waiting = self._waiting(jvm, client)
        now = time.monotonic()
        if not waiting:
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now
        elif now - self._waits_since > self._seconds:
            self._taken_back = True
            for report in waiting:
                client.killApplication(report.getApplicationId())

    def _waiting(self, jvm: Any, client: Any) -> list[Any]:
        request = jvm.org.apache.hadoop.yarn.api.protocolrecords.GetApplicationsRequest.newInstance()
        tags = jvm.java.util.HashSet()
        tags.add(self._tag)
        request.setApplicationTags(tags)
        return [each for each in client.getApplications(request) if each.getYarnApplicationState().name() in _WAITING]


def _client(jvm: Any) -> Any:
    client = jvm.org.apache.hadoop.yarn.client.api.YarnClient.createYarnClient()
    client.init(jvm.org.apache.hadoop.yarn.conf.YarnConfiguration())
    client.start()
    return client


def _settings(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings of the cluster's file, with those that Spark is given in their place."""
    settings = {name.removeprefix("spark.hadoop."): value for name, value in conf.items()}
    sites = [Path(folder) / _SITE for name in FOLDERS if (folder := os.environ.get(name))]
    site = next((each for each in sites if each.exists()), None)
    if site is None:
        return settings
    try:
        properties = ElementTree.parse(site).getroot().iter("property")
    except (OSError, ElementTree.ParseError):
        return settings  # Java reads it too, and reports what is wrong with it.
    return {each.findtext("name", "").strip(): each.findtext("value", "").strip() for each in properties} | settings


def _addresses(settings: Mapping[str, str]) -> list[str]:
    """The addresses of the ResourceManagers; none if one of them is not given plainly."""
    several = settings.get(f"{_MANAGER}.ha.enabled") == "true"
    names = settings.get(f"{_MANAGER}.ha.rm-ids", "").split(",") if several else [""]
    addresses = []
    for name in names:
        suffix = f".{name.strip()}" if several else ""
        host = settings.get(f"{_MANAGER}.hostname{suffix}")
        address = settings.get(f"{_MANAGER}.address{suffix}") or (host and f"{host}:{_PORT}") or ""
        addresses.append(re.sub(r"\$\{([^}]+)\}", lambda found: settings.get(found[1], found[0]), address))
    plain = all(re.fullmatch(r"[^\s$:]+:\d+|\[[^\]]+\]:\d+", each) for each in addresses)
    return addresses if plain else []

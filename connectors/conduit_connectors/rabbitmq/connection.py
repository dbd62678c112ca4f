"""RabbitConnection: one connection and channel of pika, in a thread of its own, and what their errors mean."""

import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeAlias

from pydantic import Field, SecretStr, model_validator

from conduit_connectors.broker_tls import TlsArguments, TlsOptions
from conduit_py.sdk import Dataset, FatalError, TransientError
from conduit_py.sdk.template import option_error

Work: TypeAlias = Callable[[Any, "Future[Any]"], None]
"""Uses the channel, and completes the future, now or later."""

_CONNECT_SECONDS = 30.0
_LEAVE_SECONDS = 10.0


class RabbitOptions(TlsOptions):
    """Which server, and who asks."""

    url: SecretStr = Field(
        description="the server, as amqp://user:password@host:port/virtual-host; amqps: with TLS; %2F is the host `/`"
    )
    answer_seconds: float = Field(default=30.0, gt=0, description="how long the server may take to answer")

    @model_validator(mode="after")
    def _check_tls(self) -> "RabbitOptions":
        if self.has_files and not self.url.get_secret_value().startswith("amqps:"):
            raise option_error("has ca_file or certificate_file, which need a url that begins with amqps://")
        return self


class RabbitArguments(TlsArguments, total=False):
    """RabbitOptions as a caller writes them, without `url`, for editors and type checkers."""

    answer_seconds: float


def queue_datasets(options: RabbitOptions, name: str) -> list[Dataset]:
    """Name a queue, or an exchange, for lineage."""
    url = options.url.get_secret_value()
    return [Dataset.at_server(url, name, port=5671 if url.startswith("amqps:") else 5672)]


class RabbitConnection:
    """Any thread may call it. Everything that waits ends with an error when the connection is lost."""

    def __init__(self, options: RabbitOptions) -> None:
        self._options = options
        self._pika = load_pika()
        self._connection: Any = None
        self._channel: Any = None
        self._thread: threading.Thread | None = None
        self._pending: set[Future[Any]] = set()
        self._error: BaseException | None = None
        """Why the connection is lost."""
        self.place = ""

    def open(self) -> None:
        """Connect and open a channel. Raises FatalError or TransientError."""
        parameters = self._parameters()
        self.place = f"{parameters.host}:{parameters.port}"
        opened: Future[None] = Future()
        self._pending.add(opened)
        self._connection = self._pika.SelectConnection(
            parameters,
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._use_channel),
            on_open_error_callback=self._end,
            on_close_callback=self._end,
        )
        self._opened = opened
        self._thread = threading.Thread(target=self._serve, name="rabbitmq", daemon=True)
        self._thread.start()
        self._result_of(opened, _CONNECT_SECONDS)

    def call(self, work: Work) -> Any:
        """Run `work` in the thread of the connection; return what it completes its future with."""
        answer: Future[Any] = Future()
        self._pending.add(answer)
        try:
            self._connection.ioloop.add_callback_threadsafe(lambda: self._begin(work, answer))
        except Exception as error:  # the loop is closed
            self._pending.discard(answer)
            raise self.failure(self._error or error) from error
        return self._result_of(answer, self._options.answer_seconds)

    def call_later(self, seconds: float, work: Callable[[], None]) -> None:
        """Call a function after a while. Only from within `work`, and from what it calls."""
        self._connection.ioloop.call_later(seconds, work)

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with suppress(Exception):  # the loop may have ended by itself
            self._connection.ioloop.add_callback_threadsafe(self._leave)
        thread.join(_LEAVE_SECONDS)
        if thread.is_alive():
            # The server does not answer to the goodbye.
            with suppress(Exception):
                self._connection.ioloop.add_callback_threadsafe(self._connection.ioloop.stop)

    def _serve(self) -> None:
        loop = self._connection.ioloop
        try:
            loop.start()
        except Exception as error:  # the plugin boundary: those who wait must not wait for ever
            self._fail(error)
        finally:
            self._fail(ConnectionError("the connection was closed"))
            loop.close()

    def _leave(self) -> None:
        if self._connection.is_open:
            self._connection.close()
        else:
            self._connection.ioloop.stop()

    def _use_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(lambda _, error: self._fail(error))
        channel.add_on_cancel_callback(lambda _: self._fail(ConnectionError("the server ended the consumer")))
        if not self._opened.done():
            self._opened.set_result(None)

    def _end(self, connection: Any, error: BaseException) -> None:
        self._fail(error)
        connection.ioloop.stop()

    def _fail(self, error: BaseException) -> None:
        # The first error is the cause of those that follow.
        self._error = self._error or error
        for answer in list(self._pending):
            if not answer.done():
                answer.set_exception(self.failure(self._error))

    def _begin(self, work: Work, answer: "Future[Any]") -> None:
        try:
            if self._error is not None:
                raise self.failure(self._error)
            work(self._channel, answer)
        except Exception as error:  # the plugin boundary: the library's, or ours from above
            if not answer.done():
                answer.set_exception(error if isinstance(error, FatalError | TransientError) else self.failure(error))

    def _result_of(self, answer: "Future[Any]", seconds: float) -> Any:
        try:
            return answer.result(seconds)
        except TimeoutError as error:
            raise TransientError(
                f"RabbitMQ at {self.place} does not answer within {seconds:g} s",
                suggestion="check that it is well: it accepts nothing while it has too little memory or disk",
            ) from error
        finally:
            self._pending.discard(answer)

    def _parameters(self) -> Any:
        pika, options = self._pika, self._options
        try:
            parameters = pika.URLParameters(options.url.get_secret_value())
        except Exception as error:  # the plugin boundary: it raises errors of many kinds
            raise FatalError(
                f"the url of RabbitMQ cannot be used: {error}",
                suggestion="write it as amqp://user:password@host:5672/%2F",
            ) from error
        parameters.connection_attempts = 1
        parameters.socket_timeout = _LEAVE_SECONDS
        parameters.blocked_connection_timeout = options.answer_seconds
        parameters.client_properties = {"connection_name": "conduit-py"}
        if options.url.get_secret_value().startswith("amqps:"):
            parameters.ssl_options = pika.SSLOptions(options.make_context("RabbitMQ"), parameters.host)
        return parameters

    def failure(self, error: BaseException) -> Exception:
        """The error of ours for one of the library's."""
        errors, where = self._pika.exceptions, f"RabbitMQ at {self.place}"
        chain = _chain_of(error)
        what = f"{type(chain[-1]).__name__}: {chain[-1]}".removesuffix(": ")
        for each in chain:
            if isinstance(each, FatalError | TransientError):
                return each
            if isinstance(each, errors.ProbableAuthenticationError | errors.AuthenticationError):
                return FatalError(
                    f"{where} refuses the user: {each}", suggestion="check the user and the password in `url`"
                )
            if isinstance(each, errors.ProbableAccessDeniedError):
                return FatalError(f"{where} refuses the virtual host: {each}", suggestion="check the path of `url`")
            if isinstance(each, errors.ChannelClosedByBroker | errors.ConnectionClosedByBroker):
                if each.reply_code in _FATAL_CODES:
                    return FatalError(f"{where}: {each.reply_text}", suggestion=_FATAL_CODES[each.reply_code])
                what = f"{each.reply_code} {each.reply_text}"
            if isinstance(each, ssl.SSLCertVerificationError):
                return FatalError(f"the certificate of {where} is not trusted: {each}", suggestion="check ca_file")
        return TransientError(
            f"{where} cannot be reached or ended the connection: {what}",
            suggestion="check the url, and that the server runs",
        )


_FATAL_CODES = {
    402: "check the virtual host in `url`",
    403: "check the rights of the user",
    404: "create the queue or the exchange: none is made here",
    406: "check that the queue or the exchange is of the kind that the options assume",
    530: "check the virtual host in `url`, and the rights of the user",
}


def _chain_of(error: BaseException) -> list[BaseException]:
    """The error and what it stands for: the library wraps errors as arguments and in an attribute."""
    chain: list[BaseException] = [error]
    for each in chain:
        inner = [*each.args, *getattr(each, "exceptions", ()), getattr(each, "exception", None), each.__cause__]
        found = [one for item in inner for one in (item if isinstance(item, list | tuple) else [item])]
        chain += [one for one in found if isinstance(one, BaseException) and one not in chain]
    return chain


def load_pika() -> Any:
    try:
        import pika
    except ImportError as error:
        raise FatalError(
            "RabbitMQ is used through pika, which is not installed",
            suggestion="pip install 'conduit-dataflow[rabbitmq]'",
        ) from error
    return pika

"""RedisConnection: one client of a server, and what the library's errors mean."""

from typing import Any

from pydantic import SecretStr

from conduit_py.sdk import FatalError, TransientError


class RedisConnection:
    """Sends commands about one stream. Errors name the server and the stream, and never the password."""

    def __init__(self, url: SecretStr, stream: str, **settings: Any) -> None:
        self._redis = load_redis()
        self._stream = stream
        try:
            self._client = self._redis.Redis.from_url(url.get_secret_value(), **settings)
        except (ValueError, TypeError) as error:
            raise FatalError(
                f"the url of Redis cannot be used: {error}", suggestion="write it as redis://host:port/0"
            ) from error

    def request(self, command: str, *arguments: Any, **more: Any) -> Any:
        """Call a command by the name of its method."""
        try:
            return getattr(self._client, command)(*arguments, **more)
        except self._redis.RedisError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        self._client.close()

    @property
    def place(self) -> str:
        """The address of the server, for people."""
        settings = self._client.connection_pool.connection_kwargs
        return f"{settings.get('host') or settings.get('path')}:{settings.get('port', '')}".rstrip(":")

    def _failure(self, error: Exception) -> Exception:
        redis = self._redis
        if isinstance(error, redis.AuthenticationError):
            return FatalError(
                f"Redis at {self.place}: {error}", suggestion="check the user and the password in the url"
            )
        if isinstance(error, redis.ConnectionError | redis.TimeoutError):
            return TransientError(
                f"Redis at {self.place} cannot be reached: {error}", suggestion="check the url and that the server runs"
            )
        if isinstance(error, redis.OutOfMemoryError):
            return TransientError(
                f"Redis at {self.place} has no room: {error}", suggestion="raise its maxmemory, or set `length_max`"
            )
        return FatalError(
            f"the stream {self._stream} of Redis at {self.place}: {error}",
            suggestion="check that the key is a stream, and the rights of the user",
        )


def load_redis() -> Any:
    try:
        import redis
        import redis.backoff
    except ImportError as error:
        raise FatalError(
            "Redis is used through redis-py, which is not installed", suggestion="pip install 'conduit-dataflow[redis]'"
        ) from error
    return redis

"""SqsConnection: the client of one queue, and what its errors mean."""

from typing import Any, TypedDict

from pydantic import Field, SecretStr

from conduit_py.sdk import FatalError, Options, TransientError

CHUNK_SIZE = 10
"""How many messages a request has at most."""


class SqsOptions(Options):
    """Which queue, and who asks. Without a region or keys, those of the environment are used."""

    url: str = Field(min_length=1, description="the address of the queue, as https://sqs.<region>.amazonaws.com/…")
    region: str | None = Field(default=None, description="the region of the queue")
    access_key: SecretStr | None = Field(default=None, description="the access key; None: that of the machine")
    secret_key: SecretStr | None = Field(default=None, description="the secret that belongs to the access key")
    endpoint: str | None = Field(default=None, description="the address of a service that is not Amazon's")


class SqsArguments(TypedDict, total=False):
    """SqsOptions as a caller writes them, without `url`, for editors and type checkers."""

    region: str | None
    access_key: str | SecretStr | None
    secret_key: str | SecretStr | None
    endpoint: str | None


class SqsConnection:
    """Makes requests about one queue. Errors name the queue, and are fatal unless trying again can help."""

    def __init__(self, options: SqsOptions) -> None:
        self._options = options
        settings = {
            "region_name": options.region,
            "endpoint_url": options.endpoint,
            "aws_access_key_id": options.access_key and options.access_key.get_secret_value(),
            "aws_secret_access_key": options.secret_key and options.secret_key.get_secret_value(),
        }
        try:
            self.client = _load_boto3().session.Session().client("sqs", **settings)
        except FatalError:
            raise
        except Exception as error:  # the plugin boundary: boto3 raises errors of many kinds for a missing setting
            raise FatalError(
                f"SQS cannot be used: {error}", suggestion="set region, or AWS_DEFAULT_REGION in the environment"
            ) from error

    def check(self) -> None:
        """Raise if the queue is not there, or not for us. It asks for attributes, and changes nothing."""
        self.request("get_queue_attributes", AttributeNames=["QueueArn"])

    def request(self, action: str, **arguments: Any) -> Any:
        try:
            return getattr(self.client, action)(QueueUrl=self._options.url, **arguments)
        except Exception as error:
            raise self.failure(error) from error

    def close(self) -> None:
        self.client.close()

    def failure(self, error: Exception) -> Exception:
        """The error of ours for one of boto3's."""
        where = f"the SQS queue {self._options.url}"
        status = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
        if "NonExistentQueue" in code_of(error) or "QueueDoesNotExist" in code_of(error):
            return FatalError(f"there is no queue {self._options.url}", suggestion="check the url and the region")
        if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
            return FatalError(f"{where}: {error}", suggestion="set access_key and secret_key, or those of the machine")
        if 400 <= status < 500 and "Throttl" not in code_of(error):
            return FatalError(f"{where}: {error}", suggestion="check the url and the rights of the keys")
        return TransientError(f"{where}: {error}", suggestion="check the url and that the service can be reached")


def code_of(error: Exception) -> str:
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))


def _load_boto3() -> Any:
    try:
        import boto3
    except ImportError as error:
        raise FatalError(
            "SQS is used through boto3, which is not installed", suggestion="pip install 'conduit-dataflow[sqs]'"
        ) from error
    return boto3

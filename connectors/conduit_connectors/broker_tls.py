"""TlsOptions: whom a client of a broker trusts, and the certificate that it shows."""

import ssl
from typing import TypedDict

from pydantic import Field, model_validator

from conduit_py.sdk import FatalError, Options
from conduit_py.sdk.template import option_error


class TlsOptions(Options):
    """Files for TLS. Without any of them the authorities of the machine are trusted."""

    ca_file: str | None = Field(default=None, description="the authorities to trust; None: those of the machine")
    certificate_file: str | None = Field(default=None, description="the client's certificate, for TLS on both sides")
    key_file: str | None = Field(default=None, description="the key of the certificate")

    @model_validator(mode="after")
    def _check_certificate(self) -> "TlsOptions":
        if (self.certificate_file is None) != (self.key_file is None):
            raise option_error("must have certificate_file and key_file, or neither")
        return self

    @property
    def has_files(self) -> bool:
        return self.ca_file is not None or self.certificate_file is not None

    def make_context(self, server: str) -> ssl.SSLContext:
        """The settings of TLS for a server of this name. Raises FatalError if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate_file is not None:
                context.load_cert_chain(self.certificate_file, self.key_file)
        except OSError as error:  # SSLError is one
            raise FatalError(
                f"the certificates for {server} cannot be used: {error}",
                suggestion="check ca_file, certificate_file and key_file",
            ) from error
        return context


class TlsArguments(TypedDict, total=False):
    """TlsOptions as a caller writes them, for editors and type checkers."""

    ca_file: str | None
    certificate_file: str | None
    key_file: str | None

"""The statements of the pages about change capture: a user with these rights reads rows and changes."""

import configparser
import re
from pathlib import Path
from typing import Any

from conduit_connectors import mysql
from conduit_connectors import postgres as postgres_source
from mariadb_changes import database_of, open_reader, replica_of
from mariadb_changes import run_sql as run_on_mariadb
from postgres_changes import run_sql as run_on_postgres
from postgres_changes import slot_of

HOW_TO = Path(__file__).parent.parent.parent / "docs" / "how-to"
BLOCK = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TABLES = ("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE customers (id int PRIMARY KEY)")
ROWS = ("INSERT INTO orders VALUES (1)", "INSERT INTO customers VALUES (2)")
MORE_ROWS = ("INSERT INTO orders VALUES (3)", "INSERT INTO customers VALUES (4)")


def statements_of(block: str, names: dict[str, str]) -> list[str]:
    """Those of a block, with names of this test in the place of those of the page."""
    for shown, used in names.items():
        block = re.sub(rf"\b{shown}\b", used, block)
    return [each.strip() for each in block.replace("…", "geheim").split(";") if each.strip()]


async def test_a_user_of_postgresql(postgres: str) -> None:
    role, database = slot_of(postgres), postgres.rpartition("/")[2]
    rights, publication = BLOCK.findall((HOW_TO / "read-changes-from-postgresql.md").read_text())[:2]
    names = {"conduit": role, "shop": database}
    run_on_postgres(postgres, *TABLES, *ROWS, *statements_of(rights, names), *statements_of(publication, {}))
    source = postgres_source.Source(
        url=postgres.replace("tester@", f"{role}:geheim@"),
        slot=role,
        tables=["orders", "customers"],
        publication="shop",
    )

    async with open_reader(source) as reader:
        records = await reader.take(2)
        run_on_postgres(postgres, *MORE_ROWS)
        records += await reader.take(2)
    run_on_postgres(postgres, f"DROP OWNED BY {role}", f"DROP ROLE {role}")

    assert sorted(record.key["id"] for record in records) == [1, 2, 3, 4]


async def test_a_user_of_mariadb(mariadb: str) -> None:
    settings, rights = BLOCK.findall((HOW_TO / "read-changes-from-mariadb.md").read_text())[:2]
    user = f"user_{replica_of(mariadb)}"
    run_on_mariadb(mariadb, *TABLES, *ROWS)
    run_on_mariadb(mariadb, *statements_of(rights, {"conduit": user, "shop": database_of(mariadb)}))
    source = mysql.Source(
        url=mariadb.replace("tester@", f"{user}:geheim@"),
        server_id=replica_of(mariadb),
        tables=["orders", "customers"],
    )

    async with open_reader(source) as reader:
        records = await reader.take(2)
        run_on_mariadb(mariadb, *MORE_ROWS)
        records += await reader.take(2)
        lag = await reader.source.lag()
    run_on_mariadb(mariadb, f"DROP USER {user}")

    assert sorted(record.key["id"] for record in records) == [1, 2, 3, 4]
    assert lag is not None
    assert_server_has(settings, mariadb)


def assert_server_has(settings: str, url: str) -> None:
    """The server of the tests is set up as the page says, but for how long it keeps its log."""
    shown = configparser.ConfigParser(allow_no_value=True)
    shown.read_string(settings)
    wanted: dict[str, Any] = dict(shown["mariadb"])
    del wanted["binlog_expire_logs_seconds"]
    rows = run_on_mariadb(url, f"SHOW VARIABLES WHERE Variable_name IN ({', '.join(map(repr, wanted))})")

    assert dict(rows) == {name: value or "ON" for name, value in wanted.items()}

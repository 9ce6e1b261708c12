"""Puts jobs into the table of queued. Copy this file into your application.

    connection.begin()
    ...the order...
    queued.enqueue(connection, "receipt", {"order": 17}, key="order-17", delay=60)
    connection.commit()  # both or neither

Needs Python 3.6 and PyMySQL, mysqlclient or MySQL Connector with MySQL or MariaDB. Give
the connection charset="utf8mb4".
"""

import json
import math
import re

DUPLICATE = 1062

# The times mean the same in every time zone that the session may have, also while
# clocks are put back: on MariaDB by the first comment, on MySQL from 8.0.17 by the second.
INSERT = "/*M!100102 SET STATEMENT time_zone = '+00:00' FOR */ INSERT /*+ SET_VAR(time_zone = '+00:00') */ INTO "
AT = "FROM_UNIXTIME(%s * 0.001)"
IN = "FROM_UNIXTIME((TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) + %s * 1000) * 0.000001)"


def enqueue(connection, kind, payload=None, *, key=None, queue=None, priority=None, max_attempts=None,
            timeout=None, delay=None, at=None, expires_at=None, table="queued.jobs"):
    """Puts a job in, within the connection's transaction.

    payload       anything that json.dumps takes; None for none
    key           idempotency key, up to 191 bytes: a second job with it is not put in
    queue         default "default"
    priority      0 to 9, higher first
    max_attempts  default: that of the kind
    timeout       seconds one run may take; default: that of the kind
    delay         seconds from now, by the server's clock
    at            datetime with a time zone: not before; not together with delay
    expires_at    datetime with a time zone: not after

    Returns the new job's id, or None when a job with the key is there already, which is
    success. Any other error of the server is raised as it comes. Commit as usual.
    """
    if delay is not None and at is not None:
        raise ValueError("queued: give delay or at, not both")
    if not re.fullmatch(r"[0-9A-Za-z_$-]+(\.[0-9A-Za-z_$-]+)?", table):
        raise ValueError("queued: table must be a name or schema.name")
    columns = [("kind", "%s", kind)]
    if payload is not None:
        columns.append(("payload", "%s", json.dumps(payload, ensure_ascii=False, allow_nan=False)))
    for name, value in (("idempotency_key", key), ("queue", queue), ("priority", priority), ("max_attempts", max_attempts)):
        if value is not None:
            columns.append((name, "%s", value))
    if timeout is not None:
        columns.append(("timeout_ms", "%s", round(timeout * 1000)))
    if delay is not None:
        columns.append(("available_at", IN, math.ceil(round(delay * 1000, 3))))
    if at is not None:
        columns.append(("available_at", AT, _milliseconds(at)))
    if expires_at is not None:
        columns.append(("expires_at", AT, _milliseconds(expires_at)))

    names, places, values = zip(*columns)
    sql = INSERT + "`%s` (%s) VALUES (%s)" % (table.replace(".", "`.`"), ", ".join(names), ", ".join(places))
    cursor = connection.cursor()
    try:
        cursor.execute(sql, values)
        return cursor.lastrowid
    except Exception as error:
        if key is not None and error.args and error.args[0] == DUPLICATE:
            return None
        raise
    finally:
        cursor.close()


def _milliseconds(time):
    if time.tzinfo is None:
        raise ValueError("queued: a time must have a time zone, e.g. datetime.now(timezone.utc)")
    return math.ceil(round(time.timestamp() * 1000, 3))

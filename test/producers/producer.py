"""Does what the test asks for on standard input, and prints what came of it."""

import datetime
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "clients", "python"))
sys.dont_write_bytecode = True

import pymysql  # noqa: E402
import queued  # noqa: E402

given = json.load(sys.stdin)
connection = pymysql.connect(host=given["host"], port=given["port"], user=given["user"], password=given["password"],
                             database=given["database"], charset="utf8mb4", client_flag=pymysql.constants.CLIENT.FOUND_ROWS * given["flavour"])
cursor = connection.cursor()
for sql in given["init"]:
    cursor.execute(sql)
connection.begin()
results = []
for job in given["jobs"]:
    options = job["options"]
    for name in ("at", "expires_at"):
        if name in options:
            options[name] = datetime.datetime.fromtimestamp(options[name] / 1000, datetime.timezone.utc)
    try:
        results.append(queued.enqueue(connection, job["kind"], job["payload"], **options))
    except pymysql.MySQLError as error:
        results.append("error %d" % error.args[0])
for sql in given["sql"]:
    cursor.execute(sql)
cursor.execute("INSERT INTO " + given["table"] + " (kind, available_at) VALUES ('local', %s)",
               (datetime.datetime.fromtimestamp(given["local"]),))
connection.commit() if given["commit"] else connection.rollback()
json.dump(results, sys.stdout)

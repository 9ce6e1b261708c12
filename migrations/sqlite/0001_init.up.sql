-- A producer may write: queue, kind, idempotency_key, payload, priority,
-- max_attempts, timeout_ms, available_at, expires_at. Only kind has no default.
-- The other columns are queued's own.
--
-- Times are milliseconds since 1970 in UTC. They are checked to be integers, so that
-- a date as text is refused at the producer instead of sorting behind every
-- number, where it would never be due. A constraint's name is the message that the
-- producer gets. The expressions in defaults and checks are such that a producer's
-- own SQLite may be as old as 3.9: no STRICT, no unixepoch('subsec').
--
-- What can be long stands last: SQLite reads through a row to get at what is behind.
--
-- jobs_poll holds the ready jobs only: a claim takes an entry out of it, a finish
-- touches no index at all.
CREATE TABLE IF NOT EXISTS jobs (
  id              INTEGER PRIMARY KEY AUTOINCREMENT,
  queue           TEXT NOT NULL DEFAULT 'default',
  kind            TEXT NOT NULL,
  idempotency_key TEXT NULL DEFAULT NULL,
  priority        INTEGER NOT NULL DEFAULT 0,
  max_attempts    INTEGER NULL DEFAULT NULL,
  timeout_ms      INTEGER NULL DEFAULT NULL,
  available_at    INTEGER NOT NULL DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)),
  expires_at      INTEGER NULL DEFAULT NULL,
  created_at      INTEGER NOT NULL DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)),
  status          TEXT NOT NULL DEFAULT 'ready',
  attempts        INTEGER NOT NULL DEFAULT 0,
  token           INTEGER NOT NULL DEFAULT 0,
  claimed_at      INTEGER NULL DEFAULT NULL,
  finished_at     INTEGER NULL DEFAULT NULL,
  replays         INTEGER NOT NULL DEFAULT 0,
  result          TEXT NULL,
  payload         TEXT NULL,
  CONSTRAINT "queue must be text of at most 64 characters" CHECK (typeof(queue) = 'text' AND length(queue) <= 64),
  CONSTRAINT "kind must be text of at most 64 characters" CHECK (typeof(kind) = 'text' AND length(kind) <= 64),
  CONSTRAINT "idempotency_key must be text of at most 191 characters" CHECK (idempotency_key IS NULL OR typeof(idempotency_key) = 'text' AND length(idempotency_key) <= 191),
  CONSTRAINT "payload must be JSON" CHECK (payload IS NULL OR json_valid(payload)),
  CONSTRAINT "priority must be an integer" CHECK (typeof(priority) = 'integer'),
  CONSTRAINT "max_attempts must be an integer" CHECK (typeof(max_attempts) IN ('integer', 'null')),
  CONSTRAINT "timeout_ms must be an integer" CHECK (typeof(timeout_ms) IN ('integer', 'null')),
  CONSTRAINT "available_at must be an integer: milliseconds since 1970 in UTC" CHECK (typeof(available_at) = 'integer'),
  CONSTRAINT "expires_at must be an integer: milliseconds since 1970 in UTC" CHECK (typeof(expires_at) IN ('integer', 'null')),
  CONSTRAINT "created_at must be an integer: milliseconds since 1970 in UTC" CHECK (typeof(created_at) = 'integer'),
  CONSTRAINT "status must be ready, running, done or cancelled" CHECK (status IN ('ready', 'running', 'done', 'cancelled')),
  CONSTRAINT "attempts and token must be integers" CHECK (typeof(attempts) = 'integer' AND typeof(token) = 'integer' AND typeof(replays) = 'integer'),
  CONSTRAINT "claimed_at and finished_at must be integers" CHECK (typeof(claimed_at) IN ('integer', 'null') AND typeof(finished_at) IN ('integer', 'null'))
);

CREATE UNIQUE INDEX IF NOT EXISTS jobs_key ON jobs (idempotency_key);

CREATE INDEX IF NOT EXISTS jobs_poll ON jobs (queue, priority DESC, available_at, id) WHERE status = 'ready';

CREATE TABLE IF NOT EXISTS dead_jobs (
  id              INTEGER PRIMARY KEY AUTOINCREMENT,
  job_id          INTEGER NOT NULL,
  queue           TEXT NOT NULL,
  kind            TEXT NOT NULL,
  idempotency_key TEXT NULL DEFAULT NULL,
  job_key         TEXT NOT NULL,
  priority        INTEGER NOT NULL,
  max_attempts    INTEGER NULL DEFAULT NULL,
  timeout_ms      INTEGER NULL DEFAULT NULL,
  available_at    INTEGER NULL DEFAULT NULL,
  expires_at      INTEGER NULL DEFAULT NULL,
  created_at      INTEGER NULL DEFAULT NULL,
  attempts        INTEGER NOT NULL,
  token           INTEGER NOT NULL,
  reason          TEXT NOT NULL,
  died_at         INTEGER NOT NULL,
  replays         INTEGER NOT NULL DEFAULT 0,
  replayed_at     INTEGER NULL DEFAULT NULL,
  replayed_job_id INTEGER NULL DEFAULT NULL,
  error           TEXT NOT NULL,
  payload         TEXT NULL
);

CREATE INDEX IF NOT EXISTS dead_jobs_job ON dead_jobs (job_id);

CREATE INDEX IF NOT EXISTS dead_jobs_job_key ON dead_jobs (job_key);

CREATE INDEX IF NOT EXISTS dead_jobs_queue ON dead_jobs (queue, replayed_at);

CREATE INDEX IF NOT EXISTS dead_jobs_kind ON dead_jobs (kind);

CREATE TABLE IF NOT EXISTS job_errors (
  id        INTEGER PRIMARY KEY AUTOINCREMENT,
  job_id    INTEGER NOT NULL,
  job_key   TEXT NOT NULL,
  attempt   INTEGER NOT NULL,
  error     TEXT NOT NULL,
  failed_at INTEGER NOT NULL
);

CREATE INDEX IF NOT EXISTS job_errors_job_key ON job_errors (job_key);

-- One row per claimed batch. job_ids holds ranges, "17-20,25"; jobs of it that have
-- ended carry another status or token by then.
CREATE TABLE IF NOT EXISTS leases (
  token      INTEGER PRIMARY KEY,
  owner      INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  renewals   INTEGER NOT NULL DEFAULT 0,
  job_ids    TEXT NOT NULL
);

CREATE INDEX IF NOT EXISTS leases_expires ON leases (expires_at);

CREATE TABLE IF NOT EXISTS counters (
  minute_at INTEGER NOT NULL,
  owner     INTEGER NOT NULL,
  queue     TEXT NOT NULL,
  kind      TEXT NOT NULL,
  done      INTEGER NOT NULL DEFAULT 0,
  failed    INTEGER NOT NULL DEFAULT 0,
  dead      INTEGER NOT NULL DEFAULT 0,
  run_ms    INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (minute_at, owner, queue, kind)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS daemons (
  owner      INTEGER PRIMARY KEY,
  host       TEXT NOT NULL,
  pid        INTEGER NOT NULL,
  version    TEXT NOT NULL,
  queues     TEXT NOT NULL,
  kinds      TEXT NOT NULL,
  started_at INTEGER NOT NULL,
  alive_till INTEGER NOT NULL
);

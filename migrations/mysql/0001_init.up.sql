-- A producer may write: queue, kind, idempotency_key, payload, priority,
-- max_attempts, timeout_ms, available_at, expires_at. Only kind has no default.
-- The other columns are queued's own.
--
-- pending is 1 while the job is ready and NULL otherwise; it follows status by
-- itself where the server can index a virtual column. So a claim takes one entry out
-- of jobs_poll's range of ready jobs, and a finish touches no index at all.
CREATE TABLE IF NOT EXISTS {{.Prefix}}jobs (
  id              BIGINT NOT NULL AUTO_INCREMENT,
  queue           VARCHAR(64) CHARACTER SET utf8mb4 COLLATE {{.Collate}} NOT NULL DEFAULT 'default',
  kind            VARCHAR(64) CHARACTER SET utf8mb4 COLLATE {{.Collate}} NOT NULL,
  idempotency_key VARCHAR(191) CHARACTER SET utf8mb4 COLLATE {{.Collate}} NULL DEFAULT NULL,
  payload         {{.JSON}} NULL,
  priority        SMALLINT NOT NULL DEFAULT 0,
  max_attempts    INT NULL DEFAULT NULL,
  timeout_ms      BIGINT NULL DEFAULT NULL,
  available_at    TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  expires_at      TIMESTAMP(3) NULL DEFAULT NULL,
  created_at      TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  status          ENUM('ready','running','done','cancelled') CHARACTER SET ascii NOT NULL DEFAULT 'ready',
  pending         TINYINT {{.Pending}},
  attempts        INT NOT NULL DEFAULT 0,
  token           BIGINT NOT NULL DEFAULT 0,
  claimed_at      TIMESTAMP(3) NOT NULL DEFAULT '1970-01-02 00:00:00',
  finished_at     TIMESTAMP(3) NOT NULL DEFAULT '1970-01-02 00:00:00',
  result          MEDIUMTEXT CHARACTER SET utf8mb4 NULL,
  replays         INT NOT NULL DEFAULT 0,
  PRIMARY KEY (id),
  UNIQUE KEY jobs_key (idempotency_key),
  KEY jobs_poll (queue, pending, priority, available_at, id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- id is the dead letter's own: servers before MySQL 8.0 hand out a job's id again.
CREATE TABLE IF NOT EXISTS {{.Prefix}}dead_jobs (
  id              BIGINT NOT NULL AUTO_INCREMENT,
  job_id          BIGINT NOT NULL,
  queue           VARCHAR(64) CHARACTER SET utf8mb4 COLLATE {{.Collate}} NOT NULL,
  kind            VARCHAR(64) CHARACTER SET utf8mb4 COLLATE {{.Collate}} NOT NULL,
  idempotency_key VARCHAR(191) CHARACTER SET utf8mb4 COLLATE {{.Collate}} NULL DEFAULT NULL,
  job_key         VARCHAR(191) CHARACTER SET utf8mb4 COLLATE {{.Collate}} NOT NULL,
  payload         {{.JSON}} NULL,
  priority        SMALLINT NOT NULL,
  max_attempts    INT NULL DEFAULT NULL,
  timeout_ms      BIGINT NULL DEFAULT NULL,
  available_at    TIMESTAMP(3) NULL DEFAULT NULL,
  expires_at      TIMESTAMP(3) NULL DEFAULT NULL,
  created_at      TIMESTAMP(3) NULL DEFAULT NULL,
  attempts        INT NOT NULL,
  token           BIGINT NOT NULL,
  reason          VARCHAR(32) CHARACTER SET ascii NOT NULL,
  error           MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL,
  died_at         TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  replays         INT NOT NULL DEFAULT 0,
  replayed_at     TIMESTAMP(3) NULL DEFAULT NULL,
  replayed_job_id BIGINT NULL DEFAULT NULL,
  PRIMARY KEY (id),
  KEY dead_jobs_job (job_id),
  KEY dead_jobs_job_key (job_key),
  KEY dead_jobs_queue (queue, replayed_at),
  KEY dead_jobs_kind (kind)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS {{.Prefix}}job_errors (
  id        BIGINT NOT NULL AUTO_INCREMENT,
  job_id    BIGINT NOT NULL,
  job_key   VARCHAR(191) CHARACTER SET utf8mb4 COLLATE {{.Collate}} NOT NULL,
  attempt   INT NOT NULL,
  error     MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL,
  failed_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  PRIMARY KEY (id),
  KEY job_errors_job_key (job_key)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per claimed batch. job_ids holds ranges, "17-20,25"; jobs of it that have
-- ended carry another status or token by then.
CREATE TABLE IF NOT EXISTS {{.Prefix}}leases (
  token      BIGINT NOT NULL,
  owner      BIGINT NOT NULL,
  expires_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  renewals   INT NOT NULL DEFAULT 0,
  job_ids    MEDIUMTEXT CHARACTER SET ascii NOT NULL,
  PRIMARY KEY (token),
  KEY leases_expires (expires_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- owner is in the key so that two daemons never wait for each other's counter row.
CREATE TABLE IF NOT EXISTS {{.Prefix}}counters (
  minute_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
  owner     BIGINT NOT NULL,
  queue     VARCHAR(64) CHARACTER SET utf8mb4 COLLATE {{.Collate}} NOT NULL,
  kind      VARCHAR(64) CHARACTER SET utf8mb4 COLLATE {{.Collate}} NOT NULL,
  done      BIGINT NOT NULL DEFAULT 0,
  failed    BIGINT NOT NULL DEFAULT 0,
  dead      BIGINT NOT NULL DEFAULT 0,
  run_ms    BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (minute_at, owner, queue, kind)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS {{.Prefix}}daemons (
  owner      BIGINT NOT NULL,
  host       VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL,
  pid        INT NOT NULL,
  version    VARCHAR(64) CHARACTER SET utf8mb4 NOT NULL,
  queues     MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL,
  kinds      MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL,
  started_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  alive_till TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  PRIMARY KEY (owner)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

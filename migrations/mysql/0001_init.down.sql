DROP TABLE IF EXISTS {{.Prefix}}daemons;
DROP TABLE IF EXISTS {{.Prefix}}counters;
DROP TABLE IF EXISTS {{.Prefix}}leases;
DROP TABLE IF EXISTS {{.Prefix}}job_errors;
DROP TABLE IF EXISTS {{.Prefix}}dead_jobs;
DROP TABLE IF EXISTS {{.Prefix}}jobs;

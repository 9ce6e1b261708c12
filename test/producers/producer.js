'use strict';

// Does what the test asks for on standard input, and prints what came of it.

const fs = require('node:fs');
const path = require('node:path');
const { createRequire } = require('node:module');
const mysql = createRequire(path.join(process.env.PRODUCERS_HOME, 'x.js'))('mysql2/promise');
const { enqueue } = require('../../clients/node/queued.js');

const NAMES = { max_attempts: 'maxAttempts', expires_at: 'expiresAt' };

async function main() {
  const given = JSON.parse(fs.readFileSync(0, 'utf8'));
  const connection = await mysql.createConnection({
    host: given.host, port: given.port, user: given.user, password: given.password, database: given.database,
    flags: given.flavour === 0 ? [] : ['-FOUND_ROWS'],
  });
  for (const sql of given.init) {
    await connection.query(sql);
  }
  await connection.beginTransaction();
  const results = [];
  for (const job of given.jobs) {
    const options = {};
    for (const [name, value] of Object.entries(job.options)) {
      options[NAMES[name] || name] = name === 'at' || name === 'expires_at' ? new Date(value) : value;
    }
    try {
      results.push(await enqueue(connection, job.kind, job.payload, options));
    } catch (error) {
      results.push(`error ${error.errno}`);
    }
  }
  for (const sql of given.sql) {
    await connection.query(sql);
  }
  const d = new Date(given.local * 1000);
  const two = (n) => String(n).padStart(2, '0');
  const local = `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  await connection.query(`INSERT INTO ${given.table} (kind, available_at) VALUES ('local', ?)`, [local]);
  await (given.commit ? connection.commit() : connection.rollback());
  await connection.end();
  console.log(JSON.stringify(results));
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});

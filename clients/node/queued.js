'use strict';

// Puts jobs into the table of queued. Copy this file into your application.
//
//   await connection.beginTransaction();
//   // ... the order ...
//   await enqueue(connection, 'receipt', { order: 17 }, { key: 'order-17', delay: 60 });
//   await connection.commit(); // both or neither
//
// Needs Node.js 16.9 and a connection or pool of mysql2/promise with MySQL or MariaDB.

const DUPLICATE = 1062;

// The times mean the same in every time zone that the session may have, also while
// clocks are put back: on MariaDB by the first comment, on MySQL from 8.0.17 by the second.
const INSERT = "/*M!100102 SET STATEMENT time_zone = '+00:00' FOR */ INSERT /*+ SET_VAR(time_zone = '+00:00') */ INTO ";
const AT = 'FROM_UNIXTIME(? * 0.001)';
const IN = "FROM_UNIXTIME((TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) + ? * 1000) * 0.000001)";

// How each option becomes a column.
const OPTIONS = {
  key: (v) => ['idempotency_key', '?', String(v)], // up to 191 bytes: a second job with it is not put in
  queue: (v) => ['queue', '?', String(v)], // default 'default'
  priority: (v) => ['priority', '?', v], // 0 to 9, higher first
  maxAttempts: (v) => ['max_attempts', '?', v], // default: that of the kind
  timeout: (v) => ['timeout_ms', '?', Math.round(v * 1000)], // seconds one run may take; default: that of the kind
  delay: (v) => ['available_at', IN, milliseconds(v)], // seconds from now, by the server's clock
  at: (v) => ['available_at', AT, v.getTime()], // a Date: not before; not together with delay
  expiresAt: (v) => ['expires_at', AT, v.getTime()], // a Date: not after
};

/**
 * Puts a job in, within the connection's transaction if there is one.
 *
 * @param {object} connection of mysql2/promise
 * @param {string} kind
 * @param {*} [payload] anything that JSON.stringify takes; undefined or null for none
 * @param {object} [options] see OPTIONS, and table (default 'queued.jobs')
 * @returns {Promise<number|null>} the new job's id; null when a job with the key is
 *   there already, which is success. Any other error of the server rejects.
 */
async function enqueue(connection, kind, payload, { table = 'queued.jobs', ...options } = {}) {
  if (!/^[0-9A-Za-z_$-]+(\.[0-9A-Za-z_$-]+)?$/.test(table)) {
    throw new TypeError('queued: table must be a name or schema.name');
  }
  if (options.delay != null && options.at != null) {
    throw new TypeError('queued: give delay or at, not both');
  }
  const columns = [['kind', '?', kind]];
  if (payload != null) {
    columns.push(['payload', '?', JSON.stringify(payload)]);
  }
  for (const [name, value] of Object.entries(options)) {
    if (!Object.hasOwn(OPTIONS, name)) {
      throw new TypeError(`queued: there is no option "${name}"`);
    }
    if (value != null) {
      columns.push(OPTIONS[name](value));
    }
  }
  const [names, places, values] = [0, 1, 2].map((i) => columns.map((c) => c[i]));
  const sql = `${INSERT}\`${table.replace('.', '`.`')}\` (${names.join(', ')}) VALUES (${places.join(', ')})`;
  try {
    const [result] = await connection.query(sql, values);
    return result.insertId;
  } catch (error) {
    if (options.key != null && error.errno === DUPLICATE) {
      return null;
    }
    throw error;
  }
}

function milliseconds(seconds) {
  return Math.ceil(Math.round(seconds * 1e6) / 1e3);
}

module.exports = { enqueue };

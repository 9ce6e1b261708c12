<?php

declare(strict_types=1);

/**
 * Puts jobs into the table of queued. Copy this file into your application.
 *
 *     $pdo->beginTransaction();
 *     // ... the order ...
 *     Queued::enqueue($pdo, 'receipt', ['order' => 17], ['key' => 'order-17', 'delay' => 60]);
 *     $pdo->commit(); // both or neither
 *
 * Needs PHP 8.0 and PDO with MySQL or MariaDB. Give the connection charset=utf8mb4.
 */
final class Queued
{
    private const DUPLICATE = 1062;

    // The times mean the same in every time zone that the session may have, also
    // while clocks are put back: on MariaDB by the first comment, on MySQL from
    // 8.0.17 by the second.
    private const INSERT = "/*M!100102 SET STATEMENT time_zone = '+00:00' FOR */ INSERT /*+ SET_VAR(time_zone = '+00:00') */ INTO ";
    private const AT = 'FROM_UNIXTIME(? * 0.001)';
    private const IN = "FROM_UNIXTIME((TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) + ? * 1000) * 0.000001)";

    /**
     * Puts a job in, within the transaction of $pdo if there is one.
     *
     * Options, all optional:
     *   key           string  idempotency key, up to 191 bytes: a second job with it is not put in
     *   queue         string  default "default"
     *   priority      int     0 to 9, higher first
     *   max_attempts  int     default: that of the kind
     *   timeout       float   seconds one run may take; default: that of the kind
     *   delay         float   seconds from now, by the server's clock
     *   at            DateTimeInterface  not before this time; not together with delay
     *   expires_at    DateTimeInterface  not after this time
     *   table         string  default "queued.jobs"
     *
     * @param mixed $payload anything that json_encode takes; null for none
     * @return int|null the new job's id; null when a job with the key is there already, which is success
     * @throws PDOException on any other error of the server
     */
    public static function enqueue(PDO $pdo, string $kind, mixed $payload = null, array $options = []): ?int
    {
        $columns = ['kind' => ['?', $kind]];
        if ($payload !== null) {
            $columns['payload'] = ['?', json_encode($payload, JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES)];
        }
        $table = 'queued.jobs';
        foreach ($options as $name => $value) {
            if ($value === null) {
                continue;
            }
            switch ($name) {
                case 'table':
                    $table = $value;
                    break;
                case 'key':
                    $columns['idempotency_key'] = ['?', (string) $value];
                    break;
                case 'queue':
                    $columns['queue'] = ['?', (string) $value];
                    break;
                case 'priority':
                case 'max_attempts':
                    $columns[$name] = ['?', (int) $value];
                    break;
                case 'timeout':
                    $columns['timeout_ms'] = ['?', (int) round($value * 1000)];
                    break;
                case 'delay':
                    $columns['available_at'] = [self::IN, (int) ceil(round($value * 1000, 3))];
                    break;
                case 'at':
                    $columns['available_at'] = [self::AT, self::milliseconds($value)];
                    break;
                case 'expires_at':
                    $columns['expires_at'] = [self::AT, self::milliseconds($value)];
                    break;
                default:
                    throw new InvalidArgumentException("Queued: there is no option \"$name\"");
            }
        }
        if (isset($options['delay'], $options['at'])) {
            throw new InvalidArgumentException('Queued: give delay or at, not both');
        }

        $sql = self::INSERT . self::quote($table) . ' (' . implode(', ', array_keys($columns)) . ') VALUES ('
            . implode(', ', array_column($columns, 0)) . ')';
        try {
            $statement = $pdo->prepare($sql);
            if ($statement !== false) {
                foreach (array_column($columns, 1) as $i => $value) {
                    $statement->bindValue($i + 1, $value, is_int($value) ? PDO::PARAM_INT : PDO::PARAM_STR);
                }
                if ($statement->execute()) {
                    return (int) $pdo->lastInsertId();
                }
            }
            // Only with PDO::ERRMODE_SILENT or ERRMODE_WARNING.
            $info = ($statement ?: $pdo)->errorInfo();
            $error = new PDOException('Queued: ' . ($info[2] ?? 'the statement failed'));
            $error->errorInfo = $info;
        } catch (PDOException $e) {
            $error = $e;
        }
        if (isset($columns['idempotency_key']) && ($error->errorInfo[1] ?? 0) === self::DUPLICATE) {
            return null;
        }
        throw $error;
    }

    private static function milliseconds(DateTimeInterface $time): int
    {
        return $time->getTimestamp() * 1000 + (int) ceil((int) $time->format('u') / 1000);
    }

    private static function quote(string $table): string
    {
        if (preg_match('/^[0-9A-Za-z_$-]+(\.[0-9A-Za-z_$-]+)?$/D', $table) !== 1) {
            throw new InvalidArgumentException('Queued: table must be a name or schema.name');
        }
        return '`' . str_replace('.', '`.`', $table) . '`';
    }
}

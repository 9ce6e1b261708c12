<?php

// Does what the test asks for on standard input, and prints what came of it.

declare(strict_types=1);
require __DIR__ . '/../../clients/php/Queued.php';

$in = json_decode(stream_get_contents(STDIN), true, 512, JSON_THROW_ON_ERROR);
date_default_timezone_set($in['zone']);
$results = [];
// Both ways of PDO, and both ways of telling errors.
$pdo = new PDO("mysql:host={$in['host']};port={$in['port']};dbname={$in['database']};charset=utf8mb4", $in['user'], $in['password'], [
    PDO::ATTR_EMULATE_PREPARES => $in['flavour'] === 0,
    PDO::ATTR_ERRMODE => $in['flavour'] === 0 ? PDO::ERRMODE_EXCEPTION : PDO::ERRMODE_SILENT,
]);
foreach ($in['init'] as $sql) {
    if ($pdo->exec($sql) === false) {
        throw new RuntimeException($sql);
    }
}
$pdo->beginTransaction();
foreach ($in['jobs'] as $job) {
    $options = $job['options'];
    foreach (['at', 'expires_at'] as $name) {
        if (isset($options[$name])) {
            $options[$name] = DateTimeImmutable::createFromFormat('U.v', sprintf('%d.%03d', intdiv($options[$name], 1000), $options[$name] % 1000));
        }
    }
    try {
        $results[] = Queued::enqueue($pdo, $job['kind'], $job['payload'], $options);
    } catch (PDOException $e) {
        $results[] = 'error ' . $e->errorInfo[1];
    }
}
foreach ($in['sql'] as $sql) {
    $pdo->exec($sql);
}
$local = $pdo->prepare("INSERT INTO {$in['table']} (kind, available_at) VALUES ('local', ?)");
$local->execute([date('Y-m-d H:i:s', $in['local'])]);
$in['commit'] ? $pdo->commit() : $pdo->rollBack();
echo json_encode($results);

package mysql

import (
	"context"
	"errors"
	"fmt"

	driversql "github.com/go-sql-driver/mysql"

	"queued/internal/store"
)

// kindOf says what kind of error a server's error number is. nil: none of them.
func kindOf(code uint16) error {
	switch code {
	case 1213, // deadlock
		1205, // lock wait timeout
		3101, // rolled back by group replication's certification
		3572: // NOWAIT or SKIP LOCKED not possible
		return store.ErrConflict
	case 1062, 1586:
		return store.ErrDuplicate
	case 1290, 1792, 1836, // read-only server, transaction or mode
		1040, 1203, 1226, // too many connections
		1053, 1077, 1079, 3168, 3169, // shutting down, not ready
		1152, 1158, 1159, 1160, 1161, 1184, 1927, // connection broken on the way
		1021, 1114, 1037, 1038, 1041, 3675, // out of disk or memory
		1047, 3100, // cluster node not ready
		1194, 1195, 1030, 1015, // crashed table, storage engine trouble
		1317, 3024, 1969, 1028, // statement interrupted or out of time
		1129, 2002, 2003, 2006, 2013, 2055: // host blocked; client codes that proxies answer with
		return store.ErrUnavailable
	case 1044, 1045, 1142, 1143, 1227, 1370, 1698, 1820, 1862, 1130, 3118, 4151:
		return store.ErrDenied
	case 1146, 1054, 1049, 1305, 1932:
		return store.ErrSchema
	case 1048, 1264, 1265, 1292, 1300, 1364, 1366, 1406, 1411, 1153, 1118,
		3140, 3141, 3143, 3144, 3146, 3156, 3157, 3819, 4025:
		return store.ErrData
	}
	return nil
}

// codeOf is the server's error number in err, 0 when it has none.
func codeOf(err error) uint16 {
	if me, ok := errors.AsType[*driversql.MySQLError](err); ok {
		return me.Number
	}
	return 0
}

// answered says whether the server itself refused: then the statement, unlike
// after a broken connection, surely had no effect.
func answered(err error) bool { return codeOf(err) != 0 }

// wrap names the operation and the error's kind. parent is the caller's context:
// a call that the caller gave up is not the database's fault.
func wrap(parent context.Context, op string, err error) error {
	switch {
	case err == nil:
		return nil
	case parent.Err() != nil && !answered(err):
		return fmt.Errorf("%s: %w", op, context.Cause(parent))
	}
	code := codeOf(err)
	kind := kindOf(code)
	if errors.Is(err, driversql.ErrPktTooLarge) {
		kind = store.ErrData
	}
	switch {
	case kind != nil:
		return fmt.Errorf("%s: %w: %w", op, kind, err)
	case code == 0 && !isSentinel(err):
		// No answer: refused, cut off, timed out.
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("%s: %w: no answer in time", op, store.ErrUnavailable)
		}
		return fmt.Errorf("%s: %w: %w", op, store.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

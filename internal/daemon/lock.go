//go:build unix

package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// LockedError says that another process holds a lock.
type LockedError struct {
	File string
	PID  string // of the process, "" when it can't be told
}

func (e *LockedError) Error() string {
	who := "another process"
	if e.PID != "" {
		who = "process " + e.PID
	}
	return fmt.Sprintf("%s holds the lock %s", who, e.File)
}

// Lock takes the lock on a file, which is made if need be and stays. The lock ends
// with Close or with the process. When another process has it the error is a
// LockedError.
func Lock(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			text, _ := io.ReadAll(io.LimitReader(f, 32)) // it may just be written
			err = &LockedError{File: name, PID: strings.TrimSpace(string(text))}
		} else {
			err = fmt.Errorf("lock %s: %w", name, err)
		}
		return nil, errors.Join(err, f.Close())
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write lock file: %w", err), f.Close())
	}
	return f, nil
}

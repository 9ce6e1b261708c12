package handlers

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a started command that leads a process group of its own.
//
// Its methods are called in this order: feed, collect, stop if need be, end, drain.
type process struct {
	cmd    *exec.Cmd
	pid    int
	exited chan struct{} // closed when the command has ended; it is a zombie until end

	stdin, stdout, stderr *os.File       // our ends
	streams               sync.WaitGroup // the goroutines that use them
}

// start starts cmd. The goroutine that it leaves behind ends with the command.
func start(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan struct{})}
	var err error
	if p.stdin, p.stdout, p.stderr, err = pipes(cmd); err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid: true,
		// When the daemon dies, so does the command, instead of working beside the
		// next attempt. The kernel sends it when the thread ends that made the child, so
		// that thread is held until the child has ended. What the child has started
		// is not covered; systemd ends that with the unit's cgroup.
		Pdeathsig: syscall.SIGKILL,
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			waitExit(cmd.Process.Pid)
			close(p.exited)
		}
	}()
	err = <-started
	for _, childs := range []any{cmd.Stdin, cmd.Stdout, cmd.Stderr} {
		childs.(*os.File).Close()
	}
	if err != nil {
		p.stdin.Close()
		p.stdout.Close()
		p.stderr.Close()
		return nil, err
	}
	p.pid = cmd.Process.Pid
	// When memory runs out, a job goes and not the daemon. Best effort.
	_ = os.WriteFile(procFile(p.pid, "oom_score_adj"), []byte("500"), 0)
	return p, nil
}

// waitExit waits until the process has ended and leaves it a zombie. As long as
// it is one, nobody else can have its number, so its group can be signalled safely.
func waitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// feed writes the payload to standard input. A command that doesn't read it is
// as good as one that does.
func (p *process) feed(payload []byte) {
	p.streams.Go(func() {
		_, _ = p.stdin.Write(payload)
		p.stdin.Close()
	})
}

// collect reads standard output and standard error.
func (p *process) collect(stdout, stderr *output) {
	p.streams.Go(func() { stdout.copyFrom(p.stdout) })
	p.streams.Go(func() { stderr.copyFrom(p.stderr) })
}

// stop ends the command and its group: TERM, and when any of them is left after
// grace, KILL. It returns when the command has ended.
func (p *process) stop(grace time.Duration) {
	p.signal(syscall.SIGTERM)
	over := time.NewTimer(grace)
	defer over.Stop()
	select {
	case <-p.exited:
	case <-over.C:
		p.signal(syscall.SIGKILL)
		<-p.exited
		return
	}
	// The others of the group have the same grace, e.g. the children of a shell that
	// went at once.
	for wait := time.Millisecond; len(group(p.pid)) > 0; wait = longer(wait) {
		select {
		case <-time.After(wait):
		case <-over.C:
			return
		}
	}
}

// longer is the next pause of a loop that looks through /proc: soon at first, and
// not often, since hundreds of runs may do so when the daemon stops.
func longer(wait time.Duration) time.Duration { return min(2*wait, 200*time.Millisecond) }

// signal sends sig to the group, and to the command if it has left it. No error is
// of interest: the only one that can happen is that there is nobody left.
func (p *process) signal(sig syscall.Signal) {
	_ = syscall.Kill(-p.pid, sig)
	if pgid, err := syscall.Getpgid(p.pid); err == nil && pgid != p.pid {
		_ = syscall.Kill(p.pid, sig)
	}
}

// end kills what the command has left in its group and takes its exit status;
// gone is false when something of the group can't be killed.
func (p *process) end() (status syscall.WaitStatus, gone bool) {
	<-p.exited
	p.signal(syscall.SIGKILL)
	_ = p.cmd.Wait() // the status says it all
	status, _ = p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	// From here on the number may be another's: look, but don't touch. Zombies are
	// left in the group where nobody reaps orphans, as in many containers.
	deadline := time.Now().Add(time.Second)
	for wait := time.Millisecond; ; wait = longer(wait) {
		if errors.Is(syscall.Kill(-p.pid, 0), syscall.ESRCH) || len(group(p.pid)) == 0 {
			return status, true
		}
		if time.Now().After(deadline) {
			return status, false
		}
		<-time.After(wait)
	}
}

// drain waits until all output is read, at most for the given time; it is false
// when a process held the streams longer than that.
func (p *process) drain(wait time.Duration) (all bool) {
	p.stdin.Close()
	read := make(chan struct{})
	go func() {
		p.streams.Wait()
		close(read)
	}()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-read:
		all = true
	case <-timer.C:
	}
	p.stdout.Close()
	p.stderr.Close()
	<-read
	return all
}

// group returns the living processes of a process group.
func group(pgid int) []int {
	return processes(func(pid int) bool {
		stat, err := os.ReadFile(procFile(pid, "stat"))
		if err != nil {
			return false
		}
		// "pid (name) state ppid pgrp ...", and the name may have anything in it.
		f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		return len(f) > 2 && string(f[0]) != "Z" && string(f[2]) == strconv.Itoa(pgid)
	})
}

// marked returns the living processes of a run, wherever they have gone.
func marked(runID string) []int {
	return processes(func(pid int) bool { return isMarked(pid, runID) })
}

func isMarked(pid int, runID string) bool {
	env, err := os.ReadFile(procFile(pid, "environ")) // empty for a zombie, refused for another user's
	return err == nil && bytes.Contains(env, []byte(runVar+"="+runID+"\x00"))
}

// killMarked kills the processes of a run. It returns those that it killed and
// those that it could not kill.
func killMarked(runID string) (killed, left []int) {
	for range 10 { // they may be starting others
		if left = marked(runID); len(left) == 0 {
			break
		}
		for _, pid := range left {
			if kill(pid, runID) {
				killed = append(killed, pid)
			}
		}
	}
	return killed, left
}

// kill kills a process if it is of the run. Through a descriptor, since the
// number may be another's by now.
func kill(pid int, runID string) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if !isMarked(pid, runID) || unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) != nil {
		return false
	}
	// Readable when the process has ended.
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Second/time.Millisecond))
	return true
}

// processes returns those of all processes for which f is true.
func processes(f func(pid int) bool) (pids []int) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && f(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func procFile(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

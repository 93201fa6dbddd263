package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// pipePatience is how long output is still read after a process ended, in case
// a process that it started holds the pipe.
const pipePatience = 2 * time.Second

// ProcessOptions describe a child process.
type ProcessOptions struct {
	Path string   // the program
	Args []string // without the program's name
	Env  []string // NAME=value; nil means the caller's own environment
	Dir  string   // working folder; empty means the caller's own

	// Stdout and Stderr take the output; nil discards it. An *os.File is handed
	// to the child as it is, anything else is fed by a goroutine.
	Stdout io.Writer
	Stderr io.Writer

	// deathSignal is what the child gets when this process dies; zero is SIGKILL.
	deathSignal syscall.Signal
	owner       *owner // who runs it; nil means the caller's own user
	door        string // a folder that the child gets opened, as file descriptor 3
}

// Process is a running child in a process group of its own, so that a Ctrl-C
// meant for the caller does not reach it. It ends when the caller does, however
// that ends. It is safe for concurrent use.
type Process struct {
	pid  int
	cmd  *exec.Cmd
	done chan struct{}
	err  error // how it ended; set before done is closed

	alive context.Context // ends with the process
	ended context.CancelFunc

	mu     sync.Mutex
	unwait func() // ends the guard of a pause; nil while there is none
}

// StartProcess starts a child. The context bounds the start alone: the child
// outlives it and is ended by Stop or Kill, so that a cancelled caller can stop
// its children in order.
func StartProcess(ctx context.Context, options ProcessOptions) (*Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start %s: %w", options.Path, err)
	}
	cmd := exec.Command(options.Path, options.Args...)
	cmd.Env, cmd.Dir = options.Env, options.Dir
	cmd.Stdout, cmd.Stderr = options.Stdout, options.Stderr
	cmd.WaitDelay = pipePatience
	if options.door != "" {
		door, err := os.Open(options.door)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", options.Path, err)
		}
		defer door.Close()
		cmd.ExtraFiles = []*os.File{door}
	}
	if options.deathSignal == 0 {
		options.deathSignal = sigKill
	}
	setAttributes(cmd, options)

	p := &Process{cmd: cmd, done: make(chan struct{})}
	p.alive, p.ended = context.WithCancel(context.Background())
	started := make(chan error, 1)
	go p.hold(options, started)
	if err := <-started; err != nil {
		p.ended()
		return nil, fmt.Errorf("start %s: %w", options.Path, err)
	}
	return p, nil
}

// hold starts the child and waits for it on one locked thread: Linux sends the
// death signal when the *thread* that started a child ends, and the runtime
// ends threads as it likes. It returns when the child has ended.
func (p *Process) hold(options ProcessOptions, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	p.pid = p.cmd.Process.Pid
	release, err := guardOrphan(p.pid, options.deathSignal)
	if err != nil {
		_ = signalGroup(p.pid, sigKill)
		_ = p.cmd.Wait()
		started <- err
		return
	}
	started <- nil
	p.err = p.cmd.Wait()
	release()
	p.endGuard()
	p.ended()
	close(p.done)
}

// Pid is the process id; it stays the same after the process has ended.
func (p *Process) Pid() int { return p.pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the process ended: nil while it runs and after exit code 0, an
// *exec.ExitError for another code or a signal.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Signal sends a signal to the process, not to its group. A process that has
// ended is os.ErrProcessDone.
func (p *Process) Signal(signal os.Signal) error { return p.cmd.Process.Signal(signal) }

// Kill ends the process and its group by SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	_ = p.signalTree(sigKill)
	<-p.done
}

// Pause stops the process and what it started (SIGSTOP) until Resume.
func (p *Process) Pause() error {
	if err := p.signalGroup(sigPause); err != nil {
		return err
	}
	family := descendants(p.pid)
	if len(family) == 0 {
		return nil
	}
	// When the caller is killed the kernel wakes the stopped group, but not
	// those that left it: each backend of Postgres makes a group of its own.
	// Nobody would ever wake them, and their parent would wait for them.
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unwait == nil {
		release, err := onOrphaned(sigResume, family)
		if err != nil {
			return errors.Join(err, p.signalGroup(sigResume))
		}
		p.unwait = release
	}
	for _, pid := range family {
		signalProcess(pid, sigPause)
	}
	return nil
}

// Resume lets a paused process go on (SIGCONT).
func (p *Process) Resume() error {
	err := p.signalTree(sigResume)
	p.endGuard()
	return err
}

func (p *Process) endGuard() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unwait != nil {
		p.unwait()
		p.unwait = nil
	}
}

func (p *Process) signalGroup(signal syscall.Signal) error {
	select {
	case <-p.done:
		return os.ErrProcessDone
	default:
		return signalGroup(p.pid, signal)
	}
}

// signalTree reaches the group and the descendants that left it.
func (p *Process) signalTree(signal syscall.Signal) error {
	family := descendants(p.pid)
	err := p.signalGroup(signal)
	if errors.Is(err, os.ErrProcessDone) {
		return err
	}
	for _, pid := range family {
		signalProcess(pid, signal)
	}
	return err
}

// Stop asks the process to end (SIGTERM), and kills it after the grace. It
// returns how the process ended, and an error if it had to be killed. Stopping
// a process that has ended returns how that was.
func (p *Process) Stop(grace time.Duration) error {
	if p.end([]step{{sigTerminate, grace}}) {
		return p.Err()
	}
	return fmt.Errorf("%s did not stop within %v and was killed", p.cmd.Path, grace)
}

// step is one rung of a stop: a signal, and how long it is given to work.
type step struct {
	signal syscall.Signal
	wait   time.Duration
}

// end walks down the steps, then kills, and says whether the kill was not
// needed. A paused process is resumed, else it would not hear.
func (p *Process) end(steps []step) (gently bool) {
	for _, step := range steps {
		_ = p.Signal(step.signal)
		_ = p.Resume()
		timer := time.NewTimer(step.wait)
		select {
		case <-p.done:
			timer.Stop()
			return true
		case <-timer.C:
		}
	}
	p.Kill()
	return false
}

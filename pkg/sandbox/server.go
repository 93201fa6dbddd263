package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	// startTries bounds how often a server whose port was snatched is started
	// on another one.
	startTries = 5
	// startLimit bounds one start, crash recovery included.
	startLimit = 60 * time.Second
	// restartPatience is how long a restart waits for the old port, or for
	// Postgres' old backends, to be let go.
	restartPatience = 10 * time.Second
	// logTail is how much of a log is quoted in an error, in bytes.
	logTail = 1000
)

// ErrForeign is returned by what would stop, kill or pause a server that
// belongs to the user.
var ErrForeign = errors.New("the server was named by its URL and is not the sandbox's to control")

// Server is what Redis and Postgres have in common: a process in a folder on a
// port. It is safe for concurrent use; starts and stops wait for each other.
type Server struct {
	stack   *Stack
	name    string
	dir     string // data folder
	address string // of the user's own server; a private one has a port

	launch launcher

	control sync.Mutex // held through a start or a stop

	mu      sync.Mutex
	port    int
	process *Process
	asked   bool // the process was told to end by us
}

// launcher knows how one kind of server is started.
type launcher interface {
	// options describe the process for a port.
	options(port int) ProcessOptions
	// ready tries once whether the process with this pid answers on the port.
	ready(ctx context.Context, port, pid int) error
	// stop are the steps of an orderly end.
	stop() []step
}

// Addr is host:port. It stays the same over Restart.
func (s *Server) Addr() string {
	if s.address != "" {
		return s.address
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return loopback(s.port)
}

// Pid is the process id, or 0 when no process of ours runs.
func (s *Server) Pid() int {
	process := s.running()
	if process == nil {
		return 0
	}
	return process.Pid()
}

// Dir is the folder of the server's data; empty for the user's own server.
func (s *Server) Dir() string { return s.dir }

// LogPath is the file that takes the server's output; empty for the user's own.
func (s *Server) LogPath() string {
	if s.dir == "" {
		return ""
	}
	return s.dir + ".log"
}

// Done is closed when the present process has ended, asked to or not. Restart
// begins another. It never closes for the user's own server.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return nil
	}
	return s.process.Done()
}

// Err is an error with the end of the log when the server ended by itself, and
// nil while it runs or after Stop, Kill and Close.
func (s *Server) Err() error {
	s.mu.Lock()
	process, asked := s.process, s.asked
	s.mu.Unlock()
	if process == nil || asked {
		return nil
	}
	select {
	case <-process.Done():
		return fmt.Errorf("%s ended by itself (%s): %s", s.name, fmt.Sprint(process.Err()), s.tail(0))
	default:
		return nil
	}
}

// running is the process that runs, or nil.
func (s *Server) running() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return nil
	}
	select {
	case <-s.process.Done():
		return nil
	default:
		return s.process
	}
}

// Stop ends the server in an orderly way and keeps its data. Stopping a stopped
// one is fine. If it had to be killed, that is the error.
func (s *Server) Stop() error {
	s.control.Lock()
	defer s.control.Unlock()
	return s.stop()
}

func (s *Server) stop() error {
	if s.address != "" {
		return ErrForeign
	}
	process := s.leave()
	if process == nil {
		return nil
	}
	if !process.end(s.launch.stop()) {
		return fmt.Errorf("%s did not stop and was killed: %s", s.name, s.tail(0))
	}
	return nil
}

// leave notes that the end of the running process is wanted, and returns it.
func (s *Server) leave() *Process {
	process := s.running()
	if process != nil {
		s.mu.Lock()
		s.asked = true
		s.mu.Unlock()
	}
	return process
}

// Kill ends the server as a crash would (SIGKILL), its backends included, and
// returns when it is gone. Its data stays as the crash left it.
func (s *Server) Kill() error {
	s.control.Lock()
	defer s.control.Unlock()
	if s.address != "" {
		return ErrForeign
	}
	if process := s.leave(); process != nil {
		process.Kill()
	}
	return nil
}

// Restart starts the server again in the same folder and on the same port,
// stopping it first if it runs, and returns when it answers.
func (s *Server) Restart(ctx context.Context) error {
	s.control.Lock()
	defer s.control.Unlock()
	if err := s.stop(); err != nil {
		return err
	}
	deadline := time.Now().Add(restartPatience)
	for {
		err := s.run(ctx, s.port)
		if !errors.Is(err, errBusy) || time.Now().After(deadline) || !pause(ctx, 5*pollEvery) {
			return err
		}
	}
}

// Pause stops the server's processes where they are (SIGSTOP): connections stay
// open and nothing answers, until Resume.
func (s *Server) Pause() error {
	return s.signal((*Process).Pause)
}

// Resume lets a paused server go on.
func (s *Server) Resume() error {
	return s.signal((*Process).Resume)
}

func (s *Server) signal(send func(*Process) error) error {
	if s.address != "" {
		return ErrForeign
	}
	process := s.running()
	if process == nil {
		return fmt.Errorf("%s does not run: %w", s.name, os.ErrProcessDone)
	}
	return send(process)
}

// Close stops the server and, in a temporary folder, removes its data. The
// user's own server is left alone.
func (s *Server) Close() error {
	if s.address != "" {
		return nil
	}
	s.control.Lock()
	defer s.control.Unlock()
	err := s.stop()
	if !s.stack.folder.kept {
		removeSharedMemory(s.dir)
		err = errors.Join(err, os.RemoveAll(s.dir), remove(s.LogPath()))
	}
	s.stack.release(s.name, s)
	return err
}

// start finds a port and runs the server on it.
func (s *Server) start(ctx context.Context) error {
	var err error
	for range startTries {
		var port int
		if port, err = s.stack.pick(); err != nil {
			return err
		}
		if err = s.run(ctx, port); !errors.Is(err, errBusy) {
			return err
		}
	}
	return fmt.Errorf("%d tries: %w", startTries, err)
}

// errBusy means that what the server needs is still held by somebody else.
var errBusy = errors.New("in use")

// run starts the process and returns when it answers. If it does not, it is
// ended, and the error quotes its log.
func (s *Server) run(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	log, err := os.OpenFile(s.LogPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", s.name, err)
	}
	defer log.Close()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", s.name, err)
	}
	options := s.launch.options(port)
	options.Stdout, options.Stderr = log, log
	process, err := StartProcess(ctx, options)
	if err != nil {
		return err
	}
	if err := s.await(ctx, process, port, from); err != nil {
		process.Kill()
		return err
	}
	s.mu.Lock()
	s.port, s.process, s.asked = port, process, false
	s.mu.Unlock()
	return nil
}

func (s *Server) await(ctx context.Context, process *Process, port int, from int64) error {
	// A port that somebody holds in silence would keep the try waiting for an
	// answer long after our process has given up.
	try, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(process.alive, cancel)()
	for {
		err := s.launch.ready(try, port, process.Pid())
		if err == nil {
			return nil
		}
		if try.Err() != nil && ctx.Err() == nil {
			<-process.Done()
			tail := s.tail(from)
			if strings.Contains(tail, "ddress already in use") || strings.Contains(tail, "shared memory block") {
				return fmt.Errorf("start %s on port %d: %w: %s", s.name, port, errBusy, tail)
			}
			return fmt.Errorf("start %s: it ended (%s): %s", s.name, fmt.Sprint(process.Err()), tail)
		}
		if !pause(try, pollEvery) && ctx.Err() != nil {
			return fmt.Errorf("start %s: no answer on port %d: %w (last: %w)\n%s", s.name, port, ctx.Err(), err, s.tail(from))
		}
	}
}

// tail is the end of the log, from an offset on.
func (s *Server) tail(from int64) string {
	file, err := os.Open(s.LogPath())
	if err != nil {
		return "no log: " + err.Error()
	}
	defer file.Close()
	if end, err := file.Seek(0, io.SeekEnd); err == nil {
		from = max(from, end-logTail)
	}
	text, err := io.ReadAll(io.NewSectionReader(file, from, logTail))
	if err != nil {
		return "no log: " + err.Error()
	}
	return string(bytes.TrimSpace(text))
}

// folderFor makes the data folder of a server and gives it to the owner.
func (s *Stack) folderFor(name string, user *owner) (string, error) {
	dir := filepath.Join(s.folder.path, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the folder of %s: %w", name, err)
	}
	if err := user.give(dir); err != nil {
		return "", fmt.Errorf("give the folder of %s to its user: %w", name, err)
	}
	return dir, nil
}

// remove removes a file that need not exist.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

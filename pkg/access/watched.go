package access

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// lookEvery is the least time between two looks at the files. Contents are compared and not times of change: a
// secret that is mounted into a container is replaced by a link to an older file.
const lookEvery = time.Second

// A watched is what some files say. Whoever asks for it looks, once a second at most, whether they changed: so no
// goroutine has to be kept and stopped, and a listener that nobody asks reads nothing.
type watched[T any] struct {
	what  string
	paths []string
	most  int64 // bytes of one file
	tell  func(error)
	parse func([][]byte) (T, error)

	value atomic.Pointer[T]
	due   atomic.Int64 // of the next look, since start

	start  time.Time
	mu     sync.Mutex // held by the one who looks
	digest [sha256.Size]byte
	said   string // of what was told last
}

func watch[T any](what string, paths []string, most int64, tell func(error), parse func([][]byte) (T, error)) (*watched[T], error) {
	w := &watched[T]{what: what, paths: paths, most: most, tell: tell, parse: parse, start: time.Now()}
	if tell == nil {
		w.tell = func(error) {}
	}
	w.due.Store(int64(lookEvery))
	if err := w.read(); err != nil {
		return nil, err
	}
	return w, nil
}

// get never waits for a look that somebody else is at.
func (w *watched[T]) get() T {
	now := time.Since(w.start)
	due := w.due.Load()
	if int64(now) >= due && w.due.CompareAndSwap(due, int64(now+lookEvery)) {
		w.again()
	}
	return *w.value.Load()
}

// again reads; what cannot be taken is told once, and changes nothing.
func (w *watched[T]) again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.read()
	if err == nil {
		w.said = ""
		return
	}
	if err.Error() != w.said {
		w.said = err.Error()
		w.tell(fmt.Errorf("%w; what it said before stays in force", err))
	}
}

func (w *watched[T]) read() error {
	texts := make([][]byte, len(w.paths))
	whole := sha256.New()
	for i, path := range w.paths {
		text, err := readFile(path, w.most)
		if err != nil {
			return fmt.Errorf("%s: %w", w.what, err)
		}
		texts[i] = text
		fmt.Fprintf(whole, "%d:", len(text))
		whole.Write(text)
	}
	var digest [sha256.Size]byte
	copy(digest[:], whole.Sum(nil))
	if w.value.Load() != nil && digest == w.digest {
		return nil
	}
	value, err := w.parse(texts)
	if err != nil {
		return fmt.Errorf("%s %s: %w", w.what, w.paths[0], err)
	}
	w.digest = digest
	w.value.Store(&value)
	return nil
}

func readFile(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: name a file that this user may read", err)
	}
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	err = errors.Join(err, file.Close())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(len(text)) > most {
		return nil, fmt.Errorf("%s has more than %d bytes: it is not the file that is meant", path, most)
	}
	return text, nil
}

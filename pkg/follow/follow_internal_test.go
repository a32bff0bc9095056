// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
)

// A kernel stands for that of [watches].
type kernel struct {
	events chan fsnotify.Event
	errors chan error
	calls  []string // "add FOLDER", "remove FOLDER"; of one goroutine
	away   int      // times that there are no watches to be had
	traps  int      // times that a watch for a folder panics
}

func (k *kernel) open() (watches, error) {
	if k.away > 0 {
		k.away--
		return watches{}, errors.New("too many open files")
	}
	note := func(what string) func(string) error {
		return func(folder string) error {
			k.calls = append(k.calls, what+" "+filepath.Base(folder))
			if k.traps > 0 {
				k.traps--
				panic("a trap")
			}
			return nil
		}
	}
	return watches{
		add: note("add"), remove: note("remove"), events: k.events, errors: k.errors,
		close: func() error {
			k.calls = append(k.calls, "close")
			return nil
		},
	}, nil
}

// A scene follows paths in the time of a bubble.
type scene struct {
	*kernel
	rest func(look int) time.Duration
	log  bytes.Buffer
	end  func()

	mu    sync.Mutex // guards looks
	looks []string   // when, since the begin, and whether it was told
}

// note notes a look, and how many there are.
func (s *scene) note(look string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks = append(s.looks, look)
	return len(s.looks)
}

// begin begins to follow. Whoever looks panics when rest does.
func begin(t *testing.T, s *scene, paths ...string) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	f := files{open: s.open, Config: Config{
		Paths: paths, Log: slog.New(slog.NewTextHandler(&s.log, nil)),
		Look: func(told bool) time.Duration {
			return s.rest(s.note(fmt.Sprintf("%s %t", time.Since(began), told)))
		},
		Defect: func(panicked any, stack []byte) {
			s.note(fmt.Sprintf("%v, its stack %t", panicked, strings.Contains(string(stack), "(*files).run")))
		},
	}}
	go func() {
		defer close(ended)
		f.run(ctx)
	}()
	s.end = func() {
		cancel()
		<-ended
	}
	synctest.Wait()
}

func newScene() *scene {
	return &scene{
		kernel: &kernel{events: make(chan fsnotify.Event), errors: make(chan error)},
		rest:   func(int) time.Duration { return 0 },
	}
}

func (s *scene) expect(t *testing.T, when string, want ...string) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if diff := cmp.Diff(want, s.looks); diff != "" {
		t.Errorf("%s: looks (-want +got):\n%s", when, diff)
	}
	s.looks = nil
}

// TestTimes looks at once, soon after events, during those that never end, after lost ones, and from time to time.
func TestTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		begin(t, s)
		defer s.end()
		s.expect(t, "at once", "0s true")
		time.Sleep(2 * reread)
		s.expect(t, "without events", "5s false", "10s false")
		for range 3 {
			s.events <- fsnotify.Event{}
			time.Sleep(quiet - time.Millisecond)
		}
		time.Sleep(time.Second)
		s.expect(t, "after three", "10.148s true")
		for range 34 {
			s.events <- fsnotify.Event{}
			time.Sleep(30 * time.Millisecond)
		}
		time.Sleep(time.Second)
		s.expect(t, "in a folder without rest", "11.647s true", "12.157s true")
		s.errors <- fsnotify.ErrEventOverflow
		time.Sleep(time.Second)
		s.expect(t, "after lost ones", "13.217s true")
	})
}

// TestRest has a file that is being written: it is looked at in its time, events or not.
func TestRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		s.rest = func(look int) time.Duration {
			if look < 3 {
				return 250 * time.Millisecond
			}
			return 0
		}
		begin(t, s)
		defer s.end()
		s.events <- fsnotify.Event{}
		time.Sleep(reread)
		s.expect(t, "twice", "0s true", "250ms true", "500ms true")
	})
}

// TestDefect has looks that panic: each is told of, and followed by another in its time, which is told as that one was.
func TestDefect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		s.rest = func(look int) time.Duration {
			if look < 4 {
				panic("a defect")
			}
			return 0
		}
		begin(t, s)
		defer s.end()
		time.Sleep(reread + time.Second)
		s.events <- fsnotify.Event{}
		time.Sleep(reread + time.Second)
		s.expect(t, "four", "0s true", "a defect, its stack true", "5s true", "a defect, its stack true", "6.05s true", "11.05s false")
	})
}

// TestDefectRestless has looks that panic, in a folder that never rests: that does not put the next ones off.
func TestDefectRestless(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		s.rest = func(look int) time.Duration {
			if look == 1 {
				panic("a defect")
			}
			return 0
		}
		begin(t, s)
		defer s.end()
		for range 36 {
			s.events <- fsnotify.Event{}
			time.Sleep(30 * time.Millisecond)
		}
		s.expect(t, "all the time", "0s true", "a defect, its stack true", "500ms true", "1.01s true")
	})
}

// TestDefectInWatching has the making of a watch panic: there is a look all the same, and the watches are there at the next.
func TestDefectInWatching(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		s.traps = 1
		begin(t, s, "/nonexistent/file", "/elsewhere/file")
		time.Sleep(2*reread + time.Second)
		s.expect(t, "a trap at first", "a trap, its stack true", "0s true", "5s true", "10s false")
		s.end()
		want := []string{"add nonexistent", "add nonexistent", "add elsewhere", "add nonexistent", "add elsewhere", "close"}
		if diff := cmp.Diff(want, s.calls); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

// TestNoWatches begins while the kernel has none to give.
func TestNoWatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		s.away = 2
		begin(t, s, "/nonexistent/file")
		defer s.end()
		time.Sleep(2*reread + time.Second)
		s.expect(t, "by time", "0s true", "5s false", "10s false")
		s.events <- fsnotify.Event{}
		time.Sleep(time.Second)
		s.expect(t, "by events, later", "11.05s true")
		if n := strings.Count(s.log.String(), "no file events"); n != 1 {
			t.Errorf("said %d times, want once:\n%s", n, s.log.String())
		}
	})
}

// TestFolders watches where links lead, and not where they led.
func TestFolders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "file"), name)
	}
	link := filepath.Join(dir, "a", "link")
	lead := func(to string) {
		t.Helper()
		_ = os.Remove(link)
		if err := os.Symlink(filepath.Join(dir, to, "file"), link); err != nil {
			t.Fatal(err)
		}
	}
	lead("b")
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		begin(t, s, link, filepath.Join(dir, "a", "file"))
		lead("c")
		time.Sleep(reread)
		synctest.Wait()
		lead("link") // to itself
		if err := os.Symlink(link, link+".loop"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(reread)
		s.end()
		want := []string{"add a", "add b", "add a", "add c", "remove b", "add a", "remove c", "close"}
		if diff := cmp.Diff(want, s.calls); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestFiles changes a file in every way that files are changed, with the kernel that there is.
func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	texts := make(chan string, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Files(ctx, Config{
			Paths: []string{path}, Log: slog.New(slog.DiscardHandler),
			Look: func(told bool) time.Duration {
				text, err := os.ReadFile(path)
				switch {
				case !told:
				case err != nil:
					texts <- "gone"
				default:
					texts <- string(text)
				}
				return 0
			},
			Defect: func(panicked any, _ []byte) { t.Error(panicked) },
		})
	}()
	defer func() {
		cancel()
		<-ended
	}()
	becomes := func(want string) {
		t.Helper()
		late := time.After(30 * time.Second)
		for {
			select {
			case text := <-texts:
				if text == want {
					return
				}
			case <-late:
				t.Fatalf("no event has led to %q", want)
			}
		}
	}
	swap := func(version string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version, "file"), version)
		if err := os.Symlink(version, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	becomes("gone")
	write(t, path, "made")
	becomes("made")
	write(t, path, "written in place")
	becomes("written in place")
	write(t, path+".new", "replaced")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	becomes("replaced")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	becomes("gone")
	swap("..1")
	if err := os.Symlink("..data/file", path); err != nil {
		t.Fatal(err)
	}
	becomes("..1")
	for _, version := range []string{"..2", "..3", "..4", "..5"} {
		swap(version)
		becomes(version)
	}
	write(t, filepath.Join(dir, "..5", "file"), "behind the links")
	becomes("behind the links")
}

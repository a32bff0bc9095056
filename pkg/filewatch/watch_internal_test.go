// SPDX-License-Identifier: Apache-2.0

package filewatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/nodecache/node-cache/internal/assert"
)

// fakeEvents is an [eventSource] that the test controls.
type fakeEvents struct {
	events      chan fsnotify.Event
	errors      chan error
	calls       []string // "add FOLDER", "remove FOLDER"; of one goroutine
	unavailable int      // how often open still fails
	panics      int      // how often add still panics
}

func (k *fakeEvents) open() (eventSource, error) {
	if k.unavailable > 0 {
		k.unavailable--
		return eventSource{}, errors.New("too many open files")
	}
	note := func(what string) func(string) error {
		return func(folder string) error {
			k.calls = append(k.calls, what+" "+filepath.Base(folder))
			if k.panics > 0 {
				k.panics--
				panic("add panicked")
			}
			return nil
		}
	}
	return eventSource{
		add: note("add"), remove: note("remove"), events: k.events, errors: k.errors,
		close: func() error {
			k.calls = append(k.calls, "close")
			return nil
		},
	}, nil
}

// harness runs a watcher in virtual time.
type harness struct {
	*fakeEvents
	folder string
	pause  func(n int) time.Duration
	log    bytes.Buffer
	stop   func()

	mu     sync.Mutex // guards checks
	checks []string   // when, since the start, and whether notified
}

// record adds a call and returns how many there are.
func (h *harness) record(call string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = append(h.checks, call)
	return len(h.checks)
}

// start starts the watcher. Check panics when h.pause does.
func start(t *testing.T, h *harness, paths ...string) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	w := watcher{open: h.open, Config: Config{
		Paths: paths, Folder: h.folder, Log: slog.New(slog.NewTextHandler(&h.log, nil)),
		Check: func(notified bool) time.Duration {
			return h.pause(h.record(fmt.Sprintf("%s %t", time.Since(began), notified)))
		},
		OnPanic: func(panicked any) {
			h.record(fmt.Sprintf("%v, with stack %t", panicked, strings.Contains(string(debug.Stack()), "(*watcher).run")))
		},
	}}
	go func() {
		defer close(ended)
		w.run(ctx)
	}()
	h.stop = func() {
		cancel()
		<-ended
	}
	synctest.Wait()
}

func newHarness() *harness {
	return &harness{
		fakeEvents: &fakeEvents{events: make(chan fsnotify.Event), errors: make(chan error)},
		pause:      func(int) time.Duration { return 0 },
	}
}

func (h *harness) expect(t *testing.T, when string, want ...string) {
	t.Helper()
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	assert.Same(t, when+": checks", want, h.checks)
	h.checks = nil
}

// Check is called at once, soon after events, during constant events, after lost events, and as a poll.
func TestCheckTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		start(t, h)
		defer h.stop()
		h.expect(t, "at once", "0s true")
		time.Sleep(2 * pollInterval)
		h.expect(t, "without events", "5s false", "10s false")
		for range 3 {
			h.events <- fsnotify.Event{}
			time.Sleep(settleTime - time.Millisecond)
		}
		time.Sleep(time.Second)
		h.expect(t, "after three events", "10.148s true")
		for range 34 {
			h.events <- fsnotify.Event{}
			time.Sleep(30 * time.Millisecond)
		}
		time.Sleep(time.Second)
		h.expect(t, "during constant events", "11.647s true", "12.157s true")
		h.errors <- fsnotify.ErrEventOverflow
		time.Sleep(time.Second)
		h.expect(t, "after lost events", "13.217s true")
	})
}

// A pause decides when Check is called next, regardless of events.
func TestPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		h.pause = func(n int) time.Duration {
			if n < 3 {
				return 250 * time.Millisecond
			}
			return 0
		}
		start(t, h)
		defer h.stop()
		h.events <- fsnotify.Event{}
		time.Sleep(pollInterval)
		h.expect(t, "twice", "0s true", "250ms true", "500ms true")
	})
}

// Each panic of Check is reported, and the next call comes as usual with notified set.
func TestCheckPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		h.pause = func(n int) time.Duration {
			if n < 4 {
				panic("check panicked")
			}
			return 0
		}
		start(t, h)
		defer h.stop()
		time.Sleep(pollInterval + time.Second)
		h.events <- fsnotify.Event{}
		time.Sleep(pollInterval + time.Second)
		h.expect(t, "four", "0s true", "check panicked, with stack true", "5s true", "check panicked, with stack true", "6.05s true", "11.05s false")
	})
}

// A panic of Check does not delay the next calls in a folder with constant events.
func TestCheckPanicsInBusyFolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		h.pause = func(n int) time.Duration {
			if n == 1 {
				panic("check panicked")
			}
			return 0
		}
		start(t, h)
		defer h.stop()
		for range 36 {
			h.events <- fsnotify.Event{}
			time.Sleep(30 * time.Millisecond)
		}
		h.expect(t, "all the time", "0s true", "check panicked, with stack true", "500ms true", "1.01s true")
	})
}

// If adding a watch panics, Check is called nevertheless, and the watches are added at the next call.
func TestPanicInWatching(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		h.panics = 1
		start(t, h, "/nonexistent/file", "/elsewhere/file")
		time.Sleep(2*pollInterval + time.Second)
		h.expect(t, "a panic at first", "add panicked, with stack true", "0s true", "5s true", "10s false")
		h.stop()
		want := []string{"add nonexistent", "add nonexistent", "add elsewhere", "add nonexistent", "add elsewhere", "close"}
		assert.Same(t, "calls", want, h.calls)
	})
}

// Until the kernel provides events, the watcher polls and warns once.
func TestNoEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		h.unavailable = 2
		start(t, h, "/nonexistent/file")
		defer h.stop()
		time.Sleep(2*pollInterval + time.Second)
		h.expect(t, "by polling", "0s true", "5s false", "10s false")
		h.events <- fsnotify.Event{}
		time.Sleep(time.Second)
		h.expect(t, "by events, later", "11.05s true")
		if n := strings.Count(h.log.String(), "no file events"); n != 1 {
			t.Errorf("warned %d times, want once:\n%s", n, h.log.String())
		}
	})
}

// Of a folder, the targets of its links are watched, and if it is a link, the folder that it is in.
func TestWholeFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"links/v1", "files"} {
		assert.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	write(t, filepath.Join(dir, "links", "v1", "own"), "own")
	write(t, filepath.Join(dir, "files", "other"), "other")
	for link, target := range map[string]string{"links/current": "v1", "links/v1/other": "../../files/other"} {
		assert.NoError(t, os.Symlink(target, filepath.Join(dir, link)))
	}
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		h.folder = filepath.Join(dir, "links", "current")
		start(t, h)
		assert.NoError(t, os.Remove(filepath.Join(dir, "links", "v1", "other")))
		time.Sleep(pollInterval)
		synctest.Wait()
		h.stop()
		want := []string{"add v1", "add links", "add files", "add v1", "add links", "remove files", "close"}
		assert.Same(t, "calls", want, h.calls)
	})
}

// The targets of links are watched, and previous targets are not.
func TestFolders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		assert.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		write(t, filepath.Join(dir, name, "file"), name)
	}
	link := filepath.Join(dir, "a", "link")
	setLink := func(to string) {
		t.Helper()
		_ = os.Remove(link)
		assert.NoError(t, os.Symlink(filepath.Join(dir, to, "file"), link))
	}
	setLink("b")
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		start(t, h, link, filepath.Join(dir, "a", "file"))
		setLink("c")
		time.Sleep(pollInterval)
		synctest.Wait()
		setLink("link") // to itself
		assert.NoError(t, os.Symlink(link, link+".loop"))
		time.Sleep(pollInterval)
		h.stop()
		want := []string{"add a", "add b", "add a", "add c", "remove b", "add a", "remove c", "close"}
		assert.Same(t, "calls", want, h.calls)
	})
}

func write(t *testing.T, path, text string) {
	t.Helper()
	assert.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// Every way to change a file causes an event of the real kernel.
func TestWatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	texts := make(chan string, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Watch(ctx, Config{
			Paths: []string{path}, Log: slog.New(slog.DiscardHandler),
			Check: func(notified bool) time.Duration {
				text, err := os.ReadFile(path)
				switch {
				case !notified:
				case err != nil:
					texts <- "gone"
				default:
					texts <- string(text)
				}
				return 0
			},
			OnPanic: func(panicked any) { t.Error(panicked) },
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
				t.Fatalf("no event caused %q", want)
			}
		}
	}
	swap := func(version string) {
		t.Helper()
		assert.NoError(t, os.Mkdir(filepath.Join(dir, version), 0o755))
		write(t, filepath.Join(dir, version, "file"), version)
		assert.NoError(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		assert.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	becomes("gone")
	write(t, path, "made")
	becomes("made")
	write(t, path, "written in place")
	becomes("written in place")
	write(t, path+".new", "replaced")
	assert.NoError(t, os.Rename(path+".new", path))
	becomes("replaced")
	assert.NoError(t, os.Remove(path))
	becomes("gone")
	swap("..1")
	assert.NoError(t, os.Symlink("..data/file", path))
	becomes("..1")
	for _, version := range []string{"..2", "..3", "..4", "..5"} {
		swap(version)
		becomes(version)
	}
	write(t, filepath.Join(dir, "..5", "file"), "behind the links")
	becomes("behind the links")
}

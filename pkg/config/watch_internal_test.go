// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
)

// bench runs a watcher on events of the test's own, in virtual time.
type bench struct {
	t      *testing.T
	path   string
	events chan fsnotify.Event
	errors chan error
	start  time.Time
	calls  []call
	adds   []time.Duration // when the source that has events was asked for a watch, since the start
}

// call is one call of Changed.
type call struct {
	At   time.Duration // since the start
	Port uint16        // 0: an error
}

// virtual calls body in a bubble with a running watcher, and returns the bench after it. There are no events for the first
// looks, as many as away.
func virtual(t *testing.T, away int, body func(*bench)) *bench {
	t.Helper()
	b := &bench{t: t, path: filepath.Join(t.TempDir(), "config.yaml")}
	b.write("listen: {port: 1}")
	synctest.Test(t, func(t *testing.T) {
		b.events, b.errors, b.start = make(chan fsnotify.Event), make(chan error), time.Now()
		w, err := NewWatcher(WatcherConfig{Path: b.path, Changed: func(c Config, _ error) {
			b.calls = append(b.calls, call{At: time.Since(b.start), Port: c.Listen.Port})
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		none := func(string) error { return errors.New("no watch here") }
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			add := func(string) error {
				b.adds = append(b.adds, time.Since(b.start))
				return nil
			}
			source := eventSource{add: add, remove: none, events: b.events, errors: b.errors}
			w.follow(ctx, eventSource{add: none, remove: none, open: func() (eventSource, error) {
				if away--; away >= 0 {
					return eventSource{}, errors.New("too many open files")
				}
				return source, nil
			}})
		}()
		synctest.Wait()
		body(b)
		cancel()
		<-ended
	})
	return b
}

func (b *bench) write(text string) {
	b.t.Helper()
	if err := os.WriteFile(b.path, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) remove() {
	b.t.Helper()
	if err := os.Remove(b.path); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) event(name string) { b.events <- fsnotify.Event{Name: name, Op: fsnotify.Write} }

// elapse lets virtual time pass, and everything that is due in it happen.
func (b *bench) elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestWatcherInTime(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, tt := range []struct {
		name string
		away int
		body func(*bench)
		want []call
		adds []time.Duration // if not nil
	}{
		{
			name: "events are there again after a while", away: 2,
			body: func(b *bench) {
				b.write("listen: {port: 2}")
				b.elapse(21 * time.Second)
				b.write("listen: {port: 3}")
				b.event(b.path)
				b.elapse(time.Second)
			},
			want: []call{{At: 10 * time.Second, Port: 2}, {At: 21100 * ms, Port: 3}},
			adds: []time.Duration{20 * time.Second, 21100 * ms},
		},
		{
			name: "a look comes 100 ms after the last event",
			body: func(b *bench) {
				b.write("listen: {port: 2}")
				b.event(b.path)
				b.elapse(60 * ms)
				b.write("listen: {port: 3}")
				b.event(b.path)
				b.elapse(time.Second)
			},
			want: []call{{At: 160 * ms, Port: 3}},
		},
		{
			name: "events without end put it off for a second",
			body: func(b *bench) {
				b.write("listen: {port: 2}")
				for range 25 {
					b.event(b.path)
					b.elapse(50 * ms)
				}
			},
			want: []call{{At: time.Second, Port: 2}},
		},
		{
			name: "other files of the folder do not matter",
			body: func(b *bench) {
				b.write("listen: {port: 2}")
				b.event(b.path + ".swp")
				b.elapse(9 * time.Second)
			},
		},
		{
			name: "without events it looks every 10 s",
			body: func(b *bench) {
				b.elapse(time.Second)
				b.write("listen: {port: 2}")
				b.elapse(15 * time.Second)
				b.write("listen: {port: 1}")
				b.elapse(5 * time.Second)
			},
			want: []call{{At: 10 * time.Second, Port: 2}, {At: 20 * time.Second, Port: 1}},
		},
		{
			name: "the same content written again is not told of",
			body: func(b *bench) {
				b.write("listen: {port: 1}")
				b.event(b.path)
				b.elapse(30 * time.Second)
			},
		},
		{
			name: "lost events are a reason to look",
			body: func(b *bench) {
				b.write("listen: {port: 2}")
				b.errors <- fsnotify.ErrEventOverflow
				b.elapse(time.Second)
			},
			want: []call{{At: 100 * ms, Port: 2}},
		},
		{
			name: "a missing file is believed a second later",
			body: func(b *bench) {
				b.remove()
				b.event(b.path)
				b.elapse(5 * time.Second)
			},
			want: []call{{At: 1100 * ms}},
		},
		{
			name: "a file that comes back in time is not told of",
			body: func(b *bench) {
				b.remove()
				b.event(b.path)
				b.elapse(500 * ms)
				b.write("listen: {port: 1}")
				b.event(b.path)
				b.elapse(5 * time.Second)
			},
		},
		{
			name: "an empty file that is filled in time is told of once",
			body: func(b *bench) {
				b.write("")
				b.event(b.path)
				b.elapse(500 * ms)
				b.write("listen: {port: 2}")
				b.event(b.path)
				b.elapse(5 * time.Second)
			},
			want: []call{{At: 600 * ms, Port: 2}},
		},
		{
			name: "an event does not make an empty file believed sooner",
			body: func(b *bench) {
				b.write("")
				b.event(b.path)
				b.elapse(500 * ms)
				b.event(b.path)
				b.elapse(5 * time.Second)
			},
			want: []call{{At: 1600 * ms, Port: 1053}},
		},
		{
			name: "an error is told of once",
			body: func(b *bench) {
				b.write("listen: {port: 0}")
				b.elapse(45 * time.Second)
			},
			want: []call{{At: 10 * time.Second}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := virtual(t, tt.away, tt.body)
			if diff := cmp.Diff(tt.want, b.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.adds, b.adds); tt.adds != nil && diff != "" {
				t.Errorf("watches (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTrail(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"mount/..v1", "elsewhere/deep"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"mount/..data":      "..v1",
		"mount/config.yaml": "..data/config.yaml",
		"up.yaml":           "elsewhere/deep/../real.yaml",
		"absolute.yaml":     filepath.Join(dir, "elsewhere/real.yaml"),
		"folder":            "elsewhere",
		"loop.yaml":         "loop.yaml",
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"mount/..v1/config.yaml", "elsewhere/real.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		path string
		want []string // folder:name, from dir
	}{
		{name: "no link", path: "elsewhere/real.yaml", want: []string{"elsewhere:real.yaml"}},
		{name: "ConfigMap", path: "mount/config.yaml", want: []string{"mount:config.yaml", "mount:..data", "mount/..v1:config.yaml"}},
		{name: "up through a folder", path: "up.yaml", want: []string{".:up.yaml", "elsewhere:real.yaml"}},
		{name: "absolute link", path: "absolute.yaml", want: []string{".:absolute.yaml", "elsewhere:real.yaml"}},
		{name: "link to a folder", path: "folder/real.yaml", want: []string{".:folder", "elsewhere:real.yaml"}},
		{name: "missing file", path: "mount/none.yaml", want: []string{"mount:none.yaml"}},
		{name: "missing folder", path: "none/config.yaml", want: []string{".:none"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, s := range trail(filepath.Join(dir, tt.path)) {
				folder, err := filepath.Rel(dir, s.folder)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, folder+":"+s.name)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("trail (-want +got):\n%s", diff)
			}
		})
	}
	if got := len(trail(filepath.Join(dir, "loop.yaml"))); got != maxLinks+1 {
		t.Errorf("a link to itself: %d steps, want %d", got, maxLinks+1)
	}
}

// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/config"
)

// change is one call of a watcher's Changed: the port, which identifies the plan, or the error.
type change struct {
	Port uint16
	Err  string
}

// file is the text of a plan with a port of its own.
func file(port int) []byte { return fmt.Appendf(nil, "listen: {port: %d}\n", port) }

// watch runs a watcher until the test ends, and returns its calls. It is following the file when watch returns.
func watch(t *testing.T, path string) <-chan change {
	t.Helper()
	calls := make(chan change, 16)
	runWatcher(t, config.WatcherConfig{Path: path, Changed: func(c config.Config, err error) {
		got := change{Port: c.Listen.Port}
		if err != nil {
			got.Err = kind(err)
		}
		calls <- got
	}})
	return calls
}

// runWatcher runs a watcher until the test ends.
func runWatcher(t *testing.T, c config.WatcherConfig) {
	t.Helper()
	w, err := config.NewWatcher(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	<-w.Ready()
}

func TestWatcherKeepsTheRole(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, file(1), 0o600); err != nil {
		t.Fatal(err)
	}
	calls := make(chan config.Config, 1)
	runWatcher(t, config.WatcherConfig{Path: path, Role: config.Resolver, Changed: func(c config.Config, err error) {
		if err != nil {
			t.Error(err)
		}
		calls <- c
	}})
	if err := os.WriteFile(path, []byte("cluster: {manifests: objects}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := config.Default(config.Resolver)
	want.Cluster.Manifests = filepath.Join(filepath.Dir(path), "objects")
	if diff := cmp.Diff(want, <-calls, plain()); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

// kind is the text by which the tests compare errors.
func kind(err error) string {
	if problems, ok := errors.AsType[*config.Error](err); ok {
		return problems.Problems[0].String()
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "missing"
	}
	return err.Error()
}

// expect waits for the next call. The wait is long, because only a broken watcher takes it.
func expect(t *testing.T, calls <-chan change, want change) {
	t.Helper()
	select {
	case got := <-calls:
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("call (-want +got):\n%s", diff)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("no call, want %+v", want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	must(t, os.WriteFile(path, data, 0o600))
}

// swap makes link point to target in one step, as the kubelet does.
func swap(t *testing.T, target, link string) {
	t.Helper()
	must(t, os.Symlink(target, link+"_tmp"))
	must(t, os.Rename(link+"_tmp", link))
}

// Each test ends with a change that must be the next one reported: an extra call before it would be received in its place.

func TestWatcherRename(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "config.yaml")
	write(t, path, file(1))
	calls := watch(t, path)
	for port := range 3 {
		write(t, path+".new", file(port+2))
		must(t, os.Rename(path+".new", path))
		expect(t, calls, change{Port: uint16(port + 2)})
	}
}

func TestWatcherInPlace(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, file(1))
	calls := watch(t, path)
	write(t, path, file(2))
	expect(t, calls, change{Port: 2})
	write(t, path, []byte("listen: {port: 0}"))
	expect(t, calls, change{Err: "listen.port: 0: not between 1 and 65535"})
	write(t, path, file(1))
	expect(t, calls, change{Port: 1})
}

func TestWatcherConfigMap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	version := func(port int) string {
		name := fmt.Sprintf("..2026_%d", port)
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		write(t, filepath.Join(dir, name, "config.yaml"), file(port))
		return name
	}
	data, path := filepath.Join(dir, "..data"), filepath.Join(dir, "config.yaml")
	old := version(1)
	must(t, os.Symlink(old, data))
	must(t, os.Symlink("..data/config.yaml", path))
	calls := watch(t, path)
	for port := 2; port < 5; port++ {
		next := version(port)
		swap(t, next, data)
		must(t, os.RemoveAll(filepath.Join(dir, old)))
		expect(t, calls, change{Port: uint16(port)})
		old = next
	}
	// The folder of the version that is current now must be watched too.
	write(t, filepath.Join(dir, old, "config.yaml"), file(9))
	expect(t, calls, change{Port: 9})
}

func TestWatcherLinkToElsewhere(t *testing.T) {
	t.Parallel()
	here, there := t.TempDir(), t.TempDir()
	target, path := filepath.Join(there, "real.yaml"), filepath.Join(here, "config.yaml")
	write(t, target, file(1))
	must(t, os.Symlink(target, path))
	calls := watch(t, path)
	write(t, target, file(2))
	expect(t, calls, change{Port: 2})
	write(t, target+".new", file(3))
	must(t, os.Rename(target+".new", target))
	expect(t, calls, change{Port: 3})
	write(t, filepath.Join(here, "own.yaml"), file(4))
	swap(t, "own.yaml", path)
	expect(t, calls, change{Port: 4})
	write(t, target, file(5)) // no longer linked to
	write(t, filepath.Join(here, "own.yaml"), file(6))
	expect(t, calls, change{Port: 6})
}

func TestWatcherFolderLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for port, name := range []string{1: "v1", 2: "v2"} {
		if name == "" {
			continue
		}
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		write(t, filepath.Join(dir, name, "config.yaml"), file(port))
	}
	must(t, os.Symlink("v1", filepath.Join(dir, "current")))
	calls := watch(t, filepath.Join(dir, "current", "config.yaml"))
	swap(t, "v2", filepath.Join(dir, "current"))
	expect(t, calls, change{Port: 2})
}

func TestWatcherDeleteAndCreate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, file(1))
	calls := watch(t, path)
	must(t, os.Remove(path))
	expect(t, calls, change{Err: "missing"})
	write(t, path, file(1))
	expect(t, calls, change{Port: 1}) // the content of before, reported because the error was
	must(t, os.Remove(path))
	write(t, path, file(2))
	expect(t, calls, change{Port: 2})
}

func TestWatcherFolderDeleteAndCreate(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	path := filepath.Join(dir, "config.yaml")
	must(t, os.MkdirAll(dir, 0o700))
	write(t, path, file(1))
	calls := watch(t, path)
	must(t, os.RemoveAll(filepath.Dir(dir)))
	expect(t, calls, change{Err: "missing"})
	must(t, os.MkdirAll(dir, 0o700))
	write(t, path, file(2))
	expect(t, calls, change{Port: 2})
	must(t, os.Rename(dir, dir+".old"))
	must(t, os.Mkdir(dir, 0o700))
	write(t, path, file(3))
	expect(t, calls, change{Port: 3})
	write(t, path, file(4))
	expect(t, calls, change{Port: 4})
}

func TestWatcherMissingAtStart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	calls := watch(t, path)
	write(t, path, file(1))
	expect(t, calls, change{Port: 1})
}

func TestWatcherHalfWritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, file(1))
	calls := watch(t, path)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0) // empty now, which would be the defaults
	must(t, err)
	_, err = f.WriteString("listen: {port: ")
	must(t, err)
	expect(t, calls, change{Err: "YAML: did not find expected node content"})
	_, err = f.WriteString("2}\n")
	must(t, err)
	must(t, f.Close())
	expect(t, calls, change{Port: 2})
}

func TestWatcherEmptied(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, file(1))
	calls := watch(t, path)
	must(t, os.Truncate(path, 0))
	expect(t, calls, change{Port: config.Default(config.Agent).Listen.Port})
}

func TestWatcherOddFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, file(1))
	calls := watch(t, path)
	must(t, os.Remove(path))
	must(t, syscall.Mkfifo(path, 0o600)) // reading it would never end
	expect(t, calls, change{Err: "reading the configuration: read " + path + ": not a regular file"})
	must(t, os.Remove(path))
	must(t, os.Symlink(filepath.Base(path), path))
	expect(t, calls, change{Err: "reading the configuration: open " + path + ": too many levels of symbolic links"})
	must(t, os.Remove(path))
	write(t, path, file(2))
	expect(t, calls, change{Port: 2})
}

func TestWatcherChangeBeforeRun(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, file(1))
	calls := make(chan uint16, 1)
	w, err := config.NewWatcher(config.WatcherConfig{Path: path, Changed: func(c config.Config, _ error) { calls <- c.Listen.Port }})
	must(t, err)
	write(t, path, file(2))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	if got := <-calls; got != 2 {
		t.Errorf("port %d, want 2", got)
	}
	cancel()
	must(t, <-ended)
}

func TestNewWatcher(t *testing.T) {
	t.Parallel()
	nothing := func(config.Config, error) {}
	for _, tt := range []struct {
		name string
		cfg  config.WatcherConfig
		want string
	}{
		{name: "no path", cfg: config.WatcherConfig{Changed: nothing}, want: "a watcher needs a path"},
		{name: "no function", cfg: config.WatcherConfig{Path: "config.yaml"}, want: "a watcher needs a function to call"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := config.NewWatcher(tt.cfg)
			if err == nil || err.Error() != tt.want {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
}

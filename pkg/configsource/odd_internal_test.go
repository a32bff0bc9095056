// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// mount is a folder with the configuration as the kubelet mounts it.
func mount(t *testing.T, text string) (folder, path string) {
	t.Helper()
	folder = t.TempDir()
	swap(t, folder, "..0", map[string]string{Key: text})
	return folder, filepath.Join(folder, Key)
}

// TestRapidSwaps swaps the folder of the configuration and the kube-dns keys as fast as possible: no state in between is
// invalid, and the last one is applied.
func TestRapidSwaps(t *testing.T) {
	t.Parallel()
	folder, path := mount(t, size(3))
	w := newHarness(t, Config{File: path, KubeDNS: folder, LastGood: t.TempDir()})
	defer w.begin(t)()
	n := 1
	for began := time.Now(); time.Since(began) < 2*time.Second; n++ {
		swap(t, folder, fmt.Sprintf("..%d", n), map[string]string{Key: size(10 + n%100)})
	}
	swap(t, folder, "..last", map[string]string{Key: size(200)})
	proctest.Eventually(t, time.Minute, "the last one", func() bool { return strings.HasSuffix(w.saying(), "applied 200") })
	got := w.reports()
	if strings.Contains(got, "refused") {
		t.Errorf("reported %s", got)
	}
	proctest.Eventually(t, time.Minute, "the last one is kept", func() bool {
		cfg, _, err := w.lastGood.read()
		return err == nil && cfg.Cache.Size == 200<<20
	})
	t.Logf("%d swaps, %d reported", n, strings.Count(got, ";")+1)
}

// TestOddFiles replaces the file by invalid ones: each is refused, and the next good one is applied.
func TestOddFiles(t *testing.T) {
	t.Parallel()
	inPlace := func(put func(path string) error) func(*testing.T, string, string) {
		return func(t *testing.T, _, path string) {
			t.Helper()
			assert.NoError(t, errors.Join(os.Remove(path), put(path)))
		}
	}
	holding := func(text string) func(*testing.T, string, string) {
		return func(t *testing.T, folder, _ string) {
			t.Helper()
			swap(t, folder, "..odd", map[string]string{Key: text})
		}
	}
	tests := []struct {
		name string
		make func(t *testing.T, folder, path string)
		want string
	}{
		{"gone", inPlace(func(string) error { return nil }), "no such file"},
		{"a link to nothing", func(t *testing.T, folder, _ string) {
			t.Helper()
			assert.NoError(t, os.Rename(filepath.Join(folder, dataLink), filepath.Join(folder, "..away")))
		}, "no such file"},
		{"a folder that is gone", func(t *testing.T, folder, _ string) {
			t.Helper()
			assert.NoError(t, os.RemoveAll(folder))
		}, "no such file"},
		{"another file behind a link", func(t *testing.T, _, path string) {
			t.Helper()
			target := filepath.Join(t.TempDir(), "bad")
			write(t, target, "a: b\n")
			assert.NoError(t, errors.Join(os.Symlink(target, path+".new"), os.Rename(path+".new", path)))
		}, "unknown key"},
		{"a link to itself", inPlace(func(path string) error { return os.Symlink(Key, path) }), "too many levels"},
		{"a folder", inPlace(func(path string) error { return os.Mkdir(path, 0o755) }), "is a directory"},
		{"a pipe", inPlace(func(path string) error { return syscall.Mkfifo(path, 0o600) }), "not a regular file"},
		{"a device without an end", inPlace(func(path string) error { return os.Symlink("/dev/zero", path) }), "not a regular file"},
		{"a file that cannot be read", inPlace(func(path string) error { return os.Symlink("/proc/self/mem", path) }), "input/output error"},
		{"2 MB", holding(size(4) + strings.Repeat("# x\n", 500_000)), "larger than 1 MiB"},
		{"no UTF-8", holding("cache: {size: 4Mi} # \xff\xfe\n"), "not UTF-8"},
		{"NULs", holding(strings.Repeat("\x00", 4096)), "control character"},
		{"too deep", holding(strings.Repeat("[", 1<<20-1)), "max depth"},
		{"aliases of aliases", holding(bomb()), "unknown key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			folder, path := mount(t, size(3))
			w := newHarness(t, Config{File: path})
			defer w.begin(t)()
			w.expect(t, "at the start", "loaded 3")
			tt.make(t, folder, path)
			proctest.Eventually(t, time.Minute, "reported", func() bool { return w.saying() != "" })
			if got := w.reports(); !strings.HasPrefix(got, "refused") || !strings.Contains(got, tt.want) {
				t.Errorf("reported %.300s, want a refusal: %s", got, tt.want)
			}
			assert.NoError(t, errors.Join(os.MkdirAll(folder, 0o755), os.RemoveAll(path)))
			swap(t, folder, "..good", map[string]string{Key: size(5)})
			proctest.Eventually(t, time.Minute, "the next one", func() bool { return strings.HasSuffix(w.saying(), "applied 5") })
		})
	}
}

// bomb is a small text that expands to billions of words through aliases.
func bomb() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for n := range 12 {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", n+1, n+1, strings.Repeat(fmt.Sprintf("*a%d, ", n), 9))
	}
	return b.String()
}

// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/filewatch"
)

// TestLastGood saves applied configurations, and starts with the last one.
func TestLastGood(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "deep", "down")
	path := filepath.Join(folder, lastGoodName)
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, Config{LastGood: folder})
		w.api.putText(size(3) + "forward: [{zone: \".\", to: [192.0.2.1]}, {zone: example.com, to: [\"tls://192.0.2.2#dns.example\"], minTTL: 7s}]\n")
		stop := w.begin(t)
		w.api.putText(size(2)) // refused by the agent
		synctest.Wait()
		stop()
		w.expect(t, "first", "loaded 3; refused a cache of 2 MiB")
		if st := w.Status(); st.Saves != 1 || st.SaveFailures != 0 {
			t.Errorf("status %+v, want one save", st)
		}
	})
	text, err := os.ReadFile(path)
	assert.NoError(t, err)
	// The bubble's clock starts in the year 2000.
	const head = "# The configuration that node-cache put to work at 2000-01-01T00:00:00Z as generation 1,\n# from configmap kube-system/node-cache, with every key.\n"
	if !strings.HasPrefix(string(text), head) {
		t.Errorf("begins with %.200q", text)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", info.Mode(), err)
	}
	want, err := config.Parse([]byte(size(3)+"forward: [{zone: \".\", to: [192.0.2.1]}, {zone: example.com, to: [\"tls://192.0.2.2#dns.example\"], minTTL: 7s}]\n"), config.Agent)
	assert.NoError(t, err)
	got, err := config.Load(path, config.Agent)
	assert.NoError(t, err)
	assert.Same(t, "kept", fmt.Sprint(want), fmt.Sprint(got))
	if names, err := os.ReadDir(folder); err != nil || len(names) != 1 {
		t.Errorf("the folder has %v, %v", names, err)
	}

	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, Config{LastGood: folder})
		w.api.putText("cache: {sise: 1Mi}\n")
		defer w.begin(t)()
		w.expect(t, "with a bad one", "last good 3")
		if st := w.Status(); !st.LastGoodInUse || !st.Saved.IsZero() {
			t.Errorf("status %+v, want the last good one in use, and not written again", st)
		}
		if !strings.Contains(w.logged(), "running on the last good configuration") {
			t.Errorf("the log does not say so:\n%s", w.logged())
		}
		time.Sleep(10 * time.Minute)
		w.expect(t, "later", "")
		w.api.putText(size(4))
		synctest.Wait()
		w.expect(t, "corrected", "applied 4")
	})
}

// TestLastGoodUnusable has a valid configuration that cannot be applied at the start: it is retried.
func TestLastGoodUnusable(t *testing.T) {
	t.Parallel()
	folder := keepGood(t)
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, Config{LastGood: folder})
		w.api.putText(size(4))
		if _, why, err := w.Load(t.Context()); why != nil || err != nil {
			t.Fatal(why, err)
		}
		cfg, err := w.Fallback(t.Context(), errors.New("no memory for it"))
		if err != nil || cfg.Cache.Size != 7<<20 {
			t.Fatalf("got a cache of %d bytes, %v", cfg.Cache.Size, err)
		}
		defer w.follow(t)()
		time.Sleep(retryInterval - time.Second)
		w.expect(t, "for a while", "")
		time.Sleep(2 * time.Second)
		w.expect(t, "after a while", "applied 4")
		time.Sleep(time.Hour)
		w.expect(t, "from then on", "")
	})
}

// TestLastGoodReplaced has an agent that starts with the last good configuration apply others before it serves:
// each is reported once, and none is saved.
func TestLastGoodReplaced(t *testing.T) {
	t.Parallel()
	folder := keepGood(t)
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, Config{LastGood: folder, Serving: make(chan struct{})})
		w.api.putText(size(2))
		if _, why, err := w.Load(t.Context()); why != nil || err != nil {
			t.Fatal(why, err)
		}
		if _, err := w.Fallback(t.Context(), errors.New("no memory for it")); err != nil {
			t.Fatal(err)
		}
		defer w.follow(t)()
		time.Sleep(2*retryInterval + time.Second)
		w.expect(t, "refused", "refused a cache of 2 MiB; refused a cache of 2 MiB")
		if !w.Status().LastGoodInUse {
			t.Error("the refused configuration is reported as in use")
		}
		w.api.putText(size(4))
		time.Sleep(time.Hour)
		w.expect(t, "corrected", "applied 4")
		if st := w.Status(); st.LastGoodInUse || st.Saves != 0 {
			t.Errorf("status %+v, want neither the last good one nor another one kept", st)
		}
	})
}

// TestLastGoodMissing has neither configuration.
func TestLastGoodMissing(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), lastGoodName)
	assert.NoError(t, os.WriteFile(bad, []byte("cache: {size: 1}\n"), 0o600))
	for _, folder := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none"), filepath.Dir(bad)} {
		missing := filepath.Join(t.TempDir(), "none.yaml")
		w := newHarness(t, Config{File: missing, LastGood: folder})
		_, _, err := w.Load(t.Context())
		if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), missing) {
			t.Errorf("%s: %v, want the error of the file", folder, err)
		}
		if !strings.Contains(w.logged(), "no usable last good configuration") {
			t.Errorf("%s: the log does not say that there is no last good one:\n%s", folder, w.logged())
		}
	}
}

// TestLastGoodDamaged truncates the file at each line, and changes each byte: none of the results is accepted.
func TestLastGoodDamaged(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	w := newHarness(t, Config{File: filepath.Join(t.TempDir(), "none.yaml"), LastGood: folder})
	cfg := config.Default(config.Agent)
	assert.NoError(t, w.lastGood.write(&InUse{Config: cfg, Generation: 1}))
	whole, err := os.ReadFile(w.lastGood.path())
	assert.NoError(t, err)
	if _, _, err := w.lastGood.read(); err != nil {
		t.Fatalf("whole: %v", err)
	}
	for _, mode := range []fs.FileMode{0o666, 0o600} { // others may have written it; only then refused
		assert.NoError(t, os.Chmod(w.lastGood.path(), mode))
		if _, _, err := w.lastGood.read(); errors.Is(err, filewatch.ErrUntrusted) != (mode == 0o666) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	lines := strings.SplitAfter(strings.TrimSuffix(string(whole), "\n"), "\n")
	for n := range lines {
		assert.NoError(t, os.WriteFile(w.lastGood.path(), []byte(strings.Join(lines[:n], "")), 0o600))
		if _, _, err := w.lastGood.read(); err == nil {
			t.Errorf("%d of %d lines: no error", n, len(lines))
		}
	}
	for n := range whole {
		damaged := bytes.Clone(whole)
		damaged[n] ^= 1
		write(t, w.lastGood.path(), string(damaged))
		if _, _, err := w.lastGood.read(); err == nil {
			t.Errorf("byte %d of %d, %q for %q: no error", n, len(whole), damaged[n], whole[n])
		}
	}
	for _, text := range []string{string(whole) + "\n", string(whole) + string(whole), strings.TrimSuffix(string(whole), "\n")} {
		write(t, w.lastGood.path(), text)
		if _, _, err := w.lastGood.read(); err == nil {
			t.Errorf("%d bytes after %d: no error", len(text), len(whole))
		}
	}
}

// blocked returns a folder where something blocks the last good configuration.
func blocked(t *testing.T) (folder, inTheWay string) {
	t.Helper()
	folder = t.TempDir()
	inTheWay = filepath.Join(folder, lastGoodName)
	assert.NoError(t, os.Mkdir(inTheWay, 0o755))
	return folder, inTheWay
}

// TestLastGoodLater has an obstacle at the start, in place of the file or of its folder, that disappears later.
func TestLastGoodLater(t *testing.T) {
	t.Parallel()
	folder, inTheWay := blocked(t)
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	for _, tt := range []struct{ name, folder, inTheWay string }{
		{"a folder for the file", folder, inTheWay},
		{"a file for the folder", file, file},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := watching(t, Config{LastGood: tt.folder})
				time.Sleep(3*retryInterval + time.Second)
				if st := w.Status(); st.Saves != 0 || st.SaveFailures != 4 || st.SaveError == "" {
					t.Errorf("status %+v, want a failure at once and one each minute", st)
				}
				if n := strings.Count(w.logged(), "saving last good configuration failed"); n != 1 {
					t.Errorf("logged %d times, want once:\n%s", n, w.logged())
				}
				assert.NoError(t, os.Remove(tt.inTheWay))
				time.Sleep(retryInterval)
				if st := w.Status(); st.Saves != 1 || st.SaveError != "" {
					t.Errorf("status %+v, want it kept", st)
				}
				time.Sleep(time.Hour)
				if st := w.Status(); st.Saves != 1 || st.SaveFailures != 4 {
					t.Errorf("status %+v, want no more of it", st)
				}
			})
		})
	}
}

// TestLastGoodSavedAtStop stops while the agent applies a configuration.
func TestLastGoodSavedAtStop(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, Config{LastGood: folder})
		w.api.putText(size(3))
		stop := w.begin(t)
		time.Sleep(time.Second)
		w.busy = time.Minute
		w.api.putText(size(4))
		time.Sleep(time.Second)
		stop()
		cfg, _, err := w.lastGood.read()
		if err != nil || cfg.Cache.Size != 4<<20 {
			t.Errorf("saved cache.size %d, %v, want 4 MiB", cfg.Cache.Size, err)
		}
	})
}

// TestLastGoodRemovesTemporary has files of a killed process.
func TestLastGoodRemovesTemporary(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for name, age := range map[string]time.Duration{temporaryPrefix + "old": time.Hour, temporaryPrefix + "new": 0, "other": time.Hour} {
		path := filepath.Join(folder, name)
		assert.NoError(t, os.WriteFile(path, nil, 0o600))
		assert.NoError(t, os.Chtimes(path, time.Time{}, time.Now().Add(-age)))
	}
	w := newHarness(t, Config{LastGood: folder})
	w.lastGood.removeTemporary(time.Now())
	names, err := os.ReadDir(folder)
	assert.NoError(t, err)
	var left []string
	for _, e := range names {
		left = append(left, e.Name())
	}
	assert.Same(t, "left", []string{temporaryPrefix + "new", "other"}, left)
}

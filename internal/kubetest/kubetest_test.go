// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestMain builds the programs before any suite starts one, so that no test's time holds a compilation: hack/test.sh runs no
// test of this package for that.
func TestMain(m *testing.M) {
	for _, name := range []string{"etcd", "coredns", "kube", "containerd", "containerd/shim", "helm"} {
		if _, err := Program(context.Background(), name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// TestOnce has several ask for one program at a time. What failed, or is old, does not stay.
func TestOnce(t *testing.T) {
	t.Parallel()
	dir, broken := t.TempDir(), errors.New("broken")
	part := func(path string) error { return os.WriteFile(path, []byte("part"), 0o600) }
	for name, age := range map[string]time.Duration{"etcd-old": entryAge + time.Hour, "etcd-recent": time.Hour, "etcd-new.new": 0} {
		path := filepath.Join(dir, name)
		assert.NoError(t, errors.Join(part(path), os.Chtimes(path, time.Time{}, time.Now().Add(-age))))
	}
	failed := func(path string) error { return errors.Join(part(path), broken) }
	if _, err := once(t.Context(), dir, "etcd", "new", failed); !errors.Is(err, broken) {
		t.Errorf("error: got %v, want %v", err, broken)
	}
	var created atomic.Int32
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			path, err := once(t.Context(), dir, "etcd", "new", func(path string) error {
				created.Add(1)
				return os.WriteFile(path, []byte("whole"), 0o600)
			})
			if text, read := os.ReadFile(path); err != nil || read != nil || string(text) != "whole" {
				t.Errorf("%s: got %q, %v, %v, want what was created", path, text, err, read)
			}
		})
	}
	callers.Wait()
	if got := created.Load(); got != 1 {
		t.Errorf("created %d times, want once", got)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*"))
	want := []string{filepath.Join(dir, "etcd-new"), filepath.Join(dir, "etcd-recent"), filepath.Join(dir, "etcd.lock")}
	if diff := cmp.Diff(want, found); diff != "" || err != nil {
		t.Errorf("the folder, without old versions (-want +got), %v:\n%s", err, diff)
	}
}

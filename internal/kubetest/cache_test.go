// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old, recent := filepath.Join(dir, "etcd-old"), filepath.Join(dir, "etcd-recent")
	for path, age := range map[string]time.Duration{old: entryAge + time.Hour, recent: time.Hour} {
		write(t, path)
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "etcd-new.new")) // left by one that was killed

	var created atomic.Int32
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			path, err := once(t.Context(), dir, "etcd", "new", func(path string) error {
				created.Add(1)
				return os.WriteFile(path, []byte("whole"), 0o600)
			})
			if err != nil {
				t.Error(err)
				return
			}
			if text, err := os.ReadFile(path); err != nil || string(text) != "whole" {
				t.Errorf("%s: got %q, %v, want what was created", path, text, err)
			}
		})
	}
	callers.Wait()
	if got := created.Load(); got != 1 {
		t.Errorf("created %d times, want once", got)
	}
	if diff := cmp.Diff([]string{"etcd-new", "etcd-recent", "etcd.lock"}, names(t, dir)); diff != "" {
		t.Errorf("the folder, without old versions (-want +got):\n%s", diff)
	}
}

func TestOnceKeepsNothingThatFailed(t *testing.T) {
	t.Parallel()
	dir, broken := t.TempDir(), errors.New("broken")
	_, err := once(t.Context(), dir, "etcd", "new", func(path string) error {
		write(t, path)
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("error: got %v, want %v", err, broken)
	}
	if diff := cmp.Diff([]string{"etcd.lock"}, names(t, dir)); diff != "" {
		t.Errorf("the folder (-want +got):\n%s", diff)
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("part"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

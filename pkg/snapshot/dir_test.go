// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/snapshot"
)

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	assert.NoError(t, err)
	return info.Mode().Perm()
}

// TestDirCreated creates the directory and the file for their owner only.
func TestDirCreated(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new")
	save(t, snapshot.Dir(path), before())
	if got := mode(t, path); got != 0o700 {
		t.Errorf("the directory has mode %o", got)
	}
	if got := mode(t, filepath.Join(path, snapshot.Name)); got != 0o600 {
		t.Errorf("the file has mode %o", got)
	}
	below := filepath.Join(path, "a", "b")
	_, err := snapshot.Save(t.Context(), before().job(snapshot.Dir(below)))
	var snapErr *hint.Error
	if !errors.As(err, &snapErr) || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(snapErr.Hint, "only the last directory") {
		t.Errorf("without the parent directory: %v", err)
	}
}

// TestDirLeftovers removes the files of killed writers, but neither recent nor unrelated ones.
func TestDirLeftovers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, age := range map[string]time.Duration{
		"node-cache.snapshot.tmp-old": 2 * time.Minute, "node-cache.snapshot.tmp-new": time.Second,
		"node-cache.snapshot.tmp-a": 0, "node-cache.snapshot.bak": time.Hour, "other": time.Hour,
	} {
		path := filepath.Join(dir, name)
		assert.NoError(t, os.WriteFile(path, nil, 0o600))
		assert.NoError(t, os.Chtimes(path, time.Time{}, noon().Add(-age)))
	}
	save(t, snapshot.Dir(dir), before())
	entries, err := os.ReadDir(dir)
	assert.NoError(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	want := []string{"node-cache.snapshot", "node-cache.snapshot.bak", "node-cache.snapshot.tmp-new", "other"}
	assert.Same(t, "files", want, got)
}

// TestDirUntrusted refuses files that others can write, and does not block on a pipe.
func TestDirUntrusted(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		make func(t *testing.T, path string) error
		want string
	}{
		{"writable by others", func(_ *testing.T, path string) error { return os.Chmod(path, 0o622) }, "others may write to it"},
		{"of another user", func(t *testing.T, path string) error {
			t.Helper()
			if os.Geteuid() != 0 {
				t.Skip("needs root to change the owner")
			}
			return os.Chown(path, 1234, -1)
		}, "it belongs to another user"},
		{"link", func(_ *testing.T, path string) error {
			if err := os.Rename(path, path+".real"); err != nil {
				return err
			}
			return os.Symlink(path+".real", path)
		}, "too many levels of symbolic links"},
		{"folder", func(_ *testing.T, path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Mkdir(path, 0o700)
		}, "not a regular file"},
		{"pipe", func(_ *testing.T, path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return syscall.Mkfifo(path, 0o600)
		}, "not a regular file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			save(t, snapshot.Dir(dir), before())
			assert.NoError(t, tt.make(t, filepath.Join(dir, snapshot.Name)))
			if got, err := load(snapshot.Dir(dir)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, error %v, want %q", got, err, tt.want)
			}
		})
	}
}

// TestDirWritableByOthers neither reads nor writes where others can replace the file.
func TestDirWritableByOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	save(t, snapshot.Dir(dir), before())
	assert.NoError(t, os.Chmod(dir, 0o777))
	_, saved := snapshot.Save(t.Context(), before().job(snapshot.Dir(dir)))
	_, loaded := snapshot.Load(snapshot.Dir(dir), plenty)
	for what, err := range map[string]error{"Save": saved, "Load": loaded} {
		snapErr, ok := errors.AsType[*hint.Error](err)
		if !ok || !strings.Contains(snapErr.Error(), "the directory belongs to another user or is writable by others") || !strings.Contains(snapErr.Hint, "set snapshot.folder to a directory") {
			t.Errorf("%s: %v, want an error about the directory, with a hint", what, err)
		}
	}
	if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil { // sticky: others cannot replace files
		t.Fatal(err)
	}
	save(t, snapshot.Dir(dir), before())
}

// TestDirNotExist distinguishes a first start from an error.
func TestDirNotExist(t *testing.T) {
	t.Parallel()
	for _, path := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		_, err := snapshot.Load(snapshot.Dir(path), plenty)
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	assert.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := snapshot.Save(t.Context(), before().job(snapshot.Dir(file)))
	var snapErr *hint.Error
	if !errors.As(err, &snapErr) || !errors.Is(err, syscall.ENOTDIR) || snapErr.Hint == "" {
		t.Errorf("the directory is a file: %v", err)
	}
	_, err = snapshot.Load(snapshot.Dir(file), plenty)
	if !errors.As(err, &snapErr) || !errors.Is(err, syscall.ENOTDIR) || !strings.Contains(snapErr.Hint, "set snapshot.folder to a directory") {
		t.Errorf("loading, the directory is a file: %v, hint %q", err, snapErr.Hint)
	}
}

// TestDirNameIsDirectory hints at removing a directory that has the file's name.
func TestDirNameIsDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	assert.NoError(t, os.Mkdir(filepath.Join(dir, snapshot.Name), 0o700))
	_, err := snapshot.Save(t.Context(), before().job(snapshot.Dir(dir)))
	var snapErr *hint.Error
	if !errors.As(err, &snapErr) || !strings.Contains(snapErr.Hint, "remove the directory") {
		t.Errorf("got %v, want a hint to remove the directory", err)
	}
}

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

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/snapshot"
)

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

// TestDirIsMade makes the folder and the file, for their owner alone.
func TestDirIsMade(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new")
	save(t, snapshot.Dir(path), before())
	if got := mode(t, path); got != 0o700 {
		t.Errorf("the folder has mode %o", got)
	}
	if got := mode(t, filepath.Join(path, snapshot.Name)); got != 0o600 {
		t.Errorf("the file has mode %o", got)
	}
	below := filepath.Join(path, "a", "b")
	_, err := snapshot.Save(t.Context(), before().job(snapshot.Dir(below)))
	var told *snapshot.Error
	if !errors.As(err, &told) || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(told.Hint, "only the last one") {
		t.Errorf("a folder in a folder that is not there: %v", err)
	}
}

// TestDirLeftovers removes what killed writers have left behind, but not what one may be about to write, nor other files.
func TestDirLeftovers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, age := range map[string]time.Duration{
		"node-cache.snapshot.tmp-old": 2 * time.Minute, "node-cache.snapshot.tmp-new": time.Second,
		"node-cache.snapshot.tmp-a": 0, "node-cache.snapshot.bak": time.Hour, "other": time.Hour,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, noon().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	save(t, snapshot.Dir(dir), before())
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	want := []string{"node-cache.snapshot", "node-cache.snapshot.bak", "node-cache.snapshot.tmp-new", "other"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestDirDistrust reads nothing that others could have written, and does not hang on what is no file.
func TestDirDistrust(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		make func(t *testing.T, path string) error
		want string
	}{
		{"others may write", func(_ *testing.T, path string) error { return os.Chmod(path, 0o622) }, "others may write to it"},
		{"of another user", func(t *testing.T, path string) error {
			t.Helper()
			if os.Geteuid() != 0 {
				t.Skip("only root can give files away")
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
		}, "it is no file"},
		{"pipe", func(_ *testing.T, path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return syscall.Mkfifo(path, 0o600)
		}, "it is no file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			save(t, snapshot.Dir(dir), before())
			if err := tt.make(t, filepath.Join(dir, snapshot.Name)); err != nil {
				t.Fatal(err)
			}
			if got, err := load(snapshot.Dir(dir)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, error %v, want %q", got, err, tt.want)
			}
		})
	}
}

// TestDirOfOthers neither reads nor writes a snapshot in a folder where others could exchange it.
func TestDirOfOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	save(t, snapshot.Dir(dir), before())
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	_, saved := snapshot.Save(t.Context(), before().job(snapshot.Dir(dir)))
	_, loaded := snapshot.Load(snapshot.Dir(dir), plenty)
	for what, err := range map[string]error{"Save": saved, "Load": loaded} {
		told, ok := errors.AsType[*snapshot.Error](err)
		if !ok || !strings.Contains(told.Error(), "its folder belongs to another user, or others may write to it") || !strings.Contains(told.Hint, "name a folder") {
			t.Errorf("%s: %v, want one about the folder, with a hint", what, err)
		}
	}
	if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil { // others can exchange nothing
		t.Fatal(err)
	}
	save(t, snapshot.Dir(dir), before())
}

// TestDirNotExist tells a first start from a fault.
func TestDirNotExist(t *testing.T) {
	t.Parallel()
	for _, path := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		_, err := snapshot.Load(snapshot.Dir(path), plenty)
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := snapshot.Save(t.Context(), before().job(snapshot.Dir(file)))
	var told *snapshot.Error
	if !errors.As(err, &told) || !errors.Is(err, syscall.ENOTDIR) || told.Hint == "" {
		t.Errorf("a file for a folder: %v", err)
	}
	_, err = snapshot.Load(snapshot.Dir(file), plenty)
	if !errors.As(err, &told) || !errors.Is(err, syscall.ENOTDIR) || !strings.Contains(told.Hint, "name a folder") {
		t.Errorf("reading, a file for a folder: %v, hint %q", err, told.Hint)
	}
}

// TestDirFolderInTheWay says what to do about a folder that has the file's name, which no file can replace.
func TestDirFolderInTheWay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, snapshot.Name), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := snapshot.Save(t.Context(), before().job(snapshot.Dir(dir)))
	var told *snapshot.Error
	if !errors.As(err, &told) || !strings.Contains(told.Hint, "take away what is there") {
		t.Errorf("got %v, want a hint to take the folder away", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package filewatch_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/filewatch"
)

// Only regular files within the limit are read: others may block forever.
func TestReadFile(t *testing.T) {
	t.Parallel()
	text := func(size int) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("x", size)), 0o600) }
	}
	link := func(to string) func(string) error {
		return func(path string) error { return os.Symlink(to, path) }
	}
	for _, tt := range []struct {
		name string
		make func(path string) error
		want string
	}{
		{name: "empty", make: text(0)},
		{name: "at the limit", make: text(2048)},
		{name: "above the limit", make: text(2049), want: "larger than 2 KiB"},
		{name: "absent", make: func(string) error { return nil }, want: "no such file or directory"},
		{name: "folder", make: func(path string) error { return os.Mkdir(path, 0o700) }, want: "is a directory"},
		{name: "pipe without a writer", make: func(path string) error { return syscall.Mkfifo(path, 0o600) }, want: "not a regular file"},
		{name: "link to a device", make: link("/dev/zero"), want: "not a regular file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "file")
			assert.NoError(t, tt.make(path))
			data, err := filewatch.ReadFile(path, 2048)
			if tt.want == "" {
				if want, _ := os.ReadFile(path); err != nil || data == nil || string(data) != string(want) {
					t.Errorf("%d bytes, want %d, error %v", len(data), len(want), err)
				}
				return
			}
			about, ok := errors.AsType[*fs.PathError](err)
			if !ok || about.Path != path || about.Err.Error() != tt.want {
				t.Errorf("%d bytes, error %v, want a PathError of %s: %s", len(data), err, path, tt.want)
			}
		})
	}
}

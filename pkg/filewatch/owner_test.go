// SPDX-License-Identifier: Apache-2.0

package filewatch_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/filewatch"
)

// Only files and folders that root and this user alone can write pass.
func TestCheckOwner(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		folder bool
		mode   fs.FileMode
		owner  int // 0: this user
		want   error
	}{
		{name: "file", mode: 0o644},
		{name: "file writable by its group", mode: 0o664, want: filewatch.ErrUntrusted},
		{name: "file writable by all, with a sticky bit", mode: 0o646 | fs.ModeSticky, want: filewatch.ErrUntrusted},
		{name: "file of another user", mode: 0o600, owner: 1234, want: filewatch.ErrUntrusted},
		{name: "folder that the kubelet created for a hostPath", folder: true, mode: 0o755},
		{name: "folder writable by its group", folder: true, mode: 0o775, want: filewatch.ErrUntrusted},
		{name: "folder writable by all, as an emptyDir", folder: true, mode: 0o777, want: filewatch.ErrUntrusted},
		{name: "folder like /tmp", folder: true, mode: 0o777 | fs.ModeSticky},
		{name: "folder of another user", folder: true, mode: 0o700, owner: 1234, want: filewatch.ErrUntrusted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "x")
			err := os.WriteFile(path, nil, 0o600)
			if tt.folder {
				path = filepath.Dir(path)
			}
			assert.NoError(t, errors.Join(err, os.Chmod(path, tt.mode)))
			if tt.owner != 0 {
				if os.Geteuid() != 0 {
					t.Skip("only root can change the owner of files")
				}
				assert.NoError(t, os.Chown(path, tt.owner, -1))
			}
			info, err := os.Stat(path)
			assert.NoError(t, err)
			if err := filewatch.CheckOwner(info); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package follow_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodecache/node-cache/pkg/follow"
)

// TestTrusted takes what root and this user alone can have written.
func TestTrusted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		folder bool
		mode   fs.FileMode
		owner  int // 0: this user
		want   error
	}{
		{name: "file", mode: 0o644},
		{name: "file that a group may write to", mode: 0o664, want: follow.ErrUntrusted},
		{name: "file that all may write to, with a sticky bit", mode: 0o646 | fs.ModeSticky, want: follow.ErrUntrusted},
		{name: "file of another user", mode: 0o600, owner: 1234, want: follow.ErrUntrusted},
		{name: "folder as the kubelet makes it for a hostPath", folder: true, mode: 0o755},
		{name: "folder that a group may write to", folder: true, mode: 0o775, want: follow.ErrUntrusted},
		{name: "folder that all may write to, as an emptyDir", folder: true, mode: 0o777, want: follow.ErrUntrusted},
		{name: "folder like /tmp", folder: true, mode: 0o777 | fs.ModeSticky},
		{name: "folder of another user", folder: true, mode: 0o700, owner: 1234, want: follow.ErrUntrusted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "x")
			err := os.WriteFile(path, nil, 0o600)
			if tt.folder {
				path = filepath.Dir(path)
			}
			if err := errors.Join(err, os.Chmod(path, tt.mode)); err != nil {
				t.Fatal(err)
			}
			if tt.owner != 0 {
				if os.Geteuid() != 0 {
					t.Skip("only root can give files away")
				}
				if err := os.Chown(path, tt.owner, -1); err != nil {
					t.Fatal(err)
				}
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := follow.Trusted(info); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/hint"
)

// TestAdminProblem checks the problem of a socket that cannot be opened.
func TestAdminProblem(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	assert.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, tt := range []struct{ name, socket, what, hint string }{
		{"no folder", filepath.Join(folder, "none", "s"), "admin server: listening on unix socket SOCKET: ", "the folder of admin.socket does not exist: "},
		{"a file", file, "admin server: listening on unix socket SOCKET: a file that is no socket is there", "admin.socket exists and is no socket: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := config.Default(config.Agent)
			cfg.Listen.Port = 0
			cfg.Admin = config.Admin{Address: netip.MustParseAddrPort("127.0.0.1:0"), Socket: tt.socket}
			a, err := New(Options{Config: &cfg, Log: &strings.Builder{}})
			assert.NoError(t, err)
			err = a.Listen(t.Context())
			var problem *hint.Error
			if !errors.As(err, &problem) || !strings.HasPrefix(err.Error(), strings.ReplaceAll(tt.what, "SOCKET", tt.socket)) || !strings.HasPrefix(problem.Hint, tt.hint) {
				t.Errorf("got %v, %+v", err, problem)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
)

// TestStandbyFile lays a file over configurations that may have standby, and over one that has no fallback.
func TestStandbyFile(t *testing.T) {
	t.Parallel()
	const may = "listen: {addresses: [169.254.20.10]}\nintercept: {manage: true, fallback: [10.0.0.1]}\n"
	for _, tt := range []struct {
		name, text, file string
		want             bool
	}{
		{"no file", may, "", false},
		{"true", may, "true\n", true},
		{"false", may, "false", false},
		{"something else", may, "yes", false},
		{"too long", may, "true" + string(make([]byte, maxStandby)), false},
		{"without a fallback the agent answers", "kind: Config\n", "true", false},
		{"the configuration has it", may + "standby: true\n", "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file, standby := filepath.Join(dir, "node-cache.yaml"), filepath.Join(dir, "standby")
			assert.NoError(t, os.WriteFile(file, []byte(tt.text), 0o600))
			if tt.file != "" {
				assert.NoError(t, os.WriteFile(standby, []byte(tt.file), 0o600))
			}
			w := newHarness(t, Config{File: file, Standby: standby})
			cfg, _, err := w.Load(t.Context())
			if err != nil || cfg.Standby != tt.want {
				t.Errorf("standby: %t, %v, want %t", cfg.Standby, err, tt.want)
			}
		})
	}
}

// TestStandbyFileIsFollowed has the file appear and vanish while the source runs.
func TestStandbyFileIsFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, standby := filepath.Join(dir, "node-cache.yaml"), filepath.Join(dir, "standby")
	assert.NoError(t, os.WriteFile(file, []byte("listen: {addresses: [169.254.20.10]}\nintercept: {manage: true, fallback: [10.0.0.1]}\n"), 0o600))
	applied := make(chan bool, 10)
	s, err := New(Config{File: file, Standby: standby, Now: time.Now, Apply: func(c config.Config, err error) (InUse, error) {
		applied <- c.Standby
		return InUse{Config: c}, err
	}})
	assert.NoError(t, err)
	_, _, err = s.Load(t.Context())
	assert.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	assert.NoError(t, os.WriteFile(standby, []byte("true"), 0o600))
	assert.Equal(t, "standby", true, <-applied)
	assert.NoError(t, os.Remove(standby))
	assert.Equal(t, "standby", false, <-applied)
	cancel()
	assert.NoError(t, <-ended)
}

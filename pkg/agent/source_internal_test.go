// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/configsource"
)

// TestFallBackToLastGood has a configuration that parses but fails to start: the agent starts with the last good one.
func TestFallBackToLastGood(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "node-cache.yaml")
	const listen = "listen: {port: 1}\nadmin: {address: \"\"}\n"
	for path, text := range map[string]string{
		file:                                    listen + "forward: [{zone: \".\", to: [/nonexistent]}]\n",
		filepath.Join(folder, "last-good.yaml"): listen + "forward: [{zone: \".\", to: [192.0.2.1]}]\n",
	} {
		assert.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	var log strings.Builder
	a, err := New(Options{Source: configsource.Config{File: file, LastGood: folder}, Log: &log})
	assert.NoError(t, err)
	if got := a.Config().Forward[0].To[0].String(); got != "192.0.2.1" {
		t.Errorf("upstream %s, want that of the last good one", got)
	}
	s := a.config.status(nil)
	if s.LastOK || s.Refused != 1 || s.Generation != 1 || !s.LastGood.InUse || !strings.Contains(s.LastError, "/nonexistent") {
		t.Errorf("status %+v, %+v", s, s.LastGood)
	}
	if !strings.Contains(log.String(), "running on the last good configuration") {
		t.Errorf("the log does not say so:\n%s", log.String())
	}
	if _, err := New(Options{Source: configsource.Config{File: file, LastGood: t.TempDir()}, Log: &log}); err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("without one: %v, want why", err)
	}
}

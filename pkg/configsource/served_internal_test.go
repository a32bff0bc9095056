// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestServed loads configurations after one that was kept.
func TestServed(t *testing.T) {
	t.Parallel()
	dir, kept := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "node-cache.yaml")
	const text = "listen: {addresses: [169.254.20.10]}\nintercept: {manage: true, fallback: [10.0.0.1]}\n"
	load := func(text string) bool {
		t.Helper()
		assert.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		w := newHarness(t, Config{File: file, LastGood: kept})
		_, _, err := w.Load(t.Context())
		assert.NoError(t, err)
		return w.Served()
	}
	assert.Equal(t, "served at the first start", false, load(text))
	w := newHarness(t, Config{File: file, LastGood: kept})
	_, _, err := w.Load(t.Context())
	assert.NoError(t, err)
	if !w.lastGood.flush(t.Context()) {
		t.Fatal("the configuration is not kept")
	}
	for _, tt := range []struct {
		name, text string
		want       bool
	}{
		{"the same", text, true},
		{"written in another way", "# a comment\n" + text, true},
		{"standby", text + "standby: true\n", true},
		{"another one", text + "cache: {size: 2Mi}\n", false},
		{"the last good one, in place of a bad one", "nonsense: true\n", true},
	} {
		assert.Equal(t, "served: "+tt.name, tt.want, load(tt.text))
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestRun compares what testdata/runs.txtar says of each run.
func TestRun(t *testing.T) {
	t.Parallel()
	assert.GoldenPairs(t, "testdata/runs.txtar", func(t *testing.T, _, events string) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "tally")
		var report bytes.Buffer
		good, err := run([]string{file}, strings.NewReader(events), &report)
		assert.NoError(t, err)
		tally, err := os.ReadFile(file)
		assert.NoError(t, err)
		return fmt.Sprintf("%sgood: %t, passed, failed, skipped: %s", report.String(), good, tally)
	})
}

// SPDX-License-Identifier: Apache-2.0

package localdata

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/filewatch"
)

// TestReloadWhileWritten checks a file between the steps of an in-place write. It is read once it settles, or after
// MaxChanges checks.
func TestReloadWhileWritten(t *testing.T) {
	t.Parallel()
	f := &hostsFile{FileStats: FileStats{Path: filepath.Join(t.TempDir(), "hosts")}}
	write := func(step, text string, changed, unsettled bool) {
		t.Helper()
		assert.NoError(t, os.WriteFile(f.Path, []byte(text), 0o600))
		if got := f.reload(true); got != changed || f.changes.Unsettled != unsettled || f.LastError != "" {
			t.Errorf("%s: changed %t, unsettled %t, %v; want %t, %t", step, got, f.changes.Unsettled, f.LastError, changed, unsettled)
		}
	}
	at := func(size int) string { return strings.Repeat("#", size) }
	unchanged := func(step string, changed bool) {
		t.Helper()
		if got := f.reload(true); got != changed || f.changes.Unsettled {
			t.Errorf("%s: changed %t, unsettled %t", step, got, f.changes.Unsettled)
		}
	}
	write("the first", at(100), true, false)
	unchanged("unchanged", false)
	write("emptied", "", false, true)
	write("a part", at(10), false, true)
	write("more", at(20), false, true)
	assert.Equal(t, "bytes in use during the write", 100, len(f.text))
	unchanged("settled", true)
	assert.Equal(t, "bytes in use after the write", 20, len(f.text))
	for i := range filewatch.MaxChanges {
		write("changing", at(30+i), false, true)
	}
	write("MaxChanges", at(29), true, false)
	write("again", at(28), false, true)
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestKernelHitsBlocked has a block list take over a name that the kernel answers: the kernel's copy of the answer ends with the change.
func TestKernelHitsBlocked(t *testing.T) {
	t.Parallel()
	const name = "ads.example."
	path := filepath.Join(t.TempDir(), "ads.txt")
	assert.NoError(t, os.WriteFile(path, []byte("# none yet\n"), 0o600))
	b := newHarness(t, options{extra: withKernelHits + "block: {files: [" + path + "]}\n"})
	b.start(t)
	ask := func() bool {
		_, err := nodetest.AskName(b.Pods[0], b.dnsAddrs[0], "udp", name)
		return err == nil
	}
	before := b.replies(t, "kernel")
	proctest.Eventually(t, time.Minute, "the kernel answers", func() bool { return ask() && b.replies(t, "kernel") > before })
	assert.NoError(t, os.WriteFile(path, []byte(name+"\n"), 0o600))
	proctest.Eventually(t, time.Minute, "the list decides", func() bool { return !ask() && b.replies(t, "block") > 0 })
	for range 50 {
		if ask() {
			t.Fatal("the answer from before came again")
		}
	}
}

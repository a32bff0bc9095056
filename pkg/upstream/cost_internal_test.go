// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"testing"
	"unsafe"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestMissMemory is the budget of a miss in this package: one exchange, in its size class of the Go runtime (the next one has
// 1,024 bytes), and no copy of a good answer. It is not parallel: AllocsPerRun counts all goroutines.
func TestMissMemory(t *testing.T) {
	if size := unsafe.Sizeof(exchange{}); size > 896 {
		t.Errorf("an exchange has %d bytes, want 896 at most", size)
	}
	answer := new(wire.Message)
	assert.NoError(t, answer.Parse([]byte("\x00\x01\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00\x01a\x00\x00\x01\x00\x01"+
		"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\xc0\x00\x02\x01")))
	x, a := new(exchange), new(attempt)
	assert.Equal(t, "allocations", 0, testing.AllocsPerRun(100, func() {
		if x.keepInconclusive(a, answer) {
			t.Error("a good answer was kept aside")
		}
	}))
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package upstream

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Only a limited number of sockets hold an inbox at a time, as it is large.
func TestSocketPoolInboxes(t *testing.T) {
	t.Parallel()
	h := newSocketHarness(t, responder(t), nil)
	q := upstreamtest.Question(t, "www.example.")
	most := int32(cap(h.readers))
	var reading, ever atomic.Int32
	var counting sync.Mutex
	release := make(chan struct{})
	for range 4 * most { // most slots are empty, so each uses its own socket
		tr := h.newAttempt(q, false)
		book := tr.receiver
		tr.receiver = replyFunc(func(r reply, batch *wire.SendBatch) {
			counting.Lock()
			ever.Store(max(ever.Load(), reading.Add(1)))
			counting.Unlock()
			<-release
			reading.Add(-1)
			book.handleReply(tr, r, batch)
		})
		var batch wire.SendBatch
		assert.NoError(t, h.send(tr, &batch))
		batch.Flush()
	}
	for reading.Load() < most {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond) // for replies that should not come
	close(release)
	h.came.Wait()
	assert.Equal(t, "sockets were read at one time", most, ever.Load())
	h.want(t, map[string]int{"forged": int(4 * most)})
}

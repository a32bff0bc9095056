// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"log/slog"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestRetry waits for the addresses of an agent that does not listen at the socket, as right after it has taken over itself. It
// gives up after a while, when it is stopped, and after another error.
func TestRetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var recorder Recorder
		next := NewTakeover(Config{Path: socketPath(t), Agent: "new", Now: time.Now, Recorder: &recorder, Log: slog.New(slog.DiscardHandler)})
		inUse := os.NewSyscallError("bind", syscall.EADDRINUSE)
		next.Find(t.Context())
		began := time.Now()
		for next.Retry(t.Context(), inUse) {
			assert.Equal(t, "what it waits for", "the addresses of another agent", recorder.Stats().WaitsFor)
		}
		if took := time.Since(began); took <= ownerTimeout || took > ownerTimeout+2*listenRetry {
			t.Errorf("it waited %s, want %s", took, ownerTimeout)
		}
		next.lastSeen = time.Time{}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(listenRetry/2, cancel)
		assert.Equal(t, "it goes on after it was stopped", false, next.Retry(ctx, inUse))
		assert.Equal(t, "it goes on after another error", false, next.Retry(t.Context(), os.NewSyscallError("bind", syscall.EACCES)))
	})
}

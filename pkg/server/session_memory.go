// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync"
	"sync/atomic"
)

const (
	// kernelSend is what the kernel keeps at most of the answers that a client has not
	// read. It begins one more packet when its buffer is almost full.
	kernelSend = 2*sessionBuffer + 32<<10
	// kernelReceive is what it keeps of the queries that a session has not read.
	kernelReceive = 2 * sessionBuffer
)

// A sessionMemory bounds the bytes that the sessions hold beyond what an idle one takes:
// answers that clients do not read, frames that have begun, and the kernel's buffers.
// An answer that the kernel takes at once is not counted.
type sessionMemory struct {
	limit    atomic.Int64 // 0: none
	total    atomic.Int64
	shedding sync.Mutex // held while sessions are closed
}

// A memoryUse is what one session holds. All methods may be called from any goroutine.
type memoryUse struct {
	memory *sessionMemory
	own    atomic.Int64 // bytes of its buffers
	kernel atomic.Int64 // most bytes of answers that the kernel may keep for it
}

// add counts n bytes of buffers more, or less. The caller calls relieve afterwards, with
// no lock held.
func (h *memoryUse) add(n int) {
	if n != 0 {
		h.own.Add(int64(n))
		h.memory.total.Add(int64(n))
	}
}

// addSent counts n bytes that the kernel took. Whether the client has read them is found
// out only when the limit is reached.
func (h *memoryUse) addSent(n int) {
	if more := min(int64(n), kernelSend-h.kernel.Load()); more > 0 {
		h.kernel.Add(more)
		h.memory.total.Add(more)
	}
}

// setKernel replaces the estimate of sent by what the kernel keeps.
func (h *memoryUse) setKernel(kernel int64) {
	h.memory.total.Add(kernel - h.kernel.Swap(kernel))
}

func (h *memoryUse) bytes() int64 { return h.own.Load() + h.kernel.Load() }

// release counts nothing for the session any more.
func (h *memoryUse) reset() {
	h.memory.total.Add(-h.own.Swap(0) - h.kernel.Swap(0))
}

// shedMemory closes sessions when all together hold too much: the largest of the client that
// holds most, until a quarter of the limit is free. The caller holds no lock.
func (t *TCP) shedMemory() {
	m := &t.memory
	limit := m.limit.Load()
	if limit == 0 || m.total.Load() <= limit || !m.shedding.TryLock() {
		return
	}
	defer m.shedding.Unlock()
	for _, s := range t.table.largest(limit, limit-limit/4) {
		if s.out.abort() {
			t.count.shedMemory.Add(1)
		}
		s.out.usage.reset() // it is about to, and others must not be closed for it
	}
}

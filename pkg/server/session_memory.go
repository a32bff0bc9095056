// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync"
	"sync/atomic"
)

const (
	// kernelSend is the most bytes of unread answers that the kernel keeps. It starts one more
	// packet when its buffer is almost full.
	kernelSend = 2*sessionBuffer + 32<<10
	// kernelReceive is the most bytes of unread queries that the kernel keeps.
	kernelReceive = 2 * sessionBuffer
)

// A sessionMemory bounds the memory of all sessions beyond that of an idle one: answers that
// clients do not read, incomplete frames, and kernel buffers. An answer that the kernel accepts at
// once does not count.
type sessionMemory struct {
	limit    atomic.Int64 // 0: none
	total    atomic.Int64
	shedding sync.Mutex // held while sessions are closed for memory
}

// A memoryUse is the memory of one session. All methods are safe for concurrent use.
type memoryUse struct {
	memory *sessionMemory
	own    atomic.Int64 // bytes of the session's buffers
	kernel atomic.Int64 // estimated bytes of answers in the kernel
}

// add adds n bytes of buffers; n may be negative. The caller calls shedMemory afterwards, with no
// lock held.
func (h *memoryUse) add(n int) {
	if n != 0 {
		h.own.Add(int64(n))
		h.memory.total.Add(int64(n))
	}
}

// addSent adds n bytes that the kernel accepted. Whether the client has read them is checked only
// at the limit.
func (h *memoryUse) addSent(n int) {
	if more := min(int64(n), kernelSend-h.kernel.Load()); more > 0 {
		h.kernel.Add(more)
		h.memory.total.Add(more)
	}
}

// setKernel replaces the estimate of addSent by the kernel's own count.
func (h *memoryUse) setKernel(kernel int64) {
	h.memory.total.Add(kernel - h.kernel.Swap(kernel))
}

func (h *memoryUse) bytes() int64 { return h.own.Load() + h.kernel.Load() }

// reset removes the session from the total.
func (h *memoryUse) reset() {
	h.memory.total.Add(-h.own.Swap(0) - h.kernel.Swap(0))
}

// shedMemory closes sessions if all together hold too much: the largest session of the client that
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
		s.out.usage.reset() // at once, so that no other session is closed for this memory
	}
}

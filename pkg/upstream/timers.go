// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// timerBatch is how many exchanges run before their queries are sent.
const timerBatch = 64

// A timerHeap calls the exchanges of a pool when their timers fire. It uses one runtime timer and one goroutine.
// Separate timers would start a goroutine each, thousands at once when an upstream stops answering, each with a stack
// larger than the exchange. It also sends the queries of simultaneous timers in one batch.
type timerHeap struct {
	*common

	mu      sync.Mutex  // guards the fields below, and exchange.callAt and heapIndex
	entries []*exchange // a heap by callAt
	timer   lazyTimer
	running bool // a goroutine calls due exchanges, and sets the timer when it is done
}

// set schedules the exchange, and replaces the time that was set before.
func (h *timerHeap) set(x *exchange, now, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x.callAt = at
	if x.heapIndex == 0 {
		heap.Push(h, x)
	} else {
		heap.Fix(h, x.heapIndex-1)
	}
	if !h.running {
		h.armLocked(now)
	}
}

// armLocked sets the timer for the earliest entry.
func (h *timerHeap) armLocked(now time.Time) {
	if len(h.entries) > 0 {
		h.timer.set(now, h.entries[0].callAt, h.run)
	}
}

// remove cancels the call of the exchange. The call may come nevertheless if it was under way.
func (h *timerHeap) remove(x *exchange) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if x.heapIndex != 0 {
		heap.Remove(h, x.heapIndex-1)
	}
}

// Len implements [heap.Interface], like the next four methods. The caller holds the lock.
func (h *timerHeap) Len() int { return len(h.entries) }

// Less implements [heap.Interface].
func (h *timerHeap) Less(i, j int) bool { return h.entries[i].callAt.Before(h.entries[j].callAt) }

// Swap implements [heap.Interface].
func (h *timerHeap) Swap(i, j int) {
	h.entries[i], h.entries[j] = h.entries[j], h.entries[i]
	h.entries[i].heapIndex, h.entries[j].heapIndex = i+1, j+1
}

// Push implements [heap.Interface].
func (h *timerHeap) Push(x any) {
	h.entries = append(h.entries, x.(*exchange))
	x.(*exchange).heapIndex = len(h.entries)
}

// Pop implements [heap.Interface].
func (h *timerHeap) Pop() any {
	last := len(h.entries) - 1
	x := h.entries[last]
	x.heapIndex = 0
	h.entries[last] = nil
	h.entries = h.entries[:last]
	if last < cap(h.entries)/4 && cap(h.entries) > timerBatch { // release the memory of a burst
		h.entries = append(make([]*exchange, 0, cap(h.entries)/2), h.entries...)
	}
	return x
}

// run calls the exchanges that are due. The timer calls it.
func (h *timerHeap) run() {
	var (
		batch wire.SendBatch
		due   [timerBatch]*exchange
	)
	for n := h.popDue(due[:], true); n > 0; n = h.popDue(due[:], false) {
		for _, x := range due[:n] {
			x.onTimer(&batch)
		}
		clear(due[:n])
		h.flush(&batch)
	}
}

// flush sends the queries of a batch. After a panic it goes on with the rest.
func (h *timerHeap) flush(batch *wire.SendBatch) {
	defer h.recoverPanic(context.Background(), func() {})
	batch.Flush()
}

// popDue moves expired entries to batch, as many as fit. If there are none it sets the timer. fired says that the timer
// called it.
func (h *timerHeap) popDue(batch []*exchange, fired bool) (n int) {
	now := h.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if fired {
		h.timer.fired()
		if h.running {
			return 0 // another goroutine is in run and handles them
		}
	}
	h.running = true
	for n < len(batch) && len(h.entries) > 0 && !now.Before(h.entries[0].callAt) {
		batch[n] = heap.Pop(h).(*exchange)
		n++
	}
	if n == 0 {
		h.running = false
		h.armLocked(now)
	}
	return n
}

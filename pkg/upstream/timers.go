// SPDX-License-Identifier: Apache-2.0

package upstream

import (
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

	mu      sync.Mutex   // guards the fields below, and exchange.heapIndex
	entries []timerEntry // a binary heap by time; the children of i are 2i+1 and 2i+2
	timer   lazyTimer
	running bool // a goroutine runs expired timers, and sets the timer when it is done
}

// A timerEntry is an exchange with the time of its next call.
type timerEntry struct {
	at       time.Time
	exchange *exchange
}

// set schedules the exchange, and replaces the time that was set before.
func (h *timerHeap) set(x *exchange, now, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if x.heapIndex == 0 {
		h.entries = append(h.entries, timerEntry{exchange: x})
		x.heapIndex = len(h.entries)
	}
	i := x.heapIndex - 1
	h.entries[i].at = at
	h.siftLocked(i)
	if !h.running {
		h.armLocked(now)
	}
}

// armLocked sets the timer for the earliest entry.
func (h *timerHeap) armLocked(now time.Time) {
	if len(h.entries) > 0 {
		h.timer.set(now, h.entries[0].at, h.run)
	}
}

// remove cancels the call. It may come nevertheless if it was under way.
func (h *timerHeap) remove(x *exchange) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if x.heapIndex != 0 {
		h.removeLocked(x.heapIndex - 1)
	}
}

func (h *timerHeap) removeLocked(i int) {
	last := len(h.entries) - 1
	h.entries[i].exchange.heapIndex = 0
	if i != last {
		h.putLocked(i, h.entries[last])
	}
	h.entries[last] = timerEntry{}
	h.entries = h.entries[:last]
	if i < last {
		h.siftLocked(i)
	}
	if last < cap(h.entries)/4 && cap(h.entries) > timerBatch { // release the memory of a burst
		h.entries = append(make([]timerEntry, 0, cap(h.entries)/2), h.entries...)
	}
}

func (h *timerHeap) putLocked(i int, d timerEntry) {
	h.entries[i] = d
	d.exchange.heapIndex = i + 1
}

// siftLocked restores the heap order for entry i.
func (h *timerHeap) siftLocked(i int) {
	d := h.entries[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !d.at.Before(h.entries[parent].at) {
			break
		}
		h.putLocked(i, h.entries[parent])
		i = parent
	}
	for {
		child := 2*i + 1
		if child+1 < len(h.entries) && h.entries[child+1].at.Before(h.entries[child].at) {
			child++
		}
		if child >= len(h.entries) || !h.entries[child].at.Before(d.at) {
			break
		}
		h.putLocked(i, h.entries[child])
		i = child
	}
	h.putLocked(i, d)
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

// popDue removes expired entries, as many as fit. If there are none it sets the timer. fired says that the timer
// called.
func (h *timerHeap) popDue(batch []*exchange, fired bool) (n int) {
	now := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if fired {
		h.timer.fired()
		if h.running {
			return 0 // the other goroutine handles them
		}
	}
	h.running = true
	for n < len(batch) && len(h.entries) > 0 && !now.Before(h.entries[0].at) {
		batch[n] = h.entries[0].exchange
		h.removeLocked(0)
		n++
	}
	if n == 0 {
		h.running = false
		h.armLocked(now)
	}
	return n
}

// A lazyTimer calls a function at the earliest of several times. Postponing does not touch the runtime timer: the
// function is then called too early, and must set the timer again.
type lazyTimer struct {
	dueAt time.Time // when the runtime timer fires; zero: not set
	timer *time.Timer
}

// set calls f, which is always the same, at then or earlier.
func (t *lazyTimer) set(now, then time.Time, f func()) {
	if !t.dueAt.IsZero() && !then.Before(t.dueAt) {
		return
	}
	t.dueAt = then
	if t.timer == nil {
		t.timer = time.AfterFunc(then.Sub(now), f)
		return
	}
	t.timer.Reset(then.Sub(now))
}

// fired records that f was called.
func (t *lazyTimer) fired() { t.dueAt = time.Time{} }

func (t *lazyTimer) stop() {
	if t.timer != nil {
		t.timer.Stop()
	}
}

// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// tickBatch is how many races hear that they are due before what they send leaves.
const timerBatch = 64

// A timetable tells the races of a pool when they are due. One timer does for all of them, and one goroutine calls them:
// timers of their own would start a goroutine each, thousands at once when an upstream falls silent, each with a stack
// that is larger than the race. And the next tries of those that are due together leave together.
type timerHeap struct {
	*common

	mu      sync.Mutex   // guards the fields below, and each race's place
	entries []timerEntry // the earliest first; the children of i are 2i+1 and 2i+2
	timer   lazyTimer
	running bool // a goroutine is at it: it sets the bell when it is done
}

// due is a race with the time when it is to be called.
type timerEntry struct {
	at       time.Time
	exchange *exchange
}

// set has the race called at a time, and not at another that was set before.
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

// ringLocked sets the bell for the first that is due.
func (h *timerHeap) armLocked(now time.Time) {
	if len(h.entries) > 0 {
		h.timer.set(now, h.entries[0].at, h.run)
	}
}

// remove has the race not called. It may be about to be, nevertheless.
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
	if last < cap(h.entries)/4 && cap(h.entries) > timerBatch { // what a burst took
		h.entries = append(make([]timerEntry, 0, cap(h.entries)/2), h.entries...)
	}
}

func (h *timerHeap) putLocked(i int, d timerEntry) {
	h.entries[i] = d
	d.exchange.heapIndex = i + 1
}

// siftLocked moves the entry at i up or down to where it belongs.
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

// call calls the races that are due. It is the bell's.
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

// flush sends what a batch of races has to send. A panic costs what caused it only: the next flush goes on behind it.
func (h *timerHeap) flush(batch *wire.SendBatch) {
	defer h.recoverPanic(context.Background(), func() {})
	batch.Flush()
}

// take takes out as many races that are due as there is room for. If there is none it sets the bell for the next.
func (h *timerHeap) popDue(batch []*exchange, rung bool) (n int) {
	now := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if rung {
		h.timer.fired()
		if h.running {
			return 0 // the other one sees to it
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

// An alarm calls a function when the next of several things is due. What is put off does not touch its timer: the
// function is called too early then, looks at what is due, and sets the alarm again.
type lazyTimer struct {
	dueAt time.Time // when it is due; zero: it is not set
	timer *time.Timer
}

// set has f, which is always the same, called then, if it is not called before anyway.
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

// rang notes that f has been called.
func (t *lazyTimer) fired() { t.dueAt = time.Time{} }

func (t *lazyTimer) stop() {
	if t.timer != nil {
		t.timer.Stop()
	}
}

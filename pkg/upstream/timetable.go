// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// tickBatch is how many races hear that they are due before what they send leaves.
const tickBatch = 64

// A timetable tells the races of a pool when they are due. One timer does for all of them, and one goroutine calls them:
// timers of their own would start a goroutine each, thousands at once when an upstream falls silent, each with a stack
// that is larger than the race. And the next tries of those that are due together leave together.
type timetable struct {
	*common

	mu      sync.Mutex // guards the fields below, and each race's place
	heap    []due      // the earliest first; the children of i are 2i+1 and 2i+2
	bell    alarm
	calling bool // a goroutine is at it: it sets the bell when it is done
}

// due is a race with the time when it is to be called.
type due struct {
	at   time.Time
	race *race
}

// set has the race called at a time, and not at another that was set before.
func (t *timetable) set(r *race, now, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.place == 0 {
		t.heap = append(t.heap, due{race: r})
		r.place = len(t.heap)
	}
	i := r.place - 1
	t.heap[i].at = at
	t.siftLocked(i)
	if !t.calling {
		t.ringLocked(now)
	}
}

// ringLocked sets the bell for the first that is due.
func (t *timetable) ringLocked(now time.Time) {
	if len(t.heap) > 0 {
		t.bell.set(now, t.heap[0].at, t.call)
	}
}

// remove has the race not called. It may be about to be, nevertheless.
func (t *timetable) remove(r *race) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.place != 0 {
		t.removeLocked(r.place - 1)
	}
}

func (t *timetable) removeLocked(i int) {
	last := len(t.heap) - 1
	t.heap[i].race.place = 0
	if i != last {
		t.putLocked(i, t.heap[last])
	}
	t.heap[last] = due{}
	t.heap = t.heap[:last]
	if i < last {
		t.siftLocked(i)
	}
	if last < cap(t.heap)/4 && cap(t.heap) > tickBatch { // what a burst took
		t.heap = append(make([]due, 0, cap(t.heap)/2), t.heap...)
	}
}

func (t *timetable) putLocked(i int, d due) {
	t.heap[i] = d
	d.race.place = i + 1
}

// siftLocked moves the entry at i up or down to where it belongs.
func (t *timetable) siftLocked(i int) {
	d := t.heap[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !d.at.Before(t.heap[parent].at) {
			break
		}
		t.putLocked(i, t.heap[parent])
		i = parent
	}
	for {
		child := 2*i + 1
		if child+1 < len(t.heap) && t.heap[child+1].at.Before(t.heap[child].at) {
			child++
		}
		if child >= len(t.heap) || !t.heap[child].at.Before(d.at) {
			break
		}
		t.putLocked(i, t.heap[child])
		i = child
	}
	t.putLocked(i, d)
}

// call calls the races that are due. It is the bell's.
func (t *timetable) call() {
	var (
		batch wire.SendBatch
		due   [tickBatch]*race
	)
	for n := t.take(due[:], true); n > 0; n = t.take(due[:], false) {
		for _, r := range due[:n] {
			r.tick(&batch)
		}
		clear(due[:n])
		t.flush(&batch)
	}
}

// flush sends what a batch of races has to send. A panic costs what caused it only: the next flush goes on behind it.
func (t *timetable) flush(batch *wire.SendBatch) {
	defer t.recovered(context.Background(), func() {})
	batch.Flush()
}

// take takes out as many races that are due as there is room for. If there is none it sets the bell for the next.
func (t *timetable) take(batch []*race, rung bool) (n int) {
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if rung {
		t.bell.rang()
		if t.calling {
			return 0 // the other one sees to it
		}
	}
	t.calling = true
	for n < len(batch) && len(t.heap) > 0 && !now.Before(t.heap[0].at) {
		batch[n] = t.heap[0].race
		t.removeLocked(0)
		n++
	}
	if n == 0 {
		t.calling = false
		t.ringLocked(now)
	}
	return n
}

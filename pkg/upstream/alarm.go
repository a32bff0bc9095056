// SPDX-License-Identifier: Apache-2.0

package upstream

import "time"

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

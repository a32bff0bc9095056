// SPDX-License-Identifier: Apache-2.0

package upstream

import "time"

// An alarm calls a function when the next of several things is due. What is put off does not touch its timer: the
// function is called too early then, looks at what is due, and sets the alarm again.
type alarm struct {
	at    time.Time // when it is due; zero: it is not set
	timer *time.Timer
}

// set has f, which is always the same, called then, if it is not called before anyway.
func (a *alarm) set(now, then time.Time, f func()) {
	if !a.at.IsZero() && !then.Before(a.at) {
		return
	}
	a.at = then
	if a.timer == nil {
		a.timer = time.AfterFunc(then.Sub(now), f)
		return
	}
	a.timer.Reset(then.Sub(now))
}

// rang notes that f has been called.
func (a *alarm) rang() { a.at = time.Time{} }

func (a *alarm) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
}

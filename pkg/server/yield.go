// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync"
	"sync/atomic"
	"time"
)

// yieldInterval is how long sessions work before they let the network be looked at, which costs
// some 2 µs.
const yieldInterval = 100 * time.Microsecond

// A yielder keeps sessions from holding up the readers of UDP. Go's scheduler looks at the
// network once nothing else can run, or after 10 ms. So where many sessions have large
// answers to build, a packet waits for all of them.
type yielder struct {
	spent atomic.Int64 // ns of work since the network was looked at
	mu    sync.Mutex   // guards poll
	poll  poller
}

// addWork counts work.
func (y *yielder) addWork(d time.Duration) { y.spent.Add(int64(d)) }

// yield waits until the scheduler has looked at the network, if there was much work since.
func (y *yielder) yield() {
	if y.spent.Load() < int64(yieldInterval) {
		return
	}
	y.mu.Lock() // those who wait pass one by one, each after another look
	defer y.mu.Unlock()
	if y.spent.Load() >= int64(yieldInterval) {
		y.poll.wait()
		y.spent.Store(0)
	}
}

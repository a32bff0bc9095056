// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync"
	"sync/atomic"
	"time"
)

// yieldInterval is how long sessions work before they let the scheduler poll the network, which
// costs about 2 µs.
const yieldInterval = 100 * time.Microsecond

// A yielder prevents sessions from delaying UDP readers. Go's scheduler polls the network when no
// goroutine is runnable, or after 10 ms. Without a yielder, a packet would wait for all sessions
// that are building large answers.
type yielder struct {
	spent atomic.Int64 // ns of work since the network was polled
	mu    sync.Mutex   // guards poll
	poll  poller
}

// addWork counts work.
func (y *yielder) addWork(d time.Duration) { y.spent.Add(int64(d)) }

// yield waits until the scheduler has polled the network, if enough work was done since the last
// poll.
func (y *yielder) yield() {
	if y.spent.Load() < int64(yieldInterval) {
		return
	}
	y.mu.Lock() // waiting sessions continue one by one, each after its own poll
	defer y.mu.Unlock()
	if y.spent.Load() >= int64(yieldInterval) {
		y.poll.wait()
		y.spent.Store(0)
	}
}

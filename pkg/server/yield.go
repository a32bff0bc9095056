// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync"
	"sync/atomic"
	"time"
)

// stretch is how long sessions work before they let the network be looked at, which costs
// some 2 µs.
const stretch = 100 * time.Microsecond

// A yielder keeps sessions from holding up the readers of UDP. Go's scheduler looks at the
// network once nothing else can run, or after 10 ms. So where many sessions have large
// answers to build, a packet waits for all of them.
type yielder struct {
	spent atomic.Int64 // ns of work since the network was looked at
	mu    sync.Mutex   // guards poll
	poll  poller
}

// worked counts work.
func (y *yielder) worked(d time.Duration) { y.spent.Add(int64(d)) }

// pass waits until the scheduler has looked at the network, if there was much work since.
func (y *yielder) pass() {
	if y.spent.Load() < int64(stretch) {
		return
	}
	y.mu.Lock() // those who wait pass one by one, each after another look
	defer y.mu.Unlock()
	if y.spent.Load() >= int64(stretch) {
		y.poll.wait()
		y.spent.Store(0)
	}
}

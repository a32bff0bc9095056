// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// The pauses between attempts double from the first to the last. The last is short on purpose, as that of the watches of the
	// cluster is: an edit made during an outage is seen soon after it.
	firstPause = 500 * time.Millisecond
	lastPause  = 5 * time.Second

	// deniedPause is the last pause after the server has said that this process may not: it may be granted any time, but rarely
	// is. A server that has just started says so, too, for a moment.
	deniedPause = 20 * time.Second

	longestPause = 30 * time.Second // that a server may ask for
)

// A pause is how long to wait until the next attempt. Its zero value is ready to use.
type pause struct{ last time.Duration }

// after gives the pause after an error, with up to half of it added, lest all agents ask at one time.
func (p *pause) after(err error) time.Duration {
	last := lastPause
	if word := wordFor(err); word == wrongForbidden || word == wrongUnauthorized {
		last = deniedPause
	}
	p.last = min(max(2*p.last, firstPause), last)
	d := p.last
	if no := asRefusal(err); no != nil {
		d = max(d, no.after)
	}
	return d + time.Duration(rand.Int64N(int64(d)/2))
}

func (p *pause) reset() { p.last = 0 }

// sleep waits for d, and gives false if ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

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
	firstBackoff = 500 * time.Millisecond
	lastBackoff  = 5 * time.Second

	// deniedPause is the last pause after the server has said that this process may not: it may be granted any time, but rarely
	// is. A server that has just started says so, too, for a moment.
	deniedBackoff = 20 * time.Second

	maxRetryAfter = 30 * time.Second // that a server may ask for
)

// A pause is how long to wait until the next attempt. Its zero value is ready to use.
type backoff struct{ last time.Duration }

// after gives the pause after an error, with up to half of it added, lest all agents ask at one time.
func (p *backoff) after(err error) time.Duration {
	last := lastBackoff
	if word := reasonOf(err); word == reasonForbidden || word == reasonUnauthorized {
		last = deniedBackoff
	}
	p.last = min(max(2*p.last, firstBackoff), last)
	d := p.last
	if no := asStatusError(err); no != nil {
		d = max(d, no.after)
	}
	return d + time.Duration(rand.Int64N(int64(d)/2))
}

func (p *backoff) reset() { p.last = 0 }

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

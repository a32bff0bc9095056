// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"net/http"
	"sync"
	"time"
)

const (
	// paceShare bounds the CPU time that requests of other machines and of pods take: one part of so many of one CPU.
	paceShare = 10
	// paceBurst is how far ahead of that they may be, in time that has to pass for it.
	paceBurst = time.Second
	// requestCost is the CPU time that net/http takes for a request.
	requestCost = 50 * time.Microsecond
)

// A pace has requests wait, one behind the other, while those before took more than their share of a CPU: queries of
// the node need it. Clients on this machine, such as the kubelet's probes of an agent, never wait.
type pace struct {
	turn chan struct{} // holds one value while a request waits for its time
	mu   sync.Mutex    // guards even
	even time.Time     // when the share is what was taken
	now  func() time.Time
}

func newPace() *pace {
	return &pace{turn: make(chan struct{}, 1), now: time.Now} //nolint:forbidigo // the clock that net/http has, too
}

// wait returns when the request may be served. It is false if the client has gone before, or the agent stops.
func (p *pace) wait(r *http.Request) bool {
	if isSocket(r) || isLocal(r) {
		return true
	}
	select {
	case p.turn <- struct{}{}:
	case <-r.Context().Done():
		return false
	}
	defer func() { <-p.turn }()
	if early := p.took(0).Sub(p.now()) - paceBurst; early > 0 {
		timer := time.NewTimer(early)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return false
		}
	}
	return true
}

// took counts CPU time that was taken, and returns when the share is that.
func (p *pace) took(d time.Duration) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.now(); p.even.Before(now) {
		p.even = now
	}
	p.even = p.even.Add(paceShare * d)
	return p.even
}

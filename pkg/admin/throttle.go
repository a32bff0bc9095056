// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"net/http"
	"sync"
	"time"
)

const (
	// throttleShare bounds the CPU time of requests from other hosts and pods to 1/throttleShare of one CPU.
	throttleShare = 10
	// throttleBurst is how far requests may run ahead of that share.
	throttleBurst = time.Second
	// requestCost is the CPU time of net/http per request.
	requestCost = 50 * time.Microsecond
)

// A throttle delays requests, one after the other, while earlier ones exceeded their share of a CPU: DNS
// queries need it. Clients on this host, such as the kubelet's probes, never wait.
type throttle struct {
	turn chan struct{} // semaphore of the waiting request
	mu   sync.Mutex    // guards even
	even time.Time     // when the share covers the time used
	now  func() time.Time
}

func newThrottle() *throttle {
	return &throttle{turn: make(chan struct{}, 1), now: time.Now} //nolint:forbidigo // net/http uses this clock, too
}

// wait returns when the request may be served. It returns false if the client is gone or the agent stops.
func (t *throttle) wait(r *http.Request) bool {
	if isSocket(r) || isLocal(r) {
		return true
	}
	select {
	case t.turn <- struct{}{}:
	case <-r.Context().Done():
		return false
	}
	defer func() { <-t.turn }()
	if early := t.took(0).Sub(t.now()) - throttleBurst; early > 0 {
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

// took adds CPU time and returns when the share covers it.
func (t *throttle) took(d time.Duration) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now(); t.even.Before(now) {
		t.even = now
	}
	t.even = t.even.Add(throttleShare * d)
	return t.even
}

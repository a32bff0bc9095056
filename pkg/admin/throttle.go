// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

const (
	// throttleShare bounds the CPU time of requests over TCP to 1/throttleShare of one CPU: once for clients on this host, and
	// once for all others.
	throttleShare = 10
	// throttleBurst is how far requests may run ahead of that share.
	throttleBurst = time.Second
	// requestCost is the CPU time of net/http per request.
	requestCost = 50 * time.Microsecond
)

// A throttle delays requests, one after the other, while earlier requests have exceeded their share of a CPU: DNS
// queries need the CPU. Clients on this host, such as the kubelet's probes, have a share of their own. Those of the unix socket never wait.
type throttle struct {
	shares map[bool]*share // key: whether the client is on this host
	now    func() time.Time
}

// A share is the CPU time that one kind of clients may use.
type share struct {
	turn chan struct{} // semaphore: the request that has it waits until even, the others wait for it
	mu   sync.Mutex    // guards even
	even time.Time     // when the share will cover the CPU time used so far
}

func newThrottle() *throttle {
	return &throttle{
		shares: map[bool]*share{true: {turn: make(chan struct{}, 1)}, false: {turn: make(chan struct{}, 1)}},
		now:    time.Now, //nolint:forbidigo // net/http uses this clock, too
	}
}

// share returns the share that a request over TCP counts towards.
func (t *throttle) share(r *http.Request) *share {
	client, _ := netip.ParseAddrPort(r.RemoteAddr)
	server, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return t.shares[isLocal(client.Addr().Unmap(), address(server))]
}

// wait blocks until the request may be served. It returns false if the client is gone or the agent stops before that.
func (t *throttle) wait(r *http.Request) bool {
	if isSocket(r) {
		return true
	}
	s := t.share(r)
	select {
	case s.turn <- struct{}{}:
	case <-r.Context().Done():
		return false
	}
	defer func() { <-s.turn }()
	if early := t.took(r, 0).Sub(t.now()) - throttleBurst; early > 0 {
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

// took adds a request's CPU time to its share, and returns when the share will cover all time added to it.
func (t *throttle) took(r *http.Request, d time.Duration) time.Time {
	now := t.now()
	if isSocket(r) {
		return now
	}
	s := t.share(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.even.Before(now) {
		s.even = now
	}
	s.even = s.even.Add(throttleShare * d)
	return s.even
}

// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

const (
	// throttleShare bounds the CPU time of requests over TCP to 1/throttleShare of one CPU, for each source.
	throttleShare = 10
	// throttleBurst is how far requests may run ahead of that share.
	throttleBurst = time.Second
	// requestCost is the CPU time of net/http per request.
	requestCost = 50 * time.Microsecond
	// handshakeCost is the CPU time of a TLS handshake with a key of RSA, the slowest kind.
	handshakeCost = time.Millisecond
)

// A source is what causes requests. Each has a share of a CPU.
type source uint8

const (
	elsewhere  source = iota // clients in pods or on other hosts
	onHost                   // clients on this host, such as the kubelet's probes
	authorized               // clients of Config.Secure that may have the page
	handshakes               // new connections to Config.Secure
	sources
)

// A throttle delays requests, one after the other, while earlier requests have exceeded their share of a CPU: DNS
// queries need the CPU. Those of the unix socket never wait.
type throttle struct {
	shares [sources]*share
	now    func() time.Time
}

// A share is the CPU time that one source may use.
type share struct {
	turn chan struct{} // semaphore: the request that has it waits until even, the others wait for it
	mu   sync.Mutex    // guards even
	even time.Time     // when the share will cover the CPU time used so far
}

func newThrottle() *throttle {
	t := &throttle{now: time.Now} //nolint:forbidigo // net/http uses this clock, too
	for i := range t.shares {
		t.shares[i] = &share{turn: make(chan struct{}, 1)}
	}
	return t
}

// sourceOf returns the source of a request over TCP.
func sourceOf(r *http.Request) source {
	if isAuthorized(r) {
		return authorized
	}
	server, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if isLocal(clientOf(r), address(server)) {
		return onHost
	}
	return elsewhere
}

// clientOf returns the address of a client over TCP.
func clientOf(r *http.Request) netip.Addr {
	client, _ := netip.ParseAddrPort(r.RemoteAddr)
	return client.Addr().Unmap()
}

// wait blocks until the request may be served. It returns false if the client is gone or the agent stops before that.
func (t *throttle) wait(r *http.Request) bool {
	if isSocket(r) {
		return true
	}
	return t.waitFor(r.Context(), sourceOf(r))
}

// waitFor blocks until a source may go on. It returns false if ctx ends before that.
func (t *throttle) waitFor(ctx context.Context, from source) bool {
	s := t.shares[from]
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-s.turn }()
	if early := t.add(from, 0).Sub(t.now()) - throttleBurst; early > 0 {
		timer := time.NewTimer(early)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// took adds a request's CPU time to its share.
func (t *throttle) took(r *http.Request, d time.Duration) {
	if !isSocket(r) {
		t.add(sourceOf(r), d)
	}
}

// add adds CPU time to the share of a source, and returns when the share will cover all time added to it.
func (t *throttle) add(from source, d time.Duration) time.Time {
	now, s := t.now(), t.shares[from]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.even.Before(now) {
		s.even = now
	}
	s.even = s.even.Add(throttleShare * d)
	return s.even
}

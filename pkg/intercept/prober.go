// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

const (
	probeTimeout = time.Second
	udpEvery     = 60 * time.Millisecond // between tries: the kernel may deal the next to another reader
	tcpEvery     = 80 * time.Millisecond // not the second after which the kernel repeats a SYN that was lost
	maxTries     = 12                    // of one transport within one probe
	udpAtOnce    = 4                     // first tries: from as many ports, for more of those who share the address to be met
)

// ProberConfig says how an agent is asked whether it answers.
type ProberConfig struct {
	Port    uint16        // at which the agent serves
	Token   string        // with which the agent answers, see [SelfName]
	Timeout time.Duration // of one probe, all its tries; 0: 1 s

	// Dial connects to the agent. Nil: from the very address that is asked, over a
	// socket with [rules.Mark], which needs CAP_NET_ADMIN.
	Dial func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
}

// A Prober asks an agent through its own listening sockets.
type Prober struct {
	cfg ProberConfig
}

// NewProber returns a prober. It opens nothing.
func NewProber(cfg ProberConfig) *Prober {
	if cfg.Timeout == 0 {
		cfg.Timeout = probeTimeout
	}
	if cfg.Dial == nil {
		cfg.Dial = dialMarked
	}
	return &Prober{cfg: cfg}
}

// A ProbeError says how a probe failed: what its last telling try said.
type ProbeError struct {
	Network string // "udp" or "tcp"
	Cause   Cause  // Silent, Refused, Wrong, Unsent or NoProof
	Err     error  // never nil
}

// Error is the transport, the cause and what is known about it.
func (e *ProbeError) Error() string { return fmt.Sprintf("%s: %s: %v", e.Network, e.Cause, e.Err) }

// Unwrap is the error below.
func (e *ProbeError) Unwrap() error { return e.Err }

// Probe returns nil when the agent answered at addr, over UDP and over TCP, within
// the prober's timeout and before ctx ended. Otherwise it returns a [*ProbeError].
//
// Both are asked at once, and again every so often while there is no answer: a query
// that is lost under load says nothing, and other tries reach other readers. Over UDP
// the first tries are several, from different ports, and the probe waits for the next
// try's time for all their answers. An answer that no agent gives ends the probe at
// once, whatever other tries got: another process shares the address. Tries
// stay open until the probe is decided. A TCP session that is accepted and closed proves
// nothing: clients would have no answer either. The agent has a place for this one always.
func (p *Prober) Probe(ctx context.Context, addr netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	to := netip.AddrPortFrom(addr, p.cfg.Port)
	var byUDP, byTCP error
	var group sync.WaitGroup
	group.Go(func() { byTCP = p.tries(ctx, "tcp", to, 1, tcpEvery) })
	byUDP = p.tries(ctx, "udp", to, udpAtOnce, udpEvery)
	group.Wait()
	if byUDP == nil || errors.Is(byTCP, errForeign) && !errors.Is(byUDP, errForeign) {
		return byTCP
	}
	return byUDP
}

// tries asks over one transport until answers are right, one is foreign, or ctx ends. It joins its tries.
func (p *Prober) tries(ctx context.Context, network string, to netip.AddrPort, atOnce int, every time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan error, maxTries)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	r := round{network: network, left: maxTries, begin: func() {
		group.Go(func() { results <- p.try(ctx, network, to) })
	}}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for range atOnce {
		r.next()
	}
	for {
		select {
		case err := <-results:
			r.ended(err)
			switch {
			case errors.Is(err, errForeign), r.open == 0 && !r.right && r.left == 0:
				return r.problem()
			case r.right && (r.open == 0 || atOnce == 1):
				return nil
			}
		case <-ticker.C:
			if r.right {
				return nil
			}
			r.next()
		case <-ctx.Done():
			return r.problem()
		}
	}
}

// A round is the tries over one transport.
type round struct {
	network string
	begin   func()      // one more
	left    int         // that may still begin
	open    int         // that have begun and not ended
	right   bool        // one got the right answer
	telling *ProbeError // the last that ended otherwise than in silence; nil: none did
}

func (r *round) next() {
	if r.left > 0 {
		r.left--
		r.open++
		r.begin()
	}
}

// ended takes down how a try ended.
func (r *round) ended(err error) {
	r.open--
	if err == nil {
		r.right = true
		return
	}
	cause := causeOfTry(err)
	if cause != Silent {
		r.telling = &ProbeError{Network: r.network, Cause: cause, Err: err}
	}
	if cause == Wrong {
		r.next() // an agent that is taken over from still reads: the next may be answered by this one
	}
}

func (r *round) problem() error {
	if r.telling != nil {
		return r.telling
	}
	return &ProbeError{Network: r.network, Cause: Silent, Err: context.DeadlineExceeded}
}

// try asks once.
func (p *Prober) try(ctx context.Context, network string, to netip.AddrPort) error {
	conn, err := p.cfg.Dial(ctx, network, to)
	if err != nil {
		return err
	}
	// Closing ends what waits on the connection, whatever it is.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		stop()
		_ = conn.Close()
	}()
	err = ask(conn, network, p.cfg.Token)
	if err != nil && ctx.Err() != nil {
		return ctx.Err() // which is why the connection was closed
	}
	return err
}

// causeOfTry tells what failed.
func causeOfTry(err error) Cause {
	timeout, ok := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, errWrong):
		return Wrong
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), ok && timeout.Timeout():
		return Silent
	case errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH),
		errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return Unsent
	}
	return NoProof
}

// causeOf tells what failed from any probe's error.
func causeOf(err error) Cause {
	if probe, ok := errors.AsType[*ProbeError](err); ok {
		return probe.Cause
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return Silent
	}
	return NoProof
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/handover"
)

// run hands over when somebody asks, until ctx ends.
func (h *hand) run(ctx context.Context) error {
	if h == nil {
		return nil
	}
	return h.giver.Run(ctx)
}

// given is closed once another agent has taken over; nil: never.
func (h *hand) given() <-chan struct{} {
	if h == nil {
		return nil
	}
	return h.giver.HandedOver()
}

// gave tells whether another agent has taken over.
func (h *hand) gave() bool {
	select {
	case <-h.given():
		return true
	default:
		return false
	}
}

// keeps notes what ends the keeping of link and rules.
func (h *hand) keeps(stop func()) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keep = stop
}

// leave says that this agent is about to end. One that has its sockets takes over now.
func (h *hand) leave(ctx context.Context) {
	if h != nil {
		h.giver.Shutdown(context.WithoutCancel(ctx), hurried)
	}
}

// offers are the sockets that this agent listens on.
func (h *hand) offers() ([]handover.Offer, error) {
	a := h.agent
	var list []handover.Offer
	add := func(kind string, addr netip.AddrPort, raw syscall.RawConn) {
		list = append(list, handover.Offer{Listen: handover.Listen{Kind: kind, Addr: addr}, Raw: raw})
	}
	for i, u := range a.udp {
		for _, raw := range u.RawConns() {
			add(handover.KindUDP, unmapped(u.Addr()), raw)
		}
		if raw := a.tcp[i].RawConn(); raw != nil {
			add(handover.KindTCP, a.tcp[i].Addr(), raw)
		}
	}
	if a.admin != nil && a.admin.Raw() != nil {
		add(handover.KindAdmin, unmapped(a.admin.Addr()), a.admin.Raw())
	}
	return list, nil
}

func unmapped(addr netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}

// snapshot writes what this agent knows.
func (h *hand) snapshot(ctx context.Context) error {
	s, r := h.agent.snapshots, h.agent.running.Load()
	if r.config.Snapshot.Folder == "" {
		return errors.New("snapshot.folder is not set")
	}
	select { // the one of the period may be under way
	case s.busy <- struct{}{}:
		<-s.busy
	case <-ctx.Done():
		return errHangs
	}
	before := s.read().Saved
	s.attempt(ctx, meeting, r)
	if now := s.read(); now.Saved == before {
		return fmt.Errorf("saving a snapshot: %s", now.LastError)
	}
	return nil
}

// yield leaves what the claim is for to the agent that has taken over.
func (h *hand) yield(ctx context.Context, claim handover.Claim) {
	a := h.agent
	defer a.node.yield(ctx, claim) // whatever becomes of the rest, link and rules are the other one's
	defer h.unkeep()
	var quiet sync.WaitGroup
	for i := range a.udp {
		if claim.Has(handover.Listen{Kind: handover.KindUDP, Addr: unmapped(a.udp[i].Addr())}) {
			quiet.Go(func() {
				defer h.recovered()
				a.udp[i].HandOver(ctx)
			})
		}
		if claim.Has(handover.Listen{Kind: handover.KindTCP, Addr: a.tcp[i].Addr()}) {
			quiet.Go(func() {
				defer h.recovered()
				a.tcp[i].HandOver(ctx, staying)
			})
		}
	}
	if a.admin != nil {
		// Also where the next one serves it at an address that covers this one: who asks here means an agent that answers.
		a.admin.Give()
	}
	quiet.Wait()
}

// recovered, deferred, ends a goroutine at its panic: this process still answers what it has
// read.
func (h *hand) recovered() {
	if defect := recover(); defect != nil {
		handover.LogPanic(h.log, &h.recorder, defect)
	}
}

// unkeep ends the keeping of link and rules.
func (h *hand) unkeep() {
	h.mu.Lock()
	stop := h.keep
	h.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// lost is called when an agent that was to take over has ended before.
func (h *hand) lost(ctx context.Context) { h.agent.node.retake(ctx) }

// idle waits for the end of an agent that has handed over: whoever started it would start
// it again if it ended by itself. It does when nobody is there any more.
func (a *Agent) idle(ctx context.Context) error {
	h := a.hand
	h.log.InfoContext(ctx, "handed over and idle, until told to end", "agent", h.recorder.Stats().To)
	look := time.NewTicker(lookOut)
	defer look.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
			if handover.Alive(ctx, h.path) {
				last = time.Now() // and not when the ticker went off: this process may have been stopped since
			}
			if time.Since(last) > orphaned {
				return &HintError{
					Err:  fmt.Errorf("the agent %s, which took over, has ended without a successor", h.recorder.Stats().To),
					Hint: "start this one again, or another one",
				}
			}
		}
	}
}

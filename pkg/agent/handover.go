// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/server"
)

const (
	// meeting bounds what is said before there are sockets, the snapshot included.
	meeting = 20 * time.Second
	// again sets the looks apart at whether addresses are free that were not handed over.
	again = 250 * time.Millisecond
	// notMine sets the questions apart to an agent that had none of the addresses.
	notMine = 5 * time.Second
	// hurried is how long an agent that is to end waits for one that has its sockets.
	hurried = 3 * time.Second
	// staying is how long the sessions of an agent that has handed over go on.
	staying = 30 * time.Second
	// orphaned is how long nobody may be at the socket before an agent that has handed over
	// ends, and lookOut sets the looks apart.
	orphaned, lookOut = 10 * time.Second, 2 * time.Second
)

// A hand takes the sockets of the agent that runs, and hands them to the one that comes.
// A nil hand does neither.
type hand struct {
	agent    *Agent
	path     string
	log      *slog.Logger
	recorder handover.Recorder
	giver    *handover.Server
	cleared  chan struct{} // closed once no earlier agent minds link and rules
	anew     chan struct{} // there is another configuration

	taker   *handover.Client  // nil: there is nobody to take over from
	sockets []handover.Socket // that came and were not adopted; Listen's own
	serves  []handover.Listen // that were adopted; written before Run
	why     error             // why an agent that is there does not hand over; Listen's own
	heard   time.Time         // when somebody was at the socket; Listen's own
	had     time.Time         // when the sockets came

	mu    sync.Mutex // guards what follows
	state string     // what a start waits for; empty: nothing
	keep  func()     // ends the keeping of link and rules; nil: it has not begun
}

// newHand is nil when cfg has no socket for it.
func (a *Agent) newHand(cfg *config.Config) (*hand, error) {
	if cfg.Handover.Socket == "" {
		return nil, nil //nolint:nilnil // an agent that nobody takes over from is no mistake
	}
	h := &hand{agent: a, path: cfg.Handover.Socket, log: a.log, cleared: make(chan struct{}), anew: make(chan struct{}, 1)}
	var err error
	h.giver, err = handover.NewServer(handover.ServerConfig{
		Path: h.path, Agent: a.token, Version: a.options.Version,
		Snapshot: h.snapshot, Offers: h.offers, Release: h.yield, SuccessorLost: h.lost,
		Now: time.Now, Log: a.log, Recorder: &h.recorder,
	})
	return h, err
}

// meet looks for an agent to take over from, and has it write its snapshot.
func (h *hand) meet(ctx context.Context) {
	if h == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, meeting)
	defer cancel()
	a := h.agent
	taker, err := handover.Connect(ctx, handover.ClientConfig{
		Path: h.path, Agent: a.token, Version: a.options.Version, Now: time.Now, Log: h.log, Recorder: &h.recorder,
	})
	if errors.Is(err, handover.ErrNoAgent) {
		if time.Since(h.heard) > orphaned { // else the next one is about to listen
			h.why = nil
		}
		return
	}
	h.why, h.heard = nil, time.Now()
	if err != nil {
		h.refused(ctx, err)
		return
	}
	h.taker = taker
	h.recorder.Update(func(s *handover.Stats) { s.From = taker.Predecessor })
	h.log.InfoContext(ctx, "another agent serves, its sockets are to be taken over", "agent", taker.Predecessor, "version", taker.PredecessorVersion)
}

// askSnapshot has the agent that is taken over from write what it knows.
func (h *hand) askSnapshot(ctx context.Context, folder string) {
	if h == nil || h.taker == nil || folder == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, meeting)
	defer cancel()
	if err := h.taker.Snapshot(ctx); err != nil {
		h.log.WarnContext(ctx, "no snapshot of the agent that is taken over from, the last one must do", "err", err)
	}
}

// refused notes why the agent that is there does not hand over, once for each reason.
func (h *hand) refused(ctx context.Context, err error) {
	h.why = err
	news := false
	h.recorder.Update(func(s *handover.Stats) {
		news = s.Why != err.Error()
		s.Taken, s.Why = handover.OutcomeRefused, err.Error()
	})
	if news {
		h.log.WarnContext(ctx, "the agent that runs does not hand over its sockets", "err", err, "socket", h.path)
	}
}

// close breaks off what was not taken.
func (h *hand) close() {
	if h == nil {
		return
	}
	h.dismiss()
	if h.taker != nil {
		h.taker.Close()
		h.taker = nil
	}
}

// dismiss closes the sockets that were not adopted.
func (h *hand) dismiss() {
	if h == nil {
		return
	}
	handover.Discard(h.sockets)
	h.sockets = nil
}

// receive gets the sockets of the agent that is taken over from. If it serves none of
// the addresses wanted it is nothing to this one.
func (h *hand) receive(ctx context.Context, wanted []netip.AddrPort) {
	if h == nil || h.taker == nil {
		return
	}
	sockets, err := h.taker.Sockets(ctx)
	h.sockets, h.had = sockets, time.Now()
	has := func(kind string, addr netip.AddrPort) bool {
		return slices.ContainsFunc(sockets, func(s handover.Socket) bool { return s.Kind == kind && s.Addr == addr })
	}
	if err == nil && !slices.ContainsFunc(wanted, func(a netip.AddrPort) bool { return has(handover.KindUDP, a) && has(handover.KindTCP, a) }) {
		h.log.InfoContext(ctx, "the other agent serves none of this one's addresses, and goes on", "agent", h.taker.Predecessor)
		h.why = errNotMine // for when its addresses are in the way all the same
		h.close()
		return
	}
	if err != nil {
		h.refused(ctx, err)
		h.close()
	}
}

var errNotMine = errors.New("it serves other addresses")

// adopt gives the files of the sockets of a name away, nil if there are none.
func (h *hand) adopt(kind string, addr netip.AddrPort) (files []*os.File) {
	if h == nil || len(h.sockets) == 0 {
		return nil
	}
	name := handover.Listen{Kind: kind, Addr: addr}
	h.sockets = slices.DeleteFunc(h.sockets, func(s handover.Socket) bool {
		if s.Listen == name {
			files = append(files, s.File)
		}
		return s.Listen == name
	})
	if len(files) > 0 {
		h.serves = append(h.serves, name)
	}
	return files
}

// retries waits a moment and says whether to listen again, after an error: addresses that
// an agent has which does not hand them over are free once it ends.
func (h *hand) retries(ctx context.Context, err error) bool {
	if h == nil || h.why == nil || !errors.Is(err, syscall.EADDRINUSE) {
		return false
	}
	if h.waits("the addresses, which another agent has") {
		h.log.WarnContext(ctx, "waiting for the addresses: another agent has them and does not hand them over", "err", err, "why", h.why,
			"hint", "it goes on from here once that agent has ended; docs/upgrades.md tells what a hand-over needs")
	}
	wait := time.NewTimer(again)
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wait.C:
		h.serves = nil
		// One that serves other addresses does so until it ends. It is not to be asked
		// for its sockets all the time, but there may be another one by now.
		if !errors.Is(h.why, errNotMine) || time.Since(h.had) > notMine {
			h.meet(ctx)
		}
		return true
	}
}

// waits notes what a start waits for, and says whether that is news.
func (h *hand) waits(what string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	news := h.state != what
	h.state = what
	return news
}

// takes tells whether sockets were taken that another agent still reads.
func (h *hand) takes() bool { return h != nil && h.taker != nil }

// await waits until this agent knows the cluster, for as long as the other one serves. What there is to be known changes
// with the configuration: a wrong one can be mended meanwhile.
func (h *hand) await(ctx context.Context) {
	for {
		c := h.agent.running.Load().cluster
		if c.inSync() {
			return
		}
		h.waits("the cluster zone, to take over from agent " + h.taker.Predecessor)
		h.log.InfoContext(ctx, "waiting for the cluster zone, the other agent goes on meanwhile", "agent", h.taker.Predecessor)
		select {
		case <-c.source.Ready(): // by now another one may be what counts
			continue
		case <-h.anew:
			continue
		case <-h.taker.PredecessorLeaving():
			h.log.InfoContext(ctx, "the other agent ends, its sockets are taken over before the cluster zone is in sync", "agent", h.taker.Predecessor)
		case <-ctx.Done():
		}
		return
	}
}

// reconsider says that there is another configuration.
func (h *hand) reconsider() {
	if h == nil {
		return
	}
	select {
	case h.anew <- struct{}{}:
	default: // that was not heard of yet
	}
}

// needs are the rights for what take may do. All threads have to stop for rights to be
// given up, so that this cannot wait until the agent serves.
func (h *hand) needs() []capabilities.Capability {
	if h.takes() && slices.ContainsFunc(h.agent.udp, func(u *server.UDP) bool { return u.MissingReaders() > 0 }) {
		return []capabilities.Capability{capabilities.NetBindService}
	}
	return nil
}

// take has the other agent stop, as this one serves, and lets link and rules be kept. An
// agent that is told to end by now leaves them, and the sockets, to the other one: its
// rules would have that one stand down. From the word on that it takes over it does so,
// whatever it is told.
func (h *hand) take(ctx context.Context) {
	if h == nil || h.taker != nil && ctx.Err() != nil {
		return
	}
	defer close(h.cleared)
	h.waits("")
	if h.taker == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	claim := handover.Claim{Agent: h.agent.token, Version: h.agent.options.Version, Serves: h.serves}
	claim.Link, claim.Rules = h.agent.node.keeps()
	err := h.taker.TakeOver(ctx, claim)
	gone := handover.PredecessorEnded(err)
	h.agent.node.took(h.taker.Predecessor, gone)
	outcome := handover.OutcomeTaken
	if gone {
		outcome = handover.OutcomeOrphaned
	}
	waited := time.Since(h.had)
	h.recorder.Update(func(s *handover.Stats) {
		s.Taken, s.Why, s.Sockets, s.Waited = outcome, "", len(h.serves), waited
	})
	names := make([]string, len(h.serves))
	for i, name := range h.serves {
		names[i] = name.String()
	}
	h.log.InfoContext(ctx, "taken over", "agent", h.taker.Predecessor, "version", h.taker.PredecessorVersion, "sockets", names,
		"waited", waited.Round(time.Millisecond))
	if err != nil {
		h.log.WarnContext(ctx, "the agent that was taken over from did not say that it has stopped", "err", err)
	}
	for _, u := range h.agent.udp {
		if u.MissingReaders() == 0 {
			continue
		}
		err := h.agent.foreign.shares(u)
		if err == nil {
			err = u.AddReaders(ctx)
		}
		if err != nil {
			h.log.WarnContext(ctx, "there are fewer readers than CPUs", "err", err)
		}
	}
}

// clear waits until link and rules are nobody else's, and says whether that is so.
func (h *hand) clear(ctx context.Context) bool {
	if h == nil {
		return true
	}
	select {
	case <-h.cleared:
		return true
	case <-ctx.Done():
		return false
	}
}

// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/retry"
)

const (
	// listenRetry is the wait before another attempt to listen on addresses in use.
	listenRetry = 250 * time.Millisecond
	// recheckInterval is the wait between two requests to an agent that has none of the addresses.
	recheckInterval = 5 * time.Second
	// prepareTimeout bounds the requests before the sockets arrive, the snapshot included.
	prepareTimeout = 20 * time.Second
	// ownerTimeout is how long no agent may listen at the handover socket. Then an agent that has handed over ends, and a
	// starting one forgets a refusal. The former checks it every ownerCheckInterval.
	ownerTimeout, ownerCheckInterval = 10 * time.Second, 2 * time.Second
)

// A Takeover is the start of an agent: it takes the sockets of the agent that serves, its predecessor, if there is one. Its methods
// are called in sequence.
type Takeover struct {
	cfg      Config
	from     *Client   // nil: there is no predecessor
	sockets  []Socket  // received sockets that are not adopted yet
	adopted  []Listen  // names of the adopted sockets
	refusal  error     // why the agent that has the addresses does not hand over; nil: no such agent is known
	lastSeen time.Time // when an agent last served the handover socket; if none did, when listening first failed
	received time.Time // when the sockets arrived
}

// NewTakeover returns a Takeover from the agent that listens at cfg.Path. With an empty Path there is never a predecessor. Unlike
// for a Client or a Server, cfg.Log and cfg.Recorder are required.
func NewTakeover(cfg Config) *Takeover { return &Takeover{cfg: cfg} }

// Predecessor returns the agent whose sockets this one takes, nil if there is none.
func (t *Takeover) Predecessor() *Client { return t.from }

// Find connects to the predecessor, if there is one.
func (t *Takeover) Find(ctx context.Context) {
	if t.cfg.Path == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	from, err := Connect(ctx, t.cfg)
	if errors.Is(err, ErrNoAgent) {
		if t.cfg.Now().Sub(t.lastSeen) > ownerTimeout { // else a new agent may be about to listen
			t.refusal = nil
		}
		return
	}
	t.refusal, t.lastSeen = nil, t.cfg.Now()
	if err != nil {
		t.refused(ctx, err)
		return
	}
	t.from = from
	t.cfg.Recorder.Update(func(s *Stats) { s.From = from.Predecessor })
	t.cfg.Log.InfoContext(ctx, "predecessor found", "agent", from.Predecessor, "version", from.PredecessorVersion)
}

// RequestSnapshot asks the predecessor to write a snapshot.
func (t *Takeover) RequestSnapshot(ctx context.Context) {
	if t.from == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	if err := t.from.Snapshot(ctx); err != nil {
		t.cfg.Log.WarnContext(ctx, "predecessor wrote no snapshot", "err", err)
	}
}

// refused records why the predecessor does not hand over, and logs each new reason.
func (t *Takeover) refused(ctx context.Context, err error) {
	t.refusal = err
	news := false
	t.cfg.Recorder.Update(func(s *Stats) {
		news = s.Why != err.Error()
		s.Taken, s.Why = OutcomeRefused, err.Error()
	})
	if news {
		t.cfg.Log.WarnContext(ctx, "predecessor refused handover", "err", err, "socket", t.cfg.Path)
	}
}

// Close ends a takeover that did not complete.
func (t *Takeover) Close() {
	t.Discard()
	if t.from != nil {
		t.from.Close()
		t.from = nil
	}
}

// Discard closes the sockets that were not adopted: nothing here reads them, so their queries would time out.
func (t *Takeover) Discard() {
	Discard(t.sockets)
	t.sockets = nil
}

var errOtherAddresses = errors.New("it serves other addresses")

// Receive receives the predecessor's sockets. If the predecessor serves none of the wanted addresses, the takeover ends.
func (t *Takeover) Receive(ctx context.Context, wanted []netip.AddrPort) {
	if t.from == nil {
		return
	}
	sockets, err := t.from.Sockets(ctx)
	t.sockets, t.received = sockets, t.cfg.Now()
	has := func(kind string, addr netip.AddrPort) bool {
		return slices.ContainsFunc(sockets, func(s Socket) bool { return s.Kind == kind && s.Addr == addr })
	}
	switch {
	case err != nil:
		t.refused(ctx, err)
		t.Close()
	case !slices.ContainsFunc(wanted, func(a netip.AddrPort) bool { return has(KindUDP, a) && has(KindTCP, a) }):
		t.cfg.Log.InfoContext(ctx, "predecessor serves other addresses", "agent", t.from.Predecessor)
		t.refusal = errOtherAddresses // in case its addresses conflict all the same
		t.Close()
	}
}

// Adopt removes and returns the files of the named socket, nil if there are none.
func (t *Takeover) Adopt(kind string, addr netip.AddrPort) (files []*os.File) {
	name := Listen{Kind: kind, Addr: addr}
	t.sockets = slices.DeleteFunc(t.sockets, func(s Socket) bool {
		if s.Listen == name {
			files = append(files, s.File)
		}
		return s.Listen == name
	})
	if len(files) > 0 {
		t.adopted = append(t.adopted, name)
	}
	return files
}

// errNoListener takes the place of a refusal if no agent was found.
var errNoListener = errors.New("no agent listens at the handover socket")

// Retry handles an error of listening. If another agent has the addresses, it waits listenRetry and returns true: the caller receives
// and listens again. Such an agent may end soon, or have taken over so recently that it does not listen at the handover socket yet.
func (t *Takeover) Retry(ctx context.Context, err error) bool {
	if t.cfg.Path != "" && t.lastSeen.IsZero() {
		t.refusal, t.lastSeen = errNoListener, t.cfg.Now()
	}
	if t.refusal == nil || !errors.Is(err, syscall.EADDRINUSE) {
		return false
	}
	if t.cfg.Recorder.WaitFor("the addresses of another agent") {
		t.cfg.Log.WarnContext(ctx, "waiting for addresses of another agent", "err", err, "why", t.refusal,
			"hint", "the start continues once that agent has stopped; docs/upgrades.md lists the requirements of a handover")
	}
	if retry.Sleep(ctx, listenRetry) != nil {
		return false
	}
	t.adopted = nil
	// An agent with other addresses keeps them until it ends, so it is asked rarely. It may have been replaced by now.
	if !errors.Is(t.refusal, errOtherAddresses) || t.cfg.Now().Sub(t.received) > recheckInterval {
		t.Find(ctx)
	}
	return true
}

// Complete makes the predecessor stop, since this agent serves now. link reports whether this agent manages the link, and rules
// names its interception backend. Complete reports whether the predecessor had ended by itself.
func (t *Takeover) Complete(ctx context.Context, link bool, rules string) (gone bool) {
	err := t.from.TakeOver(ctx, Claim{Agent: t.cfg.Agent, Version: t.cfg.Version, Serves: t.adopted, Link: link, Rules: rules})
	outcome := OutcomeTaken
	if gone = predecessorEnded(err); gone {
		outcome = OutcomeOrphaned
	}
	waited := t.cfg.Now().Sub(t.received)
	t.cfg.Recorder.Update(func(s *Stats) {
		s.Taken, s.Why, s.Sockets, s.Waited = outcome, "", len(t.adopted), waited
	})
	names := make([]string, len(t.adopted))
	for i, name := range t.adopted {
		names[i] = name.String()
	}
	t.cfg.Log.InfoContext(ctx, "taken over", "agent", t.from.Predecessor, "version", t.from.PredecessorVersion, "sockets", names,
		"waited", waited.Round(time.Millisecond))
	if err != nil {
		t.cfg.Log.WarnContext(ctx, "predecessor did not confirm that it stopped", "err", err)
	}
	return gone
}

// Idle waits for the end of ctx if this agent has handed over: the kubelet would restart a process that exits by itself. If no agent
// serves any more, Idle returns an error.
func (g *Server) Idle(ctx context.Context) error {
	select {
	case <-g.given:
	default:
		return nil
	}
	to := g.cfg.Recorder.Stats().To
	g.cfg.Log.InfoContext(ctx, "idle after handover", "agent", to)
	last := g.cfg.Now()
	for retry.Sleep(ctx, ownerCheckInterval) == nil {
		if alive(ctx, g.cfg.Path) {
			last = g.cfg.Now() // not the tick's time: this process may have been stopped since
		}
		if g.cfg.Now().Sub(last) > ownerTimeout {
			return &hint.Error{Err: fmt.Errorf("agent %s, which took over, ended without a successor", to), Hint: "start an agent again"}
		}
	}
	return nil
}

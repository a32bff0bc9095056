// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/node"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/status"
)

const (
	// listenRetryInterval is the wait before another attempt to listen on addresses in use.
	listenRetryInterval = 250 * time.Millisecond
	// recheckInterval is the wait between two requests to an agent that has none of the addresses.
	recheckInterval = 5 * time.Second
	// exitWait is how long a stopping agent waits for a successor that has its sockets.
	exitWait = 3 * time.Second
	// ownerTimeout is how long the handover socket may be unserved before an agent that has handed over
	// exits. The check runs every ownerCheckInterval.
	ownerTimeout, ownerCheckInterval = 10 * time.Second, 2 * time.Second
)

// A socketHandover takes over the sockets of a predecessor and hands them to a successor. Without a path it
// does neither.
type socketHandover struct {
	path      string // of the handover socket; empty: none
	token     string // identifies this agent
	version   string
	log       *slog.Logger
	node      *node.Node
	servers   *servers
	snapshots *snapshots
	running   *atomic.Pointer[generation]
	recorder  handover.Recorder
	server    *handover.Server // nil: there is no path
	cleared   chan struct{}    // closed once no other agent maintains link and rules

	predecessor *handover.Client  // nil: there is no predecessor
	sockets     []handover.Socket // received and not adopted; owned by Listen
	adopted     []handover.Listen // adopted; written before Run
	refusal     error             // why a predecessor does not hand over; owned by Listen
	lastSeen    time.Time         // last time that an agent served the handover socket; owned by Listen
	received    time.Time         // when the sockets arrived

	stopNode func() // stops maintaining link and rules; written before run

	mu       sync.Mutex // guards waitsFor
	waitsFor string     // what the start waits for; empty: nothing
}

// open makes the server of the socket, which listens once it runs.
func (h *socketHandover) open() (err error) {
	h.cleared = make(chan struct{})
	if h.path == "" {
		return nil
	}
	h.server, err = handover.NewServer(handover.Config{
		Path: h.path, Agent: h.token, Version: h.version,
		Snapshot: func(ctx context.Context) error { return h.snapshots.saveFor(ctx, h.running.Load()) },
		Offers:   h.servers.offers, Release: h.yield, SuccessorLost: h.node.RestoreLink,
		Now: time.Now, Log: h.log, Recorder: &h.recorder,
	})
	return err
}

// findPredecessor connects to the agent that serves, if there is one.
func (h *socketHandover) findPredecessor(ctx context.Context) {
	if h.path == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handoverTimeout)
	defer cancel()
	predecessor, err := handover.Connect(ctx, handover.Config{
		Path: h.path, Agent: h.token, Version: h.version, Now: time.Now, Log: h.log, Recorder: &h.recorder,
	})
	if errors.Is(err, handover.ErrNoAgent) {
		if time.Since(h.lastSeen) > ownerTimeout { // else a new agent may be about to listen
			h.refusal = nil
		}
		return
	}
	h.refusal, h.lastSeen = nil, time.Now()
	if err != nil {
		h.recordRefusal(ctx, err)
		return
	}
	h.predecessor = predecessor
	h.recorder.Update(func(s *handover.Stats) { s.From = predecessor.Predecessor })
	h.log.InfoContext(ctx, "predecessor found", "agent", predecessor.Predecessor, "version", predecessor.PredecessorVersion)
}

// requestSnapshot asks the predecessor to write a snapshot.
func (h *socketHandover) requestSnapshot(ctx context.Context, folder string) {
	if h.predecessor == nil || folder == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handoverTimeout)
	defer cancel()
	if err := h.predecessor.Snapshot(ctx); err != nil {
		h.log.WarnContext(ctx, "predecessor wrote no snapshot", "err", err)
	}
}

// recordRefusal records why the predecessor does not hand over, and logs each new reason.
func (h *socketHandover) recordRefusal(ctx context.Context, err error) {
	h.refusal = err
	news := false
	h.recorder.Update(func(s *handover.Stats) {
		news = s.Why != err.Error()
		s.Taken, s.Why = handover.OutcomeRefused, err.Error()
	})
	if news {
		h.log.WarnContext(ctx, "predecessor refused handover", "err", err, "socket", h.path)
	}
}

// close ends a takeover that did not complete.
func (h *socketHandover) close() {
	h.discardSockets()
	if h.predecessor != nil {
		h.predecessor.Close()
		h.predecessor = nil
	}
}

// discardSockets closes the sockets that were not adopted.
func (h *socketHandover) discardSockets() {
	handover.Discard(h.sockets)
	h.sockets = nil
}

// receiveSockets receives the predecessor's sockets. If the predecessor serves none of the wanted addresses,
// the takeover ends.
func (h *socketHandover) receiveSockets(ctx context.Context, wanted []netip.AddrPort) {
	if h.predecessor == nil {
		return
	}
	sockets, err := h.predecessor.Sockets(ctx)
	h.sockets, h.received = sockets, time.Now()
	has := func(kind string, addr netip.AddrPort) bool {
		return slices.ContainsFunc(sockets, func(s handover.Socket) bool { return s.Kind == kind && s.Addr == addr })
	}
	if err == nil && !slices.ContainsFunc(wanted, func(a netip.AddrPort) bool { return has(handover.KindUDP, a) && has(handover.KindTCP, a) }) {
		h.log.InfoContext(ctx, "predecessor serves other addresses", "agent", h.predecessor.Predecessor)
		h.refusal = errOtherAddresses // in case its addresses conflict all the same
		h.close()
		return
	}
	if err != nil {
		h.recordRefusal(ctx, err)
		h.close()
	}
}

var errOtherAddresses = errors.New("it serves other addresses")

// adopt removes and returns the files of the named socket, nil if there are none.
func (h *socketHandover) adopt(kind string, addr netip.AddrPort) (files []*os.File) {
	name := handover.Listen{Kind: kind, Addr: addr}
	h.sockets = slices.DeleteFunc(h.sockets, func(s handover.Socket) bool {
		if s.Listen == name {
			files = append(files, s.File)
		}
		return s.Listen == name
	})
	if len(files) > 0 {
		h.adopted = append(h.adopted, name)
	}
	return files
}

// errNoListener replaces a refusal where no agent has been found.
var errNoListener = errors.New("no agent listens at the handover socket")

// retryListen waits and reports whether to listen again after an error. Addresses of an agent that does not
// hand over are free once it ends. An agent that has just taken over may not listen at the handover socket yet.
func (h *socketHandover) retryListen(ctx context.Context, err error) bool {
	if h.path != "" && h.lastSeen.IsZero() {
		h.refusal, h.lastSeen = errNoListener, time.Now()
	}
	if h.refusal == nil || !errors.Is(err, syscall.EADDRINUSE) {
		return false
	}
	if h.setWaiting("the addresses of another agent") {
		h.log.WarnContext(ctx, "waiting for addresses of another agent", "err", err, "why", h.refusal,
			"hint", "the start continues once that agent has stopped; docs/upgrades.md lists the requirements of a handover")
	}
	wait := time.NewTimer(listenRetryInterval)
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wait.C:
		h.adopted = nil
		// The agent keeps its other addresses until it ends, so it is asked rarely. Another agent may run by
		// now.
		if !errors.Is(h.refusal, errOtherAddresses) || time.Since(h.received) > recheckInterval {
			h.findPredecessor(ctx)
		}
		return true
	}
}

// setWaiting records what the start waits for and reports whether that is new.
func (h *socketHandover) setWaiting(what string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	news := h.waitsFor != what
	h.waitsFor = what
	return news
}

// takesOver reports whether this agent has sockets that a predecessor still reads.
func (h *socketHandover) takesOver() bool { return h.predecessor != nil }

// awaitSync waits for the first cluster sync while the predecessor serves. A new configuration, such as a
// fixed one, restarts the wait.
func (h *socketHandover) awaitSync(ctx context.Context) {
	for {
		r := h.running.Load()
		if r.cluster.synced() {
			return
		}
		h.setWaiting("the cluster sync, before taking over from agent " + h.predecessor.Predecessor)
		h.log.InfoContext(ctx, "waiting for cluster sync", "agent", h.predecessor.Predecessor)
		select {
		case <-r.cluster.source.Ready(): // a newer configuration may count by now
			continue
		case <-r.replaced:
			continue
		case <-h.predecessor.PredecessorLeaving():
			h.log.InfoContext(ctx, "taking over before cluster sync: predecessor stops", "agent", h.predecessor.Predecessor)
		case <-ctx.Done():
		}
		return
	}
}

// requiredCapabilities returns the capabilities that takeOver may need. Dropping capabilities stops all
// threads, so it happens before the agent serves.
func (h *socketHandover) requiredCapabilities() []cap.Value {
	if h.takesOver() && slices.ContainsFunc(h.servers.udp, func(u *server.UDP) bool { return u.MissingReaders() > 0 }) {
		return []cap.Value{capabilities.NetBindService}
	}
	return nil
}

// takeOver stops the predecessor, since this agent serves now, and allows link and rules to be maintained. An
// agent that is stopped before leaves sockets, link, and rules to the predecessor: its own rules would make the
// predecessor stand down. Once the request is sent, the takeover completes in any case.
func (h *socketHandover) takeOver(ctx context.Context) {
	if h.takesOver() && ctx.Err() != nil {
		return
	}
	defer close(h.cleared)
	h.setWaiting("")
	if h.predecessor == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	claim := handover.Claim{Agent: h.token, Version: h.version, Serves: h.adopted}
	claim.Link, claim.Rules = h.node.Kept()
	err := h.predecessor.TakeOver(ctx, claim)
	gone := handover.PredecessorEnded(err)
	h.node.TookOver(h.predecessor.Predecessor, gone)
	outcome := handover.OutcomeTaken
	if gone {
		outcome = handover.OutcomeOrphaned
	}
	waited := time.Since(h.received)
	h.recorder.Update(func(s *handover.Stats) {
		s.Taken, s.Why, s.Sockets, s.Waited = outcome, "", len(h.adopted), waited
	})
	names := make([]string, len(h.adopted))
	for i, name := range h.adopted {
		names[i] = name.String()
	}
	h.log.InfoContext(ctx, "taken over", "agent", h.predecessor.Predecessor, "version", h.predecessor.PredecessorVersion, "sockets", names,
		"waited", waited.Round(time.Millisecond))
	if err != nil {
		h.log.WarnContext(ctx, "predecessor did not confirm that it stopped", "err", err)
	}
	h.servers.addReaders(ctx)
}

// awaitClear waits until no other agent maintains link and rules, and reports whether that is so.
func (h *socketHandover) awaitClear(ctx context.Context) bool {
	select {
	case <-h.cleared:
		return true
	case <-ctx.Done():
		return false
	}
}

// run serves handover requests until ctx ends.
func (h *socketHandover) run(ctx context.Context) error {
	if h.path == "" {
		return nil
	}
	return h.server.Run(ctx)
}

// handedOver returns a channel that is closed once a successor has taken over; nil: never.
func (h *socketHandover) handedOver() <-chan struct{} {
	if h.path == "" {
		return nil
	}
	return h.server.HandedOver()
}

// hasHandedOver reports whether a successor has taken over.
func (h *socketHandover) hasHandedOver() bool {
	select {
	case <-h.handedOver():
		return true
	default:
		return false
	}
}

// announceExit notifies a successor that has the sockets: it takes over now.
func (h *socketHandover) announceExit(ctx context.Context) {
	if h.path != "" {
		h.server.Shutdown(context.WithoutCancel(ctx), exitWait)
	}
}

// yield leaves what the claim names to the successor.
func (h *socketHandover) yield(ctx context.Context, claim handover.Claim) {
	defer h.node.Yield(ctx, claim) // also after a panic: link and rules are the successor's
	defer h.stopNode()
	h.servers.handOver(ctx, claim, h.recorder.Guard(h.log)) // after a panic, this process must still answer what it has read
}

// idle waits for the end of ctx if this agent has handed over: the kubelet would restart a process that exits by itself. If no
// agent serves any more, idle returns an error.
func (h *socketHandover) idle(ctx context.Context) error {
	if !h.hasHandedOver() {
		return nil
	}
	h.log.InfoContext(ctx, "idle after handover", "agent", h.recorder.Stats().To)
	look := time.NewTicker(ownerCheckInterval)
	defer look.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
			if handover.Alive(ctx, h.path) {
				last = time.Now() // not the tick's time: this process may have been stopped since
			}
			if time.Since(last) > ownerTimeout {
				return &hint.Error{
					Err:  fmt.Errorf("agent %s, which took over, ended without a successor", h.recorder.Stats().To),
					Hint: "start an agent again",
				}
			}
		}
	}
}

// status returns nil if handover.socket is not set.
func (h *socketHandover) status(now time.Time) *status.Handover {
	if h.path == "" {
		return nil
	}
	stats := h.recorder.Stats()
	return status.HandoverOf(h.path, h.waiting(), &stats, now)
}

// stats returns nil if handover.socket is not set.
func (h *socketHandover) stats() *handover.Stats {
	if h.path == "" {
		return nil
	}
	stats := h.recorder.Stats()
	return &stats
}

// waiting returns what the start waits for; empty: nothing.
func (h *socketHandover) waiting() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waitsFor
}

// notReady returns an error if this agent does not serve yet or has handed over.
func (h *socketHandover) notReady() error {
	if stats := h.recorder.Stats(); stats.Given {
		return errors.New("handed over to agent " + stats.To)
	}
	if what := h.waiting(); what != "" {
		return errors.New("starting: waits for " + what)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/node"
	"github.com/nodecache/node-cache/pkg/server"
)

// exitWait is how long a stopping agent waits until the successor that has its sockets takes over.
const exitWait = 3 * time.Second

// A socketHandover takes over the sockets of a predecessor and hands them to a successor. Without a path it
// does neither.
type socketHandover struct {
	*handover.Takeover // takes the sockets of the predecessor

	path      string // path of the handover socket; empty: none
	log       *slog.Logger
	node      *node.Node
	servers   *servers
	snapshots *snapshots
	running   *atomic.Pointer[generation]
	recorder  handover.Recorder
	server    *handover.Server // serves a successor; nil: there is no path
	cleared   chan struct{}    // closed once no other agent maintains link and rules
	stopNode  func()           // stops maintaining link and rules; written before run
}

// open makes the Takeover and, if there is a path, the server of the handover socket. The server listens once it runs.
func (h *socketHandover) open(cfg handover.Config) (err error) {
	cfg.Now, cfg.Recorder, cfg.Log = time.Now, &h.recorder, h.log
	cfg.Snapshot = func(ctx context.Context) error { return h.snapshots.saveFor(ctx, h.running.Load()) }
	cfg.Offers, cfg.Release, cfg.SuccessorLost = h.servers.offers, h.yield, h.node.RestoreLink
	h.Takeover, h.path, h.cleared = handover.NewTakeover(cfg), cfg.Path, make(chan struct{})
	if cfg.Path != "" {
		h.server, err = handover.NewServer(cfg)
	}
	return err
}

// takesOver reports whether this agent has sockets that a predecessor still reads.
func (h *socketHandover) takesOver() bool { return h.Predecessor() != nil }

// awaitSync waits for the first cluster sync while the predecessor serves. A new configuration, such as a corrected one, restarts
// the wait.
func (h *socketHandover) awaitSync(ctx context.Context, from *handover.Client) {
	for {
		r := h.running.Load()
		if r.cluster.Synced() {
			return
		}
		h.recorder.WaitFor("the cluster sync, before taking over from agent " + from.Predecessor)
		h.log.InfoContext(ctx, "waiting for cluster sync", "agent", from.Predecessor)
		select {
		case <-r.cluster.Source.Ready(): // look again: a reload may have replaced r
			continue
		case <-r.replaced:
			continue
		case <-from.PredecessorLeaving():
			h.log.InfoContext(ctx, "taking over before cluster sync: predecessor stops", "agent", from.Predecessor)
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

// takeOver stops the predecessor, since this agent serves now, and allows link and rules to be maintained. If ctx has ended, it
// leaves sockets, link, and rules to the predecessor, which would stand down if this agent set rules of its own. Otherwise the
// takeover completes, even if ctx ends during it.
func (h *socketHandover) takeOver(ctx context.Context) {
	if h.takesOver() && ctx.Err() != nil {
		return
	}
	defer close(h.cleared)
	h.recorder.WaitFor("")
	if !h.takesOver() {
		return
	}
	ctx = context.WithoutCancel(ctx)
	link, rules := h.node.Kept()
	gone := h.Complete(ctx, link, rules)
	h.node.TookOver(h.Predecessor().Predecessor, gone)
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

// announceExit tells a successor that has the sockets to take over now, and waits for that, at most for exitWait.
func (h *socketHandover) announceExit(ctx context.Context) {
	if h.path != "" {
		h.server.Shutdown(context.WithoutCancel(ctx), exitWait)
	}
}

// yield leaves the sockets, link and rules that the claim names to the successor.
func (h *socketHandover) yield(ctx context.Context, claim handover.Claim) {
	defer h.node.Yield(ctx, claim) // also after a panic: link and rules are the successor's
	defer h.stopNode()
	h.servers.handOver(ctx, claim, h.recorder.Guard(h.log)) // after a panic, this process must still answer what it has read
}

// idle waits for the end of ctx if this agent has handed over.
func (h *socketHandover) idle(ctx context.Context) error {
	if h.path == "" {
		return nil
	}
	return h.server.Idle(ctx)
}

// stats returns nil if handover.socket is not set.
func (h *socketHandover) stats() *handover.Stats {
	if h.path == "" {
		return nil
	}
	return new(h.recorder.Stats())
}

// notReady returns an error if this agent does not serve yet or has handed over.
func (h *socketHandover) notReady() error {
	switch stats := h.recorder.Stats(); {
	case stats.Given:
		return errors.New("handed over to agent " + stats.To)
	case stats.WaitsFor != "":
		return errors.New("starting: waits for " + stats.WaitsFor)
	}
	return nil
}

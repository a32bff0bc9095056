// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/nftables"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

const (
	// wayInterval is the shortest time between two readings of policy engines and rules.
	wayInterval = time.Minute
	// wayShare bounds what readings cost: a pause after each is so many times as long as it took, so at most 0.1 ms a second.
	wayShare = 10_000
	// maxWayPause bounds that pause, because a reading on a busy node takes long.
	maxWayPause = 10 * time.Minute

	priorityRaw = -300 // of the agent's rules for conntrack in iptables
)

// A podsWay keeps what may happen to packets of pods on their way to the fallback: the tests of the fallback do not go that way.
type podsWay struct {
	host    Host
	log     *slog.Logger
	now     func() time.Time
	cilium  *ciliumWatcher
	backend intercept.Backend // set by open

	mu       sync.Mutex // guards the fields below
	next     time.Time  // when to read again
	flows    dataplane.Flows
	found    dataplane.Found // its Policies change
	notracks []dataplane.Notrack
	unread   error // why not all rules before conntrack are known
}

// open takes the backend of the rules, and the data plane at the start.
func (w *podsWay) open(backend intercept.Backend, found dataplane.Found) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.backend, w.found = backend, found
}

// read reads the policy engines, and the rules that exempt packets from conntrack, unless it did a short while ago.
func (w *podsWay) read(ctx context.Context, flows dataplane.Flows) {
	w.mu.Lock()
	defer w.mu.Unlock()
	began := w.now()
	same := slices.Equal(flows.Fallback, w.flows.Fallback) // the rest never changes
	if same && began.Before(w.next) {
		return
	}
	if policies, err := w.host.Policies(); err != nil {
		w.log.DebugContext(ctx, "policy engines not read", "err", err) // those known before stay
	} else {
		w.found.Policies = policies
	}
	before := w.notracks
	w.flows = flows
	w.notracks, w.unread = w.host.Notracks(flows)
	if !slices.Equal(before, w.notracks) {
		w.log.InfoContext(ctx, "rules that exempt packets from conntrack changed", "rules", w.notracks)
	}
	now := w.now()
	w.next = now.Add(min(max(wayInterval, wayShare*now.Sub(began)), maxWayPause))
}

// adapt sets in the rules what the data plane and the rules of others need now.
func (w *podsWay) adapt(ctx context.Context, r *rules.Rules) {
	w.cilium.adapt(ctx, r)
	if !r.FallsBack() || len(r.Fallback) == 0 { // the data plane is the fallback, and its own rules are right
		return
	}
	w.read(ctx, dataplane.Flows{Addresses: r.FallbackKeys(), Port: r.Port, Fallback: r.Fallback})
	w.mu.Lock()
	defer w.mu.Unlock()
	r.Track = r.Track || len(w.notracks) > 0
}

// of returns what is known of the way of pods' packets to the fallback of a lease.
func (w *podsWay) of(l rules.Lease) intercept.FallbackResult {
	if why := w.cilium.loses(l.Key); why != "" {
		return intercept.FallbackResult{State: intercept.FallbackBroken, Why: why}
	}
	firewall := w.cilium.hostFirewall()
	onCilium := w.cilium.on()
	w.mu.Lock()
	defer w.mu.Unlock()
	found := w.found
	if !found.Early && onCilium {
		found = dataplane.Found{Proxy: dataplane.Cilium, Early: true, Policies: found.Policies}
	}
	doubts := found.Unproven()
	if firewall {
		doubts = append(doubts, "its host firewall is on (enable-host-firewall): host policies must let the node reach the fallback's servers")
	}
	for _, x := range w.notracks {
		switch {
		case w.precedes(x), l.Key.Is4() && !x.IPv4, l.Key.Is6() && !x.IPv6:
		case x.Certain:
			return intercept.FallbackResult{State: intercept.FallbackBroken, Why: x.Where + " exempts their packets from conntrack"}
		default:
			doubts = append(doubts, x.Where+" may exempt their packets from conntrack")
		}
	}
	if w.unread != nil {
		doubts = append(doubts, "rules that may exempt their packets from conntrack were not all read: "+w.unread.Error())
	}
	if len(doubts) > 0 {
		return intercept.FallbackResult{State: intercept.FallbackUnverified, Why: strings.Join(doubts, "; ")}
	}
	return intercept.FallbackResult{State: intercept.FallbackWorks}
}

// precedes reports whether the agent's rules for conntrack come before others. Then the kernel ignores what those exempt.
func (w *podsWay) precedes(x dataplane.Notrack) bool {
	if b, ok := w.backend.(interface{ Trackless() bool }); ok && b.Trackless() {
		return false
	}
	if own := w.backend.String(); own != dataplane.BackendNFTables {
		return x.Backend == own || x.Priority > priorityRaw
	}
	return x.Priority > nftables.PriorityTrack
}
